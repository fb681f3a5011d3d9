/// Measures what methods do to a model's next tokens, and their TTFT: every method on every sample,
/// into a CSV that grows row by row and goes on where it was interrupted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "measure/measured_rows.h"
#include "measure/quality_task.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast::measure {

/// What a model's weights, products and cache are numbers of.
struct NumberTypes {
  const Checkpoint* checkpoint = nullptr;  ///< the model with other weights; null: the base
  execute::Arithmetic arithmetic = execute::Arithmetic::FP32;
  DType cache = DType::FP32;
};

struct QualityMethod {
  std::string method;  ///< as parse_methods takes it
  /// Without the options that the keep rate is in, "specprefill:lookahead=4", folders by their last
  /// names; with those options, or whole folders, where methods differ in nothing else.
  std::string family;
  std::string keep;  ///< the keep rate that it was made with; empty: none
  NumberTypes types = {};

  /// The method, or its family, and in brackets the types that differ from the base's: "plain
  /// [q8_0.gguf int8]".
  std::string label(const std::string& of) const;
};

/// How a method's next tokens differ from the base model's: sums over a continuation's positions.
struct NextTokens {
  std::uint64_t positions = 0;
  std::uint64_t agreeing = 0;     ///< the most likely token is the base model's
  std::uint64_t correct = 0;      ///< it is the continuation's
  double kl_nats = 0;             ///< KL(base || method) over the vocabulary
  double cross_entropy_nats = 0;  ///< of the continuation's token under the method

  bool all_correct() const { return correct == positions; }
};

/// Adds a position: logits of the vocabulary from the base and from the method, and the token that
/// follows. Of equal logits the first is the most likely.
void add_position(NextTokens& sums, std::span<const float> base, std::span<const float> method,
                  execute::TokenId next);

/// Methods as the user names them, with plain before all: "{keep}" in one stands for each of the
/// rates in turn. A method that takes an option keep and is not given it gets "keep={keep}",
/// lazyllm without its options "begin={keep},end={keep}". Throws Error as parse_methods does, and
/// for rates that are no fractions above 0 and up to 1.
std::vector<QualityMethod> quality_methods(std::span<const std::string> methods,
                                           std::span<const std::string> rates);
/// Each method with each of the types, those of the base before all.
std::vector<QualityMethod> with_types(std::span<const QualityMethod> methods,
                                      std::span<const NumberTypes> types);

struct QualityOptions : MeasuredRowsOptions {
  std::vector<execute::TokenId> stop_tokens = {};  ///< end a speculator's look-ahead
};

/// The base model reads each sample's prompt and then the continuation, token by token; so does
/// the model under each method, and where both say what comes next they are compared. Each method
/// runs once before the first timed run. The first method is plain with the base's types. Throws
/// Error before anything runs when a method or a type does not fit the model or its files are
/// wrong, and as SweepFile does.
MeasuredRows measure_quality(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
                             std::span<const QualitySample> samples, const QualityOptions& options);

}  // namespace kvcast::measure
