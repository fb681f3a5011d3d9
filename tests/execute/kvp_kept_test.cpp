// KV prediction of the prompt's kept tokens.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/convert/kvp_fit.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast::execute {
namespace {

const std::vector<std::string> prompt_methods{"random-prune:keep=0.5,seed=3",
                                              "static-prune:keep=0.5,probe=1",
                                              "specprefill:keep=0.5,lookahead=3,chunk=2,pool=3"};

const std::string pair = "kvp:auxiliary=" + (oracle_folder() / "kvp" / "auxiliary").string() +
                         ",predictor=" + (oracle_folder() / "kvp" / "predictor").string();

Generation run_with(const Checkpoint& checkpoint, const std::vector<std::vector<TokenId>>& prompt,
                    const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  Request request;
  request.tokens = prompt;
  request.output_len = 6;
  return Session(checkpoint, o).run(request);
}

const std::vector<std::vector<TokenId>> prompt{{5, 9, 2, 7, 1, 8, 11, 4, 30},
                                               {3, 4, 3, 12, 9, 6, 2, 50, 1}};

std::string with_all_kept(std::string method) { return method.replace(method.find("0.5"), 3, "1"); }

// Positions of the kept tokens show: without them the auxiliary would read another text, and keys
// would be rotated to other places.
TEST_CASE("kvp: a model that predicts its own kept tokens computes what pruning alone does") {
  for (const char* name : {"openelm",     "llama_gqa_llama3_rope",
                           "qwen2",       "gpt2",
                           "opt",         "gpt_neox",
                           "cohere2",     "gemma2",
                           "llama4_text", "deepseek_v3",
                           "minicpm3",    "qwen3",
                           "gemma3_text", "gpt_oss",
                           "granite",     "olmo2",
                           "smollm3",     "glm4",
                           "glm4_moe",    "hunyuan_v1_dense"}) {
    const Checkpoint model(oracle_folder() / name);
    const TestFolder folder;
    KvpFit fit;
    for (std::size_t i = 0; i < model.architecture().num_hidden_layers(); ++i) fit.map.push_back(i);
    write_identity_predictor(model, model, folder / "predictor", fit);
    const std::string itself = "kvp:auxiliary=" + (oracle_folder() / name).string() +
                               ",predictor=" + (folder / "predictor").string();
    for (const std::string& method : prompt_methods) {
      CAPTURE(name);
      CAPTURE(method);
      const Generation pruned = run_with(model, prompt, method);
      for (const std::string& both : {method + "+" + itself, itself + "+" + method}) {
        const Generation g = run_with(model, prompt, both);
        CHECK(g.kept == pruned.kept);
        REQUIRE(g.logits.size() == pruned.logits.size());
        CHECK(relative_difference(g.logits, pruned.logits) < 1e-5);
        CHECK(g.tokens == pruned.tokens);
        CHECK(g.kv_cache_bytes == pruned.kv_cache_bytes);
      }
      // Of each kept token, and of one sequence: others may keep another number.
      const SessionOptions all{.logits = Logits::All};
      const Generation rows = run_with(model, {prompt[0]}, method, all);
      const Generation merged = run_with(model, {prompt[0]}, method + "+" + itself, all);
      CHECK(rows.logits_shape[1] == rows.kept.at(0).size());
      REQUIRE(merged.logits_shape == rows.logits_shape);
      CHECK(relative_difference(merged.logits, rows.logits) < 1e-5);
    }
  }
}

TEST_CASE("kvp: with all tokens kept it does not matter who chose them") {
  const Checkpoint base(oracle_folder() / "openelm");
  const Generation alone = run_with(base, prompt, pair);
  for (const std::string& method : prompt_methods) {
    CAPTURE(method);
    const Generation g = run_with(base, prompt, with_all_kept(method) + "+" + pair);
    CHECK(g.tokens == alone.tokens);
    CHECK(relative_difference(g.logits, alone.logits) < 1e-6);
  }
}

// OPT's position table starts at row 2; the base's keys are rotated to the places themselves.
TEST_CASE("kvp: positions of an auxiliary with a position table are not those of the base") {
  Architecture learned = Checkpoint(oracle_folder() / "opt").architecture();
  const Architecture rotary = Checkpoint(oracle_folder() / "llama_mha").architecture();
  learned.vocab_size = rotary.vocab_size;
  for (const bool base_is_rotary : {true, false}) {
    CAPTURE(base_is_rotary);
    const Checkpoint base(base_is_rotary ? rotary : learned, 5);
    SessionOptions o;
    o.open = [&](const std::string&) { return Checkpoint(base_is_rotary ? learned : rotary, 7); };
    const Generation alone = run_with(base, prompt, "kvp:auxiliary=x", o);
    for (const std::string& method : prompt_methods) {
      const Generation all = run_with(base, prompt, with_all_kept(method) + "+kvp:auxiliary=x", o);
      CHECK(relative_difference(all.logits, alone.logits) < 1e-6);
    }
    const Generation kept = run_with(base, prompt, "random-prune:keep=0.5+kvp:auxiliary=x", o);
    CHECK(relative_difference(kept.logits, alone.logits) > 1e-3);  // else nothing was dropped
  }
}

TEST_CASE("kvp: an auxiliary with logits runs all of its layers, whatever its padding") {
  const Architecture base = Checkpoint(oracle_folder() / "llama_mha").architecture();
  Architecture deeper = base;  // the map of equally deep models needs no layer above the base's
  deeper.decoder.layers.push_back(deeper.decoder.layers.back());
  SessionOptions o{.logits = Logits::All};
  o.open = [&](const std::string&) { return Checkpoint(deeper, 7); };
  const Generation g = run_with(Checkpoint(base, 5), {prompt[0]}, "kvp:auxiliary=x", o);
  const std::vector<TokenId> read(prompt[0].begin(), prompt[0].end() - 1);
  const Generation alone =
      run_with(Checkpoint(deeper, 7), {read}, "plain", {.logits = Logits::All});
  REQUIRE(g.logits_shape[1] == prompt[0].size());
  CHECK(relative_difference(g.logits.first(alone.logits.size()), alone.logits) < 1e-5);

  // Other padding: ids that the base lacks are cut off, those that the auxiliary lacks never come.
  const std::size_t ids = base.vocab_size;
  for (const std::size_t padded : {ids + 1, ids - 1}) {
    CAPTURE(padded);
    deeper.vocab_size = padded;
    const Generation m = run_with(Checkpoint(base, 5), {prompt[0]}, "kvp:auxiliary=x", o);
    const Generation own =
        run_with(Checkpoint(deeper, 7), {read}, "plain", {.logits = Logits::All});
    REQUIRE(m.logits_shape.back() == ids);
    for (std::size_t row = 0; row < read.size(); ++row) {
      const auto ours = m.logits.subspan(row * ids, std::min(ids, padded));
      const auto theirs = own.logits.subspan(row * padded, ours.size());
      CHECK(relative_difference(ours, theirs) < 1e-5);
      if (padded < ids) CHECK(std::isinf(m.logits[row * ids + padded]));
    }
  }
}

TEST_CASE("kvp: of one kept token nothing is predicted") {
  const Checkpoint base(oracle_folder() / "openelm");
  const std::string method = "specprefill:keep=0.1,lookahead=2";
  const Generation pruned = run_with(base, prompt, method);
  const Generation g = run_with(base, prompt, method + "+" + pair);
  REQUIRE(pruned.kept.at(0).size() == 1);
  CHECK(g.kept == pruned.kept);
  CHECK(g.helper_steps == std::vector<std::uint64_t>{1, 1, 1, 0});  // the auxiliary rests
  CHECK(std::equal(g.logits.begin(), g.logits.end(), pruned.logits.begin(), pruned.logits.end()));
  CHECK(g.tokens == pruned.tokens);
  CHECK(g.analytic_flops == pruned.analytic_flops);
}

// Chunks of 2 of 9 tokens: how many are kept depends on whether the last chunk is among them.
TEST_CASE("kvp: predicting kept tokens counts what the formulas say") {
  const Checkpoint base(oracle_folder() / "openelm");
  for (const std::string& method : prompt_methods) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(method);
      const SessionOptions fast{.attention = kernels, .elementwise = kernels};
      SessionOptions counting = fast;
      counting.loops = Loops::Counting;
      const Generation f = run_with(base, prompt, method + "+" + pair, fast);
      const Generation c = run_with(base, prompt, method + "+" + pair, counting);
      CHECK(c.counted.flops == c.analytic_flops);
      CHECK(c.counted.bytes() == c.analytic_bytes);
      CHECK(c.analytic_flops == f.analytic_flops);
      CHECK(c.tokens == f.tokens);
      CHECK(c.kept == f.kept);
    }
  }
}

TEST_CASE("kvp: a choice of tokens that leaves nothing to predict is refused with the reason") {
  const Checkpoint base(oracle_folder() / "openelm");
  const auto says = [&](const std::string& methods, const std::string& words) {
    const std::string line = message_of([&] { run_with(base, prompt, methods); });
    CAPTURE(line);
    CHECK(line.find(words) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  const std::string likelihood = pair + ",mode=likelihood";
  for (const bool first : {true, false}) {
    const auto join = [&](const std::string& a, const std::string& b) {
      return first ? a + "+" + b : b + "+" + a;
    };
    says(join("specprefill:keep=0.5,reuse=kept", pair), "both fill the base model's cache");
    says(join("lazyllm:begin=0.8,end=0.4", pair), "its layers have no tokens to drop");
    says(join("random-prune:keep=0.5", likelihood), "dropped tokens have no likelihood");
  }
}

}  // namespace
}  // namespace kvcast::execute
