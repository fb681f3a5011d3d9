/// What the rows of `measure_quality` say about each method, with intervals over the samples.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/io/files/number_text.h"

namespace kvcast::measure {

/// A mean and the range that holds the true one with 95 % confidence.
struct Interval {
  double mean = 0;
  double low = no_value;  ///< none from one sample
  double high = no_value;
};

/// Student's interval of the mean of samples that are independent. With one sample no range.
Interval mean_interval(std::span<const double> samples);
/// Wilson's interval of a share: `hits` of `samples`.
Interval share_interval(double hits, double samples);

/// A method on a task.
struct QualityRow {
  std::string task;
  std::string method;
  std::string family = {};
  double keep = no_value;
  std::size_t samples = 0;
  std::size_t positions = 0;  ///< of all samples
  Interval agreement = {};    ///< share of positions with the base's most likely token
  Interval kl_nats = {};      ///< per token
  Interval perplexity = {};   ///< of the continuations
  /// Over the base model's: exp of the mean difference of cross-entropies, sample by sample.
  Interval perplexity_ratio = {};
  Interval answered = {};  ///< share of samples whose every token is the most likely one
  double ttft_s = 0;       ///< median
  double ttft_speedup = 1;
  double tpot_s = no_value;        ///< median
  double memory_bytes = no_value;  ///< of weights and cache
  bool on_front = false;           ///< is_on_front() by TTFT
};

/// Whether no other method on the row's task costs as little and is as good, better in one: by KL
/// divergence, for needles by the share answered.
bool is_on_front(const QualityRow& row, std::span<const QualityRow> rows, double QualityRow::*cost);

/// From a file of measure_quality, tasks and methods in its order; TTFT from the rows of `times`,
/// another such file, unless that is empty. Throws Error: no such file, other columns, a method
/// without times.
std::vector<QualityRow> summarize_quality(const std::filesystem::path& csv,
                                          const std::filesystem::path& times = {});

}  // namespace kvcast::measure
