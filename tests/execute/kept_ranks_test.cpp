// Ranks that share the kept tokens of a pruned prompt give what one process gives.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/rank_run.h"
#include "model/record/rank_recording.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

using Parts = std::vector<std::uint64_t>;

const std::vector<std::string> prompt_methods{"random-prune:keep=0.5,seed=3",
                                              "static-prune:keep=0.5,probe=1",
                                              "specprefill:keep=0.5,lookahead=3,pool=3"};

constexpr std::uint64_t prompt_len = 23;
const std::vector<Parts> partitions{{12}, {7, 5}, {1, 10, 1}, {4, 3, 3, 2}};  // of 12 of 23

Request request_of(const Architecture& a, std::uint64_t output_len = 4) {
  Request request;
  const std::vector<TokenId> first = made_up_prompt(prompt_len, a.vocab_size);
  request.tokens = {first, {first.rbegin(), first.rend()}};
  request.output_len = output_len;
  return request;
}

RankRun run_shared(const Checkpoint& checkpoint, SessionOptions o, const std::string& methods,
                   const Parts& parts) {
  o.methods = parse_methods(methods);
  return run_ranks(checkpoint, o, parts,
                   [&](std::size_t) { return request_of(checkpoint.architecture()); });
}

TEST_CASE("ranks: of a pruned prompt they share the kept tokens") {
  for (const char* name : {"llama_gqa_llama3_rope", "gpt2", "openelm", "deepseek_v32"}) {
    const Checkpoint model(oracle_folder() / name);
    for (const std::string& method : prompt_methods) {
      for (const Logits logits : {Logits::Last, Logits::All}) {
        SessionOptions o{.methods = parse_methods(method), .logits = logits};
        o.dtype = DType::FP64;
        const Generation one = Session(model, o).run(request_of(model.architecture()));
        REQUIRE(one.kept.at(0).size() == 12);
        for (const Parts& parts : partitions) {
          for (const std::string placement : {"kvr:p=", "tsp:p="}) {
            const std::string both = method + "+" + placement + std::to_string(parts.size());
            CAPTURE(name);
            CAPTURE(both);
            const Generation g = run_shared(model, o, both, parts).generation;
            CHECK(g.kept == one.kept);
            CHECK(g.tokens == one.tokens);
            CHECK(g.kv_cache_bytes == one.kv_cache_bytes);
            const std::vector<double> ours = logits_of(g), expected = logits_of(one);
            REQUIRE(ours.size() == expected.size());
            CHECK(relative_difference(std::span<const double>(ours),
                                      std::span<const double>(expected)) < 1e-10);
            CHECK(g.counted.flops == g.analytic_flops);
            CHECK(g.counted.bytes() == g.analytic_bytes);
          }
        }
      }
    }
  }
}

// 2 layers, 3 heads of keys and of values, 8 wide, fp32: 384 bytes a token of each of 2 sequences.
TEST_CASE("ranks: nothing but keys and values of kept tokens is sent") {
  const Checkpoint model(oracle_folder() / "llama_mha");
  REQUIRE(model.architecture().decoder.layers[0].heads.num_key_value_heads == 3);
  REQUIRE(model.architecture().decoder.layers[0].heads.head_dim == 8);
  for (const std::string& method : prompt_methods) {
    const auto sent = [&](const std::string& placement, const Parts& parts) {
      std::uint64_t bytes = 0;
      for (const RankReport& rank : run_shared(model, {}, method + "+" + placement, parts).ranks) {
        bytes += rank.message_bytes;
      }
      return bytes;
    };
    CHECK(sent("kvr:p=3", {6, 4, 2}) == 2 * 384 * (6 + 10));
    CHECK(sent("tsp:p=3", {4, 4, 4}) == 2 * 384 * 2 * 12);
  }
}

TEST_CASE("ranks: the kept tokens are known before they are shared, or the run is refused") {
  const Checkpoint model(oracle_folder() / "llama_mha");
  const auto shared = [&](const std::string& methods, std::uint64_t length) {
    return tokens_to_share(model.architecture(), {.methods = parse_methods(methods)}, length);
  };
  CHECK(shared("random-prune:keep=0.5+kvr:p=2", 23) == 12);
  CHECK(shared("kvr:p=2+specprefill:keep=0.3,chunk=4", 24) == 8);
  CHECK(shared("specprefill:keep=0.5,chunk=4+kvr:p=2", 23) == 12);  // 3 chunks, or 11 tokens
  CHECK(shared("slim+kvr:p=2", 23) == 23);
  const auto line = [&](const std::string& methods, const Parts& parts) {
    return message_of([&] { run_shared(model, {}, methods, parts); });
  };
  CHECK(line("random-prune:keep=0.5+kvr:p=2", {7, 6}).find("12 tokens kept, expected the 13") !=
        std::string::npos);
  // 3 of 6 chunks of 4: with the last one of 3 tokens or without.
  CHECK(line("specprefill:keep=0.5,chunk=4+kvr:p=2", {6, 6}).find("the last one shorter") !=
        std::string::npos);
  CHECK(line("lazyllm:begin=0.8,end=0.4+kvr:p=2", {12, 11}).find("which another rank reads") !=
        std::string::npos);
  CHECK(line("specprefill:keep=0.5,reuse=kept+kvr:p=2", {6, 6}).find("one token to read") !=
        std::string::npos);
  CHECK(line("kvp:auxiliary=lp-0.50+kvr:p=2", {6, 6}).find("one token to read") !=
        std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
