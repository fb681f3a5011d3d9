#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/execute/generate.h"
#include "model/record/recording.h"
#include "reports/reproduce/quantities.h"
#include "reports/reproduce/specprefill_server.h"
#include "roofline/forecast.h"

namespace kvcast::reports {
namespace {

using execute::TokenId;
using roofline::DesignPoint;
using roofline::Forecaster;
using roofline::Hardware;

/// Ours: a Llama small enough to read a thousand prompts at once; positions are the same in any.
constexpr std::uint64_t vocab_size = 64;
const std::vector<ConfigOverride> small_shape{
    {"hidden_size", "16"},        {"intermediate_size", "16"},
    {"num_attention_heads", "2"}, {"num_key_value_heads", "1"},
    {"num_hidden_layers", "1"},   {"vocab_size", std::to_string(vocab_size)}};
constexpr std::size_t prompts_at_once = 1024;
/// A set of 5 tokens of 10 is one of 252: that none of 64 x 1024 prompts keeps it is a mistake.
constexpr int most_tries = 64;

/// What a run told the base model about where its tokens stand.
struct Positions {
  std::vector<std::uint64_t> prefill;
  std::vector<std::uint64_t> decode;  ///< one each step
};

Positions positions_of_run(const execute::Session& session, execute::Request request) {
  Positions found;
  request.on_node = [&](const Graph& graph, const execute::NodeRun& node,
                        std::span<const std::uint64_t>) {
    const execute::Call& call = *node.call;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (graph.tensor(call.node.inputs[i]).name != "positions") continue;
      const float* const places = call.inputs[i].data;
      const std::vector<std::uint64_t> all(places, places + call.inputs[i].shape.elements());
      if (&graph == &session.recording().prefill()) {
        found.prefill = all;
      } else if (found.decode.empty() || found.decode.back() != all.front()) {
        found.decode.push_back(all.front());
      }
    }
  };
  session.run(request);
  return found;
}

/// A prompt of which the session keeps the tokens at these positions.
std::vector<TokenId> prompt_that_keeps(const execute::Session& session,
                                       const std::vector<std::uint64_t>& kept, std::size_t length) {
  std::mt19937_64 random(1);
  for (int i = 0; i < most_tries; ++i) {
    execute::Request request;
    request.tokens.resize(prompts_at_once, std::vector<TokenId>(length));
    for (auto& prompt : request.tokens) {
      for (TokenId& id : prompt) id = static_cast<TokenId>(random() % vocab_size);
    }
    const std::vector<std::vector<std::uint64_t>> all = session.run(request).kept;
    const auto found = std::find(all.begin(), all.end(), kept);
    if (found != all.end()) return request.tokens[static_cast<std::size_t>(found - all.begin())];
  }
  throw Error("specprefill_position_id_example.csv",
              fmt::format("tokens that are kept in none of {} prompts",
                          prompts_at_once * static_cast<std::size_t>(most_tries)),
              "as many as a share of the prompt, in ascending order");
}

using PositionsOf = std::map<std::string, std::vector<std::uint64_t>>;

/// Section 3.2.4 names the tokens that were kept, not the prompt. So a small model with random
/// weights reads prompts until it keeps those by itself; the positions are what its base model is
/// then told, in prefill and in each decode step.
PositionsOf example_positions(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_position_id_example.csv");
  PositionsOf printed;
  std::uint64_t output_len = 1;
  for (const CsvRow& row : table.rows()) {
    printed[row.text("sequence")].push_back(row.whole("position_id"));
    if (row.text("is_decoded_token") == "yes") ++output_len;
  }
  const std::size_t length = printed["original_prompt"].size();
  const std::vector<std::uint64_t>& kept = printed["kept_prompt"];

  const Checkpoint checkpoint(load_model(catalog, "llama-3.1-8b", small_shape), 1);
  const auto session_of = [&](double keep) {
    execute::SessionOptions options;
    options.methods = parse_methods(fmt::format("specprefill:keep={},lookahead=1", keep));
    return execute::Session(checkpoint, options);
  };
  const execute::Session session =
      session_of(static_cast<double>(kept.size()) / static_cast<double>(length));
  execute::Request request;
  request.tokens = {prompt_that_keeps(session, kept, length)};
  request.output_len = output_len;
  const Positions pruned = positions_of_run(session, request);
  request.output_len = 1;
  std::map<std::string, std::vector<std::uint64_t>> ours{
      {"original_prompt", positions_of_run(session_of(1), request).prefill},
      {"kept_prompt", pruned.prefill},
      {"decoding", pruned.prefill}};
  ours["decoding"].insert(ours["decoding"].end(), pruned.decode.begin(), pruned.decode.end());
  return ours;
}

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

/// Forecasts of both models, each in its own dtype.
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
    return {.find_model = find_model_in(catalog)};
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

/// The cases that a table's rows ask for, each with its curve.
class Serving {
 public:
  explicit Serving(const Catalog& catalog) : experiment_(catalog) {}

  const ServingCategory& category(const std::string& name) { return experiment_.category(name); }
  const ServedCurve& curve(const QuantityArguments& a) { return at(a).curve; }
  /// Of the curve, or beyond its end.
  const ServedPoint& point(const QuantityArguments& a, double qps) {
    Known& known = at(a);
    for (const ServedPoint& p : known.curve.points) {
      if (std::abs(p.qps - qps) < tolerance * qps) return p;
    }
    return remembered(known.beyond, qps, [&] { return known.served->at(qps); });
  }

 private:
  /// Rates of a grid are sums of decimals.
  static constexpr double tolerance = 1e-9;
  struct Known {
    std::unique_ptr<ServedCase> served;
    ServedCurve curve;
    std::map<double, ServedPoint> beyond;
  };

  /// Arguments (category, base model, plain or specprefill).
  Known& at(const QuantityArguments& a) {
    const bool prunes = a.word(2) == "specprefill";
    if (!prunes && a.word(2) != "plain")
      throw unknown_name("method", a.word(2), {"plain", "specprefill"});
    return remembered(known_, a.word(0) + "/" + a.word(1) + "/" + a.word(2), [&] {
      Known known;
      known.served = std::make_unique<ServedCase>(
          experiment_,
          ServingCase{.category = a.word(0), .base_model = a.word(1), .prunes = prunes});
      known.curve = known.served->curve();
      return known;
    });
  }

  const ServingExperiment experiment_;
  std::map<std::string, Known> known_;
};

}  // namespace

void add_specprefill_quantities(const Catalog& catalog, Quantities& all) {
  const auto positions = std::make_shared<PositionsOf>();
  // (sequence of the example, index of its token)
  all["example_position"] = [&catalog, positions](const QuantityArguments& a) {
    if (positions->empty()) *positions = example_positions(catalog);
    const std::vector<std::uint64_t>& of_run = (*positions)[a.word(0)];
    if (a.whole(1) >= of_run.size()) {
      throw Error(a.place(), std::to_string(a.whole(1)),
                  fmt::format("below the {} tokens of the run", of_run.size()));
    }
    return Count(of_run[a.whole(1)]);
  };
  const auto pairs = std::make_shared<std::map<std::string, std::unique_ptr<Pair>>>();
  // (plain or method, computing or all, device, degree, model, speculator, method, batch, prompt):
  // a tensor-parallel group, the base in fp8 and the speculator in bf16
  all["group_ttft_s"] = [&catalog, pairs](const QuantityArguments& a) {
    std::unique_ptr<Pair>& pair =
        (*pairs)[fmt::format("{} {} {} {}", a.word(2), a.whole(3), a.word(4), a.word(6))];
    if (pair == nullptr) {
      pair = std::make_unique<Pair>(catalog,
                                    Group(roofline::load_hardware(catalog, a.word(2)), a.whole(3)),
                                    a.word(5), a.word(4), a.word(6));
    }
    const DesignPoint point{a.whole(7), a.whole(8), 1};
    const Ttft ttft = a.word(0) == "plain" ? pair->plain(point) : pair->pruned(point);
    return a.word(1) == "computing" ? ttft.computing : ttft.computing + ttft.messages;
  };
  const auto served = std::make_shared<std::unique_ptr<Serving>>();
  const auto serving = [&catalog, served]() -> Serving& {
    if (*served == nullptr) *served = std::make_unique<Serving>(catalog);
    return **served;
  };
  // (category, model, plain or specprefill, rate): seconds, of the requests that succeed
  all["serving_mean_s"] = [serving](const QuantityArguments& a) {
    return serving().point(a, a.number(3)).mean_s;
  };
  // (the same): what to say of a rate at which ours fails
  all["serving_fails"] = [serving](const QuantityArguments& a) {
    return std::string(serving().point(a, a.number(3)).holds ? "" : " (ours fails)");
  };
  // (category): what to say of chats, whose answers may end long before their longest
  all["serving_open"] = [serving](const QuantityArguments& a) {
    return std::string(serving().category(a.word(0)).is_chat ? " (outputs unknown)" : "");
  };
  // (category, model, plain or specprefill): the last rate of the grid before one fails
  all["serving_highest_qps"] = [serving](const QuantityArguments& a) {
    return serving().curve(a).last_good_qps;
  };
}

}  // namespace kvcast::reports
