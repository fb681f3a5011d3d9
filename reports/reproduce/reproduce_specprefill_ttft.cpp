#include <algorithm>

#include <fmt/format.h>

#include "model/base/error.h"
#include "reports/reproduce/reproduce_specprefill.h"
#include "roofline/forecast.h"

namespace kvcast::reports {
namespace {

using roofline::DesignPoint;
using roofline::Forecaster;
using roofline::Hardware;

/// Batch times length = 524,288 tokens: experiments/gen_efficiency_search.py of the authors' code
/// (Jingyu6/speculative_prefill).
constexpr DesignPoint shapes[]{{128, 4096, 1}, {64, 8192, 1}, {32, 16384, 1}, {16, 32768, 1}};
constexpr std::uint64_t tensor_parallel_degree = 8;  // section 4.1, claim spec_p19

/// The devices of a tensor-parallel group as one of all their rates, and what it costs them to sum
/// up what each has of a pass's hidden states.
struct Group {
  Hardware device;
  roofline::Link link;
  double ranks = 1;

  Group(Hardware one, std::uint64_t degree)
      : device(std::move(one)),
        link(device.links.at("nvlink")),
        ranks(static_cast<double>(degree)) {
    for (auto& [dtype, peak] : device.peak_flops_per_second) peak.value *= ranks;
    for (roofline::Sourced* rate :
         {&device.vector_flops_per_second, &device.memory_bandwidth, &device.memory_capacity}) {
      rate->value *= ranks;
    }
  }

  /// Two all-reduces a layer (Shoeybi et al. 2019, arXiv:1909.08053, section 3), each a
  /// reduce-scatter and an all-gather between all pairs at once, as a switch allows.
  double all_reduces_s(const Architecture& a, double tokens) const {
    constexpr double bytes_per_element = 2;  // what is summed stays in 16 bits
    const double bytes =
        tokens * static_cast<double>(a.hidden_size) * bytes_per_element * (ranks - 1) / ranks;
    const double one = 2 * (link.latency.value + bytes / link.bandwidth.value);
    return 2 * static_cast<double>(a.num_hidden_layers()) * one;
  }
};

/// Seconds to the first token.
struct Ttft {
  double computing = 0;
  double messages = 0;
};

/// Of both models, each in its own dtype.
class Pair {
 public:
  Pair(const Catalog& catalog, Group group, const std::string& speculator, const std::string& base,
       const std::string& method)
      : group_(std::move(group)),
        speculator_(load_model(catalog, speculator)),
        base_(load_model(catalog, base)),
        method_(record(base_, parse_methods(method), in_fp8(), find(catalog))),
        in_bf16_(record(base_, parse_methods(method), in_bf16(), find(catalog))),
        plain_(forecaster(record(base_, {}, in_fp8()), in_fp8())),
        base_part_(forecaster(method_, in_fp8())),
        speculator_part_(forecaster(in_bf16_, in_bf16())) {}

  Ttft plain(const DesignPoint& p) const {
    return {plain_.at(p).ttft_s, group_.all_reduces_s(base_, tokens(p, p.prompt_len))};
  }

  Ttft pruned(const DesignPoint& p) const {
    const SymbolValues values = method_.symbols.resolve({p.batch, p.prompt_len, p.prompt_len});
    Ttft sum{0, group_.all_reduces_s(base_, tokens(p, method_.prompt_tokens.at(values)))};
    for (const roofline::BreakdownRow& row : base_part_.breakdown(p)) {
      if (row.pass == "prefill") sum.computing += row.total.value;
    }
    for (const roofline::BreakdownRow& row : speculator_part_.breakdown(p)) {
      if (row.pass != "prefill" && row.pass != "decode") sum.computing += row.total.value;
    }
    for (const RecordedPass& pass : method_.helpers()) {
      if (pass.result != HelperResult::Logits) continue;
      sum.messages += static_cast<double>(pass.steps) *
                      group_.all_reduces_s(speculator_, tokens(p, pass.tokens.at(values)));
    }
    return sum;
  }

 private:
  static double tokens(const DesignPoint& p, std::uint64_t length) {
    return static_cast<double>(p.batch * length);
  }
  static RecordOptions find(const Catalog& catalog) {
    return {
        .find_model = [&catalog](const std::string& name) { return load_model(catalog, name); }};
  }
  /// What Llama-3.1-405B-Instruct-FP8 multiplies in; its cache is not quantised.
  static Lowering in_fp8() {
    return {Kernels::Fused, Kernels::Fused, DType::FP8, DType::FP8, DType::BF16};
  }
  static Lowering in_bf16() {
    return {Kernels::Fused, Kernels::Fused, DType::BF16, DType::BF16, DType::BF16};
  }
  Forecaster forecaster(const Recording& recording, const Lowering& lowering) const {
    return {recording, lowering,
            roofline::make_rates(group_.device, lowering, roofline::Mode::Calibrated)};
  }

  Group group_;
  Architecture speculator_;
  Architecture base_;
  Recording method_;
  Recording in_bf16_;
  Forecaster plain_;
  Forecaster base_part_;
  Forecaster speculator_part_;
};

/// Ours beside the largest speed-up that was measured.
ReproducedRow beside_largest(const Published& published, const std::string& cell, double ours) {
  const CsvTable table = published.read("specprefill_prose.csv");
  const std::vector<CsvRow> claims = table.rows();
  const auto measured = std::find_if(claims.begin(), claims.end(), [](const CsvRow& r) {
    return r.text("claim_id") == "spec_p01";
  });
  KVCAST_ASSERT(measured != claims.end());
  return published.compare(*measured, "value", cell, ours, TableKind::Measured);
}

double kept_share(const Published& published) {
  return published.claim("specprefill_prose.csv", "spec_p14");
}

std::vector<ReproducedRow> specprefill_flops_ratio(const Catalog& catalog) {
  const Published published(catalog);
  SpeculatorShares shares(catalog);
  const DesignPoint& longest = shapes[std::size(shapes) - 1];
  return {beside_largest(
      published,
      fmt::format("Llama-3.1-405B, {} x {} (Table 5's multiply-adds, the base's of a tenth of the "
                  "prompt: E21)",
                  longest.batch, longest.prompt_len),
      1 / (shares.of("Llama-3.1-8B", "Llama-3.1-405B", longest.batch, longest.prompt_len,
                     speculator_readings()[0]) +
           shares.kept("Llama-3.1-405B", longest.batch, longest.prompt_len,
                       kept_share(published))))};
}

std::vector<ReproducedRow> specprefill_ttft(const Catalog& catalog) {
  const Published published(catalog);
  const auto lookahead =
      static_cast<std::uint64_t>(published.claim("specprefill_prose.csv", "spec_p17"));
  std::vector<ReproducedRow> rows;
  const auto add = [&](const std::string& cell, double ours) {
    rows.push_back(beside_largest(published, cell, ours));
  };
  const Pair pair(catalog, Group(roofline::load_hardware(catalog, "h200"), tensor_parallel_degree),
                  "llama-3.1-8b", "llama-3.1-405b",
                  fmt::format("specprefill:speculator=llama-3.1-8b,keep={},lookahead={},chunk=32,"
                              "pool=13",
                              kept_share(published), lookahead));
  for (const DesignPoint& p : shapes) {
    const Ttft plain = pair.plain(p);
    const Ttft pruned = pair.pruned(p);
    const std::string cell =
        fmt::format("Llama-3.1-405B, {} x {}, estimate ", p.batch, p.prompt_len);
    add(cell + "(8 H200 as one, messages free)", plain.computing / pruned.computing);
    add(cell + "(and two all-reduces a layer)",
        (plain.computing + plain.messages) / (pruned.computing + pruned.messages));
  }
  return rows;
}

}  // namespace

PublishedTable specprefill_flops_ratio_table() {
  return {
      "specprefill-flops-ratio", "specprefill",
      "SpecPrefill, Figure 3: largest TTFT speed-up, a tenth kept, beside the ratio of Table 5's "
      "multiply-adds",
      TableKind::Measured, specprefill_flops_ratio};
}

PublishedTable specprefill_ttft_table() {
  return {
      "specprefill-ttft", "specprefill",
      "SpecPrefill, Figure 3: largest TTFT speed-up, a tenth kept, on 8 H200 at 524,288 tokens, "
      "and what is estimated",
      TableKind::Measured, specprefill_ttft};
}

}  // namespace kvcast::reports
