/// What the tables of Speculative Prefill share; reproduce_specprefill.cpp lists them all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/record/recording.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// E20: what the paper may have counted.
struct SpeculatorReading {
  std::string_view name;
  bool kv_projections = true;
  std::uint64_t tokens = 0;  ///< 0: as many as the text says
};
const std::vector<SpeculatorReading>& speculator_readings();

/// Multiply-adds of a prefill, the speculator's over the base model's, by Table 5's rules.
class SpeculatorShares {
 public:
  explicit SpeculatorShares(const Catalog& catalog) : catalog_(catalog) {}
  /// Models as printed, "Llama-3.1-8B". Throws Error as load_model does.
  double of(const std::string& speculator, const std::string& base, std::uint64_t batch,
            std::uint64_t tokens, const SpeculatorReading& reading);
  /// Of the share `keep` of the prompt, over those of all of it; Table 5 as printed.
  double kept(const std::string& model, std::uint64_t batch, std::uint64_t tokens, double keep);

 private:
  double total(const std::string& model, std::uint64_t batch, std::uint64_t tokens,
               const SpeculatorReading& reading);

  const Catalog& catalog_;
  std::map<std::string, Recording> recordings_;
};

std::vector<ReproducedRow> specprefill_averages(const Catalog& catalog);
std::vector<ReproducedRow> specprefill_prose(const Catalog& catalog);
std::vector<ReproducedRow> specprefill_positions(const Catalog& catalog);
/// The largest measured speed-up, beside a ratio of FLOPs and beside estimates of TTFTs.
PublishedTable specprefill_flops_ratio_table();
PublishedTable specprefill_ttft_table();

}  // namespace kvcast::reports
