// Which methods run on which kinds of models: with nothing left out they give plain's logits, with
// something left out they do the work that is counted, and what has no meaning is refused with the
// reason. For kvr and tsp see rank_run_test.cpp, for slim and mlkv the tests of their conversions.
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

/// One or two checkpoints of each kind.
const std::vector<std::string> kinds{
    "qwen3",             // a norm of each key head
    "olmo2",             // a norm of all keys
    "hunyuan_v1_dense",  // a norm of each key head after its rotation
    "granite",           // multipliers
    "smollm3",           // a layer without rotation
    "gemma3_text",       // windows, rotations of two bases
    "cohere2",           // windows beside full layers without rotation
    "starcoder2",        // windows in all layers
    "gpt_oss",           // windows, sinks, experts
    "mixtral",           // windows in all layers, experts
    "granitemoe",        // experts
    "llama4_text",       // chunks, full layers without rotation but with temperature, experts
    "deepseek_v3",       // latents, experts
    "minicpm3",          // latents
    // Streams, inputs of each layer, values with a norm:
    "gemma3n_text",       // windows; layers on keys and values of others
    "gemma3n_text_full",  // the same without windows
    "gemma3n_text_own",   // windows; keys and values of each layer's own
};

/// A method's refusals: kinds and what the message says.
using Refusals = std::map<std::string, std::string>;

Refusals all_of(std::initializer_list<const char*> names, const std::string& words) {
  Refusals refusals;
  for (const char* name : names) refusals[name] = words;
  return refusals;
}

/// No layer compares all tokens.
const Refusals windowed = all_of({"starcoder2", "mixtral"}, "whose layers all have windows");

struct Row {
  std::string method;
  std::string all_kept;  ///< the same with nothing left out
  Refusals refused;
  Refusals refused_all_kept = {};
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    Refusals streaming = all_of({"starcoder2", "mixtral"}, "at most the model's own window of 9");
    const Refusals shared = all_of({"gemma3n_text", "gemma3n_text_full"},
                                   "where layers read the keys and values of others");
    streaming.insert(shared.begin(), shared.end());
    Refusals reuse = windowed;
    Refusals flow = shared;
    flow["gemma3n_text_own"] = "whose layers each read an input of their own for every token";
    reuse.insert(flow.begin(), flow.end());
    Refusals probed = windowed;
    probed["gemma3n_text_own"] =
        "the probed layers of gemma3n_text_own, whose layers all have windows";
    return std::vector<Row>{
        {"streaming:sinks=2,window=8", "streaming:sinks=2,window=62", streaming, streaming},
        {"random-prune:keep=0.5", "random-prune:keep=1", {}},
        {"static-prune:keep=0.5,probe=0.6", "static-prune:keep=1,probe=0.6", probed},
        {"specprefill:keep=0.5,lookahead=3", "specprefill:keep=1,lookahead=3", windowed},
        {"specprefill:keep=0.5,lookahead=1", "specprefill:keep=1,lookahead=1", windowed},
        {"specprefill:keep=0.5,lookahead=3,reuse=kept", "specprefill:keep=1,lookahead=3,reuse=kept",
         reuse, flow},
        {"lazyllm:begin=0.8,end=0.4,from=0.2,to=0.9", "lazyllm:begin=1,end=1", reuse, flow}};
  }();
  return all;
}

Generation run_with(const OracleCase& c, const std::string& methods, SessionOptions o,
                    std::uint64_t output_len = 8) {
  o.methods = parse_methods(methods);
  return Session(c.checkpoint, o).run(c.request(c.prompt, output_len));
}

/// Whether the method is refused; then its message is checked.
bool is_refused(const OracleCase& c, const std::string& kind, const std::string& method,
                const Refusals& refused) {
  const auto found = refused.find(kind);
  const std::string line =
      message_of([&] { record(c.checkpoint.architecture(), parse_methods(method), {}); });
  CAPTURE(line);
  if (found == refused.end()) {
    const bool runs = line == "(no Error was thrown)";
    CHECK(runs);
    return !runs;
  }
  CHECK(line.find(found->second) != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
  return true;
}

/// Calls `check` with every kind, row and both kinds of kernels.
template <typename Check>
void for_all(Check check) {
  for (const std::string& kind : kinds) {
    const OracleCase c(kind);
    CAPTURE(kind);
    for (const Row& row : rows()) {
      CAPTURE(row.method);
      for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
        CAPTURE(kernels == Kernels::Eager);
        check(c, kind, row, SessionOptions{.attention = kernels, .elementwise = kernels});
      }
    }
  }
}

TEST_CASE("methods of models: with nothing left out, plain's logits and tokens") {
  for_all([](const OracleCase& c, const std::string& kind, const Row& row, SessionOptions o) {
    if (is_refused(c, kind, row.all_kept, row.refused_all_kept)) return;
    const Generation plain = run_with(c, "plain", o);
    const Generation g = run_with(c, row.all_kept, o);
    CHECK(g.tokens == plain.tokens);
    REQUIRE(g.logits.size() == plain.logits.size());
    CHECK(relative_difference(g.logits, plain.logits) < 1e-5);  // fp32, other row counts
  });
}

TEST_CASE("methods of models: what runs does the counted work, and what does not says why") {
  for_all([](const OracleCase& c, const std::string& kind, const Row& row, SessionOptions o) {
    if (is_refused(c, kind, row.method, row.refused)) return;
    const Generation fast = run_with(c, row.method, o, 12);
    o.loops = Loops::Counting;
    const Generation counted = run_with(c, row.method, o, 12);
    CHECK(counted.counted.flops == counted.analytic_flops);
    CHECK(counted.counted.bytes() == counted.analytic_bytes);
    CHECK(fast.kept == counted.kept);
    CHECK(fast.tokens == counted.tokens);
  });
}

}  // namespace
}  // namespace kvcast::execute
