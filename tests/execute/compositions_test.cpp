// Prompt methods on models that other methods have made.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

const std::vector<std::string> prompt_methods{"specprefill:keep=0.5,lookahead=3,chunk=2,pool=3",
                                              "static-prune:keep=0.5,probe=1",
                                              "random-prune:keep=0.5"};

Generation run_with(const Checkpoint& checkpoint, const Request& request,
                    const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  return Session(checkpoint, o).run(request);
}

/// Runs and counts: the work of every pass is what estimates say it is.
void check_work(const Checkpoint& checkpoint, const Request& request, const std::string& methods) {
  for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
    CAPTURE(methods);
    const Generation fast =
        run_with(checkpoint, request, methods, {.attention = kernels, .elementwise = kernels});
    const Generation counted =
        run_with(checkpoint, request, methods,
                 {.attention = kernels, .elementwise = kernels, .loops = Loops::Counting});
    CHECK(counted.counted.flops == counted.analytic_flops);
    CHECK(counted.counted.bytes() == counted.analytic_bytes);
    CHECK(fast.analytic_flops == counted.analytic_flops);
    CHECK(fast.kept == counted.kept);
    CHECK(fast.tokens == counted.tokens);
  }
}

std::string with_all_kept(std::string method) { return method.replace(method.find("0.5"), 3, "1"); }

TEST_CASE("compositions: prompts of a converted MLKV model can be pruned") {
  for (const char* name : {"mlkv_neox", "mlkv_llama"}) {
    const OracleCase c(name);
    const Request request = c.request(c.prompt, 6);
    const Generation plain = run_with(c.checkpoint, request, "plain");
    for (const std::string& method : prompt_methods) {
      CAPTURE(name);
      check_work(c.checkpoint, request, method);
      CHECK(run_with(c.checkpoint, request, with_all_kept(method)).tokens == plain.tokens);
    }
  }
}

TEST_CASE("compositions: mlkv spelled beside a prompt method is the model that it would make") {
  const OracleCase c("mlkv_llama");
  const Architecture& a = c.checkpoint.architecture();
  const std::string heads = std::to_string(a.decoder.layers[0].heads.num_key_value_heads);
  const std::string layers = std::to_string(a.decoder.num_key_value_layers);
  const Request request = c.request(c.prompt, 6);
  for (const std::string& method : prompt_methods) {
    CAPTURE(method);
    const std::string both = method + "+mlkv:layers=" + layers + ",heads=" + heads;
    CHECK(run_with(c.checkpoint, request, both).tokens ==
          run_with(c.checkpoint, request, method).tokens);
  }
}

// Learned positions are in the tokens' states: a kept token's key has no place to be rotated to.
TEST_CASE("compositions: prompts of a Slim model with learned positions can be pruned") {
  for (const char* name : {"opt", "gpt2"}) {
    const OracleCase c(name);
    const Checkpoint random(c.checkpoint.architecture(), 3);
    const Request request = c.request(c.prompt, 6);
    const Generation slim = run_with(random, request, "slim:option=kcache");
    for (const char* method :
         {"random-prune:keep=0.5", "specprefill:keep=0.5,lookahead=2,speculator=PLAIN"}) {
      CAPTURE(name);
      std::string both = std::string(method) + "+slim:option=kcache";
      const auto speculator = both.find("PLAIN");
      if (speculator != std::string::npos) both.replace(speculator, 5, c.folder.string());
      check_work(random, request, both);
      CHECK(run_with(random, request, with_all_kept(both)).tokens == slim.tokens);
    }
  }
}

TEST_CASE("compositions: what makes no sense together is refused in one line") {
  const auto says = [](const std::string& name, const std::string& methods,
                       const std::string& words) {
    const OracleCase c(name);
    const std::string line = message_of([&] {
      record(Checkpoint(c.checkpoint.architecture(), 1).architecture(), parse_methods(methods), {});
    });
    CAPTURE(methods);
    CAPTURE(line);
    CHECK(line.find(words) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  for (const char* prune : {"random-prune:keep=0.5", "specprefill:keep=0.5",
                            "specprefill:keep=0.5,reuse=kept", "lazyllm:begin=0.8,end=0.4"}) {
    // Rotated by places in the cache, which are not those in the text.
    says("llama_mha", std::string(prune) + "+slim:option=kcache", "cannot be combined");
  }
  for (const char* own : {"specprefill:keep=0.5", "static-prune:keep=0.5"}) {
    says("gpt2", std::string(own) + "+slim:option=kcache", "selects the prompt tokens itself");
  }
  says("gpt2", "lazyllm:begin=0.8,end=0.4+slim:option=kcache", "cannot be combined");
  says("mlkv_llama", "lazyllm:begin=0.8,end=0.4", "read the keys and values of others");
  says("mlkv_llama", "specprefill:keep=0.5,reuse=kept", "read the keys and values of others");
}

// The reused cache is of the base itself. With all tokens kept that is the plain model's.
TEST_CASE("specprefill: a reused cache of all tokens gives what a prefill gives") {
  for (const char* name : {"llama_gqa_llama3_rope", "gpt2", "gpt_neox"}) {
    const OracleCase c(name);
    const Request request = c.request(c.prompt, 9);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      const SessionOptions o{.attention = kernels, .elementwise = kernels};
      const Generation plain = run_with(c.checkpoint, request, "plain", o);
      const Generation reused =
          run_with(c.checkpoint, request, "specprefill:keep=1,lookahead=3,reuse=kept", o);
      CHECK(reused.tokens == plain.tokens);
      REQUIRE(reused.logits.size() == plain.logits.size());
      CHECK(relative_difference(reused.logits, plain.logits) < 1e-5);  // fp32, other row counts
    }
    for (const char* method : {"specprefill:keep=0.5,lookahead=3,reuse=kept",
                               "specprefill:keep=0.5,lookahead=1,chunk=4,reuse=kept",
                               "specprefill:keep=0.01,lookahead=2,reuse=kept"}) {
      check_work(c.checkpoint, c.request({c.prompt[0]}, 4), method);
    }
  }
}

TEST_CASE(
    "specprefill: reuse chooses the same tokens and spares all of the base's prefill but one") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Request request = c.request(c.prompt, 3);
  const Generation own = run_with(c.checkpoint, request, "specprefill:keep=0.5,lookahead=2");
  const Session session(c.checkpoint,
                        {.methods = parse_methods("specprefill:keep=0.5,lookahead=2,reuse=kept")});
  const Generation reused = session.run(request);
  CHECK(reused.kept == own.kept);
  CHECK(reused.importance == own.importance);
  CHECK(reused.kv_cache_bytes == own.kv_cache_bytes);
  for (const Node& node : session.recording().prefill().nodes()) {
    if (!std::holds_alternative<Linear>(node.op)) continue;
    CHECK(session.recording().prefill().tensor(node.output()).shape[1] == Count(1));
  }
}

TEST_CASE("specprefill: another model's cache is not the base's") {
  const OracleCase c("llama_mha");
  const OracleCase other("llama_gqa_llama3_rope");
  const auto line = [&](const std::string& methods, SessionOptions o = {}) {
    o.open = [&](const std::string&) { return other.checkpoint; };
    return message_of([&] {
      o.methods = parse_methods(methods);
      Session(c.checkpoint, o).run(c.request({c.prompt[0]}, 2));
    });
  };
  CHECK(line("specprefill:keep=0.5,speculator=x,reuse=kept")
            .find("only the base model's own cache") != std::string::npos);
  CHECK(line("specprefill:keep=0.5,reuse=all").find("none") != std::string::npos);
  CHECK(line("specprefill:keep=0.5,reuse=kept", {.logits = Logits::All})
            .find("last position's logits") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
