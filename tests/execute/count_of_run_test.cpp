#include <doctest/doctest.h>

#include "tests/execute/analytic_work.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

/// Runs prefill and decode steps in counting mode and compares every operator.
void check_counts(const OracleCase& c, SessionOptions o) {
  o.loops = Loops::Counting;
  o.decoder_tokens = c.prompt[0].size();
  const Checkpoint checkpoint = checkpoint_for(c, o.methods);
  const Session session(checkpoint, o);
  Request request = c.request(c.prompt, 5);
  std::size_t nodes = 0;
  request.on_node = [&](const Graph& graph, const NodeRun& run,
                        std::span<const std::uint64_t> symbols) {
    const Node& node = graph.nodes()[run.node];
    check_counted(node, *run.counted, work(graph, node), symbols);
    ++nodes;
  };
  const Generation g = session.run(request);
  CHECK(nodes > 0);
  CHECK(g.counted.flops == g.analytic_flops);
  CHECK(g.counted.bytes() == g.analytic_bytes);
}

TEST_CASE("count: every operator of every family does the work that the recorder says") {
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    for (const Kernels attention : {Kernels::Fused, Kernels::Eager}) {
      for (const Logits logits : {Logits::Last, Logits::All}) {
        CAPTURE(name);
        CAPTURE(attention == Kernels::Eager);
        check_counts(c, {.attention = attention, .elementwise = attention, .logits = logits});
      }
    }
  }
}

TEST_CASE("count: in fp64 every operator moves the bytes of 8-byte numbers") {
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      CAPTURE(kernels == Kernels::Eager);
      check_counts(c, {.attention = kernels, .elementwise = kernels, .dtype = DType::FP64});
    }
  }
  const OracleCase c("llama_gqa_llama3_rope");
  check_counts(c, {.dtype = DType::FP64, .chunk = 4});
  for (const Method& method : methods()) {
    if (method.kind == MethodKind::Placement) continue;
    CAPTURE(method.example);
    const std::vector<MethodSpec> specs = parse_methods(method.example);
    check_counts(OracleCase(case_for(specs)), {.methods = specs, .dtype = DType::FP64});
  }
}

TEST_CASE("count: the auxiliary's logits of all positions") {
  const auto specs = parse_methods("kvp:auxiliary=lp-0.50");
  for (const Logits logits : {Logits::Last, Logits::All}) {
    check_counts(OracleCase(case_for(specs)), {.methods = specs, .logits = logits});
  }
}

TEST_CASE("count: eager attention with fused norms, and a prompt in chunks") {
  const OracleCase c("llama_gqa_llama3_rope");
  check_counts(c, {.attention = Kernels::Eager, .elementwise = Kernels::Fused});
  check_counts(c, {.attention = Kernels::Fused, .elementwise = Kernels::Eager});
  check_counts(c, {.chunk = 4});
}

TEST_CASE("count: rows that no logits need are neither computed nor counted") {
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      CAPTURE(kernels == Kernels::Eager);
      check_counts(c, {.attention = kernels, .elementwise = kernels, .skip_unread_rows = true});
    }
  }
}

TEST_CASE("count: an MLKV model with the released semantics, in one piece and in chunks") {
  for (const char* name : {"mlkv_neox", "mlkv_llama"}) {
    const OracleCase c(name);
    const std::uint64_t heads =
        c.checkpoint.architecture().decoder.layers[0].heads.num_key_value_heads;
    const auto methods =
        parse_methods("mlkv:layers=2,semantics=released,heads=" + std::to_string(heads));
    for (const Kernels attention : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      check_counts(c, {.methods = methods, .attention = attention, .elementwise = attention});
      check_counts(
          c, {.methods = methods, .attention = attention, .elementwise = attention, .chunk = 5});
    }
  }
}

// A method needs no test of its own here: what a user can write runs, and does what it is costed
// as.
TEST_CASE("count: every method that runs does the work that the recorder says") {
  for (const Method& method : methods()) {
    if (method.kind == MethodKind::Placement) continue;
    const OracleCase c(case_for(parse_methods(method.example)));
    for (const Kernels attention : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(method.example);
      check_counts(c, {.methods = parse_methods(method.example),
                       .attention = attention,
                       .elementwise = attention});
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
