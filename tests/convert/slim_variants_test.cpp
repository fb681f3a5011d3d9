// Slim attention's forms over the families and ways of running that its other tests leave out.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/config/slim_forms.h"
#include "model/convert/slim_check.h"
#include "tests/convert/slim_cases.h"
#include "tests/model/message_of.h"

namespace kvcast::slim_cases {
namespace {

/// Of [outer, inner, vocab_size] the same as [inner, outer, vocab_size].
std::vector<double> swapped(const std::vector<double>& x, std::size_t outer, std::size_t inner) {
  const std::size_t row = x.size() / outer / inner;
  std::vector<double> y;
  for (std::size_t i = 0; i < inner; ++i) {
    for (std::size_t o = 0; o < outer; ++o) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>((o * inner + i) * row);
      y.insert(y.end(), first, first + static_cast<std::ptrdiff_t>(row));
    }
  }
  return y;
}

/// All tokens in one pass, against the first in one pass and every other in a decode step.
void check_steps(const Case& c, const std::string& option) {
  const Checkpoint checkpoint = converted(c, option);
  Request whole = c.request;
  whole.output_len = 1;
  const std::size_t batch = whole.tokens.size();
  const std::size_t length = whole.tokens.front().size();
  REQUIRE(length > 2);
  Request steps = whole;
  steps.output_len = length;
  for (std::vector<TokenId>& sequence : steps.tokens) {
    steps.continuation.emplace_back(sequence.begin() + 1, sequence.end());
    sequence.resize(1);
  }
  const Outcome vanilla = run(c.checkpoint, whole, {});
  for (const char* method : {"slim", "slim:order=unoptimized"}) {
    CAPTURE(c.name);
    CAPTURE(option);
    CAPTURE(method);
    const SessionOptions o = slim_session(method, Kernels::Fused);
    const Outcome once = run(checkpoint, whole, o);
    const Outcome stepped = run(checkpoint, steps, o);
    CHECK(relative_difference(once.logits, vanilla.logits) < 1e-10);
    CHECK(relative_difference(swapped(stepped.logits, length, batch), once.logits) < 1e-10);
  }
}

TEST_CASE("slim: decode steps give the logits of one pass over all tokens, decoder-only") {
  const std::vector<Case> cases = random_cases();
  check_steps(cases[0], "kcache");  // d/2 < e < d
  check_steps(cases[1], "vcache");  // e > d
  check_steps(cases[2], "kcache");  // normalised keys
  check_steps(cases[2], "vcache");
  check_steps(oracle_case("llama_mha"), "kcache");
  check_steps(oracle_case("gpt_neox"), "vcache");
  for (const char* option : {"kcache", "vcache", "xcache"}) check_steps(oracle_case("opt"), option);
}

TEST_CASE("slim: decode steps give the logits of one pass over all tokens, encoder-decoder") {
  for (const char* name : {"t5", "whisper"}) {
    for (const char* option : {"encdec1", "encdec2", "hybrid", "vcache", "xcache"}) {
      check_steps(oracle_case(name), option);
    }
  }
}

/// Every logit of a request in fp32.
std::vector<double> fast_logits(const Checkpoint& checkpoint, Request request, SessionOptions o) {
  o.logits = Logits::All;
  o.decoder_tokens = request.tokens.front().size();
  std::vector<double> logits;
  request.on_node = [&](const Graph& graph, const execute::NodeRun& node_run,
                        std::span<const std::uint64_t>) {
    if (graph.nodes()[node_run.node].label != "head") return;
    const execute::Operand& out = node_run.call->output;
    logits.insert(logits.end(), out.data, out.data + out.shape.elements());
  };
  Session(checkpoint, o).run(request);
  return logits;
}

TEST_CASE("slim: fp32 of OLMo, Phi-3, CodeGemma, OpenELM and grouped heads, 1e-4 of the range") {
  std::vector<Case> cases = random_cases();
  cases.push_back(oracle_case("olmo"));
  for (Case& c : cases) {
    CAPTURE(c.name);
    const Outcome vanilla = run(c.checkpoint, c.request, {});
    const Checkpoint checkpoint = converted(c, "kcache");
    Request request = c.request;
    for (std::vector<TokenId> tokens : vanilla.tokens) {
      tokens.pop_back();
      request.continuation.push_back(tokens);
    }
    for (const char* method : {"slim", "slim:order=unoptimized"}) {
      for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
        CAPTURE(method);
        const std::vector<double> logits =
            fast_logits(checkpoint, request, slim_session(method, kernels));
        CHECK(relative_difference(logits, vanilla.logits) < 1e-4);
      }
    }
  }
}

TEST_CASE("slim: normalised keys are kept as they were before, and never turned back or skipped") {
  const Case c = random_cases()[2];
  const auto method = [&](const char* text) {
    return message_of([&] { record(c.checkpoint.architecture(), parse_methods(text), {}); });
  };
  CHECK(method("slim:option=kcache,rope=unrotate").find("a normalised key has lost its length") !=
        std::string::npos);
  CHECK(method("slim:option=vcache,threshold=0.1").find("sums whole rows of one cache") !=
        std::string::npos);
  // A norm between inputs and scores: each step computes all keys.
  Architecture a = oracle_case("opt").checkpoint.architecture();
  CHECK(!computes_keys(a, 0, SlimSite::Self, CacheForm::Inputs));
  a.decoder.query_key_norm = QueryKeyNorm::Heads;
  CHECK(computes_keys(a, 0, SlimSite::Self, CacheForm::Inputs));
  CHECK(!computes_keys(a, 0, SlimSite::Self, CacheForm::Keys));

  // What lies in the cache are keys before their norm: the norm comes after the append.
  const Recording slim =
      record(c.checkpoint.architecture(), parse_methods("slim:option=kcache"), {});
  bool is_appended = false;
  std::size_t norms = 0;
  for (const Node& node : slim.decode().nodes()) {
    if (node.layer != 0) continue;
    if (std::holds_alternative<CacheAppend>(node.op)) is_appended = true;
    if (node.label == "key_norm") {
      CHECK(is_appended);
      ++norms;
    }
  }
  CHECK(norms == 1);
}

// run() holds each node's skipped pairs, rows and FLOPs against the probabilities that it read, and
// its counted work against the analytic work less that.
TEST_CASE("slim: a threshold skips pairs, also of rotated keys, and the work they saved is exact") {
  struct Sparse {
    FormOf form;
    const char* threshold;
    std::uint64_t least;  ///< 1 / the share of pairs that it skips at least
    const char* rope = "";
  };
  constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  for (const Sparse& s : {Sparse{{"gpt_neox", "kcache"}, "0.08", 20},
                          {{"gpt_neox", "kcache"}, "0.08", 20, ",rope=unrotate"},
                          {{"opt", "kcache"}, "0.08", 20},
                          {{"opt", "kcache"}, "0.08", 20, ",rope=unrotate"},
                          {{"whisper", "kcache"}, "0.08", 20},
                          {{"whisper", "kcache"}, "0.08", 20, ",rope=unrotate"},
                          {{"opt", "vcache"}, "0.02", any},
                          {{"opt", "xcache"}, "0.02", any},
                          {{"gpt2", "vcache"}, "0.02", any},
                          {{"t5", "xcache"}, "0.02", any},
                          {{"t5", "encdec2"}, "0.02", any},
                          {{"whisper", "vcache"}, "0.02", any},
                          {{"whisper", "xcache"}, "0.02", any},
                          {{"whisper", "encdec2"}, "0.02", any},
                          {{"whisper", "hybrid"}, "0.02", any}}) {
    CAPTURE(s.form.name);
    CAPTURE(s.form.option);
    CAPTURE(s.rope);
    const Case c = oracle_case(s.form.name);
    const Checkpoint checkpoint = converted(c, s.form.option);
    const Outcome vanilla = run(c.checkpoint, c.request, {});
    const auto session = [&](const std::string& threshold) {
      return slim_session("slim:threshold=" + threshold + s.rope, Kernels::Fused);
    };
    const Outcome all = run(checkpoint, c.request, session("1e-300"));
    CHECK(all.skipped.all_pairs > 0);
    CHECK(all.skipped.pairs == 0);
    CHECK(all.skipped.flops == 0);
    CHECK(relative_difference(all.logits, vanilla.logits) < 1e-10);

    const Outcome few = run(checkpoint, c.request, session(s.threshold));
    CHECK(few.skipped.all_pairs == all.skipped.all_pairs);
    CHECK(few.skipped.pairs > few.skipped.all_pairs / s.least);
    CHECK(few.skipped.pairs < few.skipped.all_pairs);
    CHECK(few.skipped.flops > 0);
    CHECK(relative_difference(few.logits, vanilla.logits) > 1e-10);

    SessionOptions o = session(s.threshold);
    o.decoder_tokens = c.request.tokens.front().size();
    const Generation fast = Session(checkpoint, o).run(c.request);
    CHECK(fast.tokens == few.tokens);
    CHECK(fast.skipped.pairs == few.skipped.pairs);
    CHECK(fast.skipped.all_pairs == few.skipped.all_pairs);
  }
}

/// What a conversion does to the logits.
LogitComparison logits_after(const Case& c, const std::string& option, DType dtype,
                             double max_error) {
  const std::filesystem::path folder = test_folder() / (c.name + "_logits");
  std::filesystem::remove_all(folder);
  SlimConversion conversion = conversion_of(c, option);
  conversion.dtype = dtype;
  conversion.max_error = max_error;
  convert_to_slim(c.checkpoint, folder, conversion);
  return compare_logits(c.checkpoint, Checkpoint(folder), c.request);
}

TEST_CASE("slim: the automatic choice keeps the logits within its limit, keys alone do not") {
  const double limit = 0.05;
  for (const char* name : {"gpt_neox", "opt", "whisper", "t5"}) {
    const Case c = oracle_case(name);
    for (const DType dtype : {DType::FP32, DType::FP16, DType::BF16}) {
      CAPTURE(c.name);
      CAPTURE(kvcast::name(dtype));
      const LogitComparison logits = logits_after(c, "auto", dtype, limit);
      // The prompt's positions, the last of which gives the first of 16 tokens.
      CHECK(logits.positions == c.request.tokens.size() * (c.request.tokens.front().size() + 15));
      CHECK(logits.same > logits.positions * 3 / 4);
      CHECK(logits.relative_error > 0);
      CHECK(logits.relative_error < (dtype == DType::FP32 ? 1e-4 : limit));
      if (dtype != DType::BF16) continue;
      CHECK(logits_after(c, "kcache", dtype, 1e9).relative_error > logits.relative_error);
    }
  }
}

}  // namespace
}  // namespace kvcast::slim_cases
