#include <limits>

#include <doctest/doctest.h>

#include "model/config/layer_pruning.h"
#include "model/convert/kvp_fit.h"
#include "model/convert/kvp_objective.h"
#include "model/convert/prune_conversion.h"
#include "tests/execute/oracle.h"
#include "tests/execute/random_checkpoint.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

// tests/oracle/make_kvp.py computes the expected values with a forward pass of its own.

namespace kvcast::execute {
namespace {

namespace fs = std::filesystem;

std::vector<MethodSpec> kvp(const fs::path& auxiliary, const fs::path& predictor,
                            const std::string& mode = "prompt") {
  return {{"kvp",
           {{"auxiliary", auxiliary.string()}, {"predictor", predictor.string()}, {"mode", mode}}}};
}

const fs::path pair_folder = oracle_folder() / "kvp";
const fs::path auxiliary_folder = pair_folder / "auxiliary";
const fs::path predictor_folder = pair_folder / "predictor";

struct Expected {
  Expected() {
    const nlohmann::json j = read_json_file(pair_folder / "results.json");
    notes = j;
    prompt = j.at("prompt").get<std::vector<std::vector<TokenId>>>();
    greedy = j.at("greedy").get<std::vector<std::vector<TokenId>>>();
    tensors = stored_numbers(pair_folder / "results.safetensors");
  }
  nlohmann::json notes;
  std::vector<std::vector<TokenId>> prompt, greedy;
  std::map<std::string, std::vector<float>> tensors;
};

Request request_of(const std::vector<std::vector<TokenId>>& tokens, std::uint64_t output_len = 1) {
  Request r;
  r.tokens = tokens;
  r.output_len = output_len;
  return r;
}

/// A model whose auxiliary is itself, its keys and values handed on as they are.
struct Itself {
  explicit Itself(const std::string& name)
      : model(oracle_folder() / name), place(oracle_folder() / name) {
    KvpFit fit;
    const std::size_t layers = model.architecture().num_hidden_layers();
    for (std::size_t i = 0; i < layers; ++i) fit.map.push_back(i);
    write_identity_predictor(model, model, folder / "predictor", fit);
  }
  std::vector<MethodSpec> methods(const std::string& mode = "prompt") const {
    return kvp(place, folder / "predictor", mode);
  }
  Checkpoint model;
  fs::path place;
  TestFolder folder;
};

/// Layers of other shapes, a norm of keys, grouped heads, biases, windows, learned positions,
/// ALiBi, latents.
constexpr const char* families[] = {"openelm",
                                    "llama_gqa_llama3_rope",
                                    "qwen2",
                                    "gemma2",
                                    "gpt2",
                                    "opt",
                                    "gpt_neox",
                                    "falcon_rw",
                                    "qwen3",
                                    "olmo2",
                                    "cohere2",
                                    "gemma3_text",
                                    "gpt_oss",
                                    "mixtral",
                                    "llama4_text",
                                    "smollm3",
                                    "deepseek_v3",
                                    "minicpm3",
                                    "phi_qk_layernorm"};

TEST_CASE("kvp: a tiny pair gives the oracle's logits and tokens") {
  const Expected expected;
  const Checkpoint base(oracle_folder() / "openelm");
  for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
    for (const Loops loops : {Loops::Fast, Loops::Counting}) {
      SessionOptions o{.methods = kvp(auxiliary_folder, predictor_folder),
                       .attention = kernels,
                       .elementwise = kernels,
                       .loops = loops};
      const Session session(base, o);
      const Generation g = session.run(request_of(expected.prompt, expected.greedy[0].size()));
      CHECK(relative_difference(g.logits, expected.tensors.at("prompt_logits")) < 1e-5);
      CHECK(g.tokens == expected.greedy);
      o.methods = kvp(auxiliary_folder, predictor_folder, "likelihood");
      o.logits = Logits::All;
      const Session training(base, o);
      const Generation t = training.run(request_of(expected.prompt));
      CHECK(relative_difference(t.logits, expected.tensors.at("training_logits")) < 1e-5);
    }
  }
}

TEST_CASE("kvp: the training objective is the oracle's") {
  const Expected expected;
  const Checkpoint base(oracle_folder() / "openelm"), auxiliary(auxiliary_folder);
  const auto text = expected.notes.at("text").get<std::vector<TokenId>>();
  const auto check = [&](double ours, const nlohmann::json& theirs) {
    CHECK(ours == near(theirs.get<double>()).epsilon(1e-5));
  };
  const KvpObjective o = kvp_objective(base, auxiliary, auxiliary_folder.string(),
                                       predictor_folder.string(), text, 64);
  CHECK(o.tokens == text.size() - 1);
  check(o.base.cross_entropy, expected.notes["base_cross_entropy"]);
  check(o.base.z_loss, expected.notes["base_z_loss"]);
  check(o.auxiliary.cross_entropy, expected.notes["auxiliary_cross_entropy"]);
  check(o.auxiliary.z_loss, expected.notes["auxiliary_z_loss"]);
  check(o.plain.cross_entropy, expected.notes["plain_cross_entropy"]);
  REQUIRE(o.key_l1.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    check(o.key_l1[i], expected.notes["key_l1"][i]);
    check(o.value_l1[i], expected.notes["value_l1"][i]);
  }
  check(o.consistency, expected.notes["consistency"]);
  check(o.total, expected.notes["total"]);
  const KvpObjective weighted =
      kvp_objective(base, auxiliary, auxiliary_folder.string(), predictor_folder.string(), text, 64,
                    {.base = 2, .auxiliary = 0.5, .consistency = 1.0 / 28, .z_loss = 0});
  CHECK(weighted.total ==
        near(2 * o.base.cross_entropy + o.auxiliary.cross_entropy / 2 + o.consistency / 28));
}

TEST_CASE("kvp: the objective's windows fit both models, and its weights are finite") {
  const Checkpoint base(oracle_folder() / "openelm"), auxiliary(auxiliary_folder);
  REQUIRE(longest_prompt(base.architecture()) == 128);  // max_context_length
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 301; ++i) text.push_back((i * i + 3) % 67);
  std::uint64_t windows = 0;
  const auto objective = [&](const KvpObjectiveWeights& weights) {
    return kvp_objective(base, auxiliary, auxiliary_folder.string(), predictor_folder.string(),
                         text, 2048, weights,
                         [&](std::uint64_t, std::uint64_t all) { windows = all; });
  };
  CHECK(objective({}).tokens == 300);
  CHECK(windows == 3);  // 128, 128 and 44
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const KvpObjectiveWeights& weights : {KvpObjectiveWeights{.z_loss = nan},
                                             {.base = -1},
                                             {.auxiliary = infinity},
                                             {.consistency = -0.5}}) {
    CHECK(message_of([&] { objective(weights); }).find("a finite number of at least 0") !=
          std::string::npos);
  }
}

TEST_CASE("kvp: a model that is its own auxiliary computes what it does without") {
  for (const char* name : families) {
    CAPTURE(name);
    const Itself own(name);
    const std::vector<std::vector<TokenId>> prompt{{5, 9, 2, 7, 1, 8, 11}, {3, 4, 3, 12, 9, 6, 2}};
    const Session plain(own.model, {.logits = Logits::All});
    const Session predicting(own.model, {.methods = own.methods()});
    const Generation expected = plain.run(request_of(prompt, 12));
    const Generation g = predicting.run(request_of(prompt, 12));
    const std::size_t vocab = expected.logits_shape.back();
    std::vector<float> last;
    for (std::size_t b = 0; b < 2; ++b) {
      const auto row = expected.logits.subspan((b * 7 + 6) * vocab, vocab);
      last.insert(last.end(), row.begin(), row.end());
    }
    CHECK(relative_difference(g.logits, last) < 1e-5);
    CHECK(g.tokens == expected.tokens);
    CHECK(g.kv_cache_bytes == expected.kv_cache_bytes);
    const SessionOptions likelihood{.methods = own.methods("likelihood"), .logits = Logits::All};
    if (own.model.architecture().decoder.layers[0].latent) {
      CHECK(message_of([&] {
              const Session session(own.model, likelihood);
            }).find("attend to the row that they add themselves") != std::string::npos);
      continue;
    }
    const Session training(own.model, likelihood);
    CHECK(relative_difference(training.run(request_of(prompt)).logits, expected.logits) < 1e-5);
  }
}

// As apple/corenet's kv_prediction.py puts them together.
TEST_CASE("kvp: logits of all positions are the auxiliary's, and the base's at the last") {
  const std::vector<std::vector<TokenId>> prompt{{5, 9, 2, 7, 1, 8, 11}, {3, 4, 3, 12, 9, 6, 2}};
  for (const char* name : families) {
    CAPTURE(name);
    const Itself own(name);
    for (const DType dtype : {DType::FP32, DType::FP64}) {
      const Session plain(own.model, {.logits = Logits::All, .dtype = dtype});
      const Session merged(own.model,
                           {.methods = own.methods(), .logits = Logits::All, .dtype = dtype});
      const Generation expected = plain.run(request_of(prompt));
      const Generation g = merged.run(request_of(prompt));
      CHECK(g.logits_shape == expected.logits_shape);
      if (dtype == DType::FP32) {
        CHECK(relative_difference(g.logits, expected.logits) < 1e-5);
      } else {
        REQUIRE(g.logits64.size() == expected.logits64.size());
        CHECK(std::equal(g.logits64.begin(), g.logits64.end(), expected.logits64.begin(),
                         [](double a, double b) { return std::abs(a - b) < 1e-10; }));
      }
    }
  }

  const Checkpoint base(oracle_folder() / "openelm"), auxiliary(auxiliary_folder);
  const std::vector<MethodSpec> released = kvp(auxiliary_folder, predictor_folder);
  const Session merged(base, {.methods = released, .logits = Logits::All});
  const Generation g = merged.run(request_of({{5, 9, 2, 7, 1}}, 3));
  const std::size_t vocab = g.logits_shape.back();
  CHECK(g.logits_shape[1] == 5);
  const Generation before =
      Session(auxiliary, {.logits = Logits::All}).run(request_of({{5, 9, 2, 7}}));
  CHECK(relative_difference(g.logits.first(4 * vocab), before.logits) < 1e-5);
  const Generation last = Session(base, {.methods = kvp(auxiliary_folder, predictor_folder)})
                              .run(request_of({{5, 9, 2, 7, 1}}, 3));
  CHECK(relative_difference(g.logits.last(vocab), last.logits) < 1e-5);
  CHECK(g.tokens == last.tokens);
  // The head's products for the four tokens of the auxiliary, and the norm before it.
  const double width = static_cast<double>(auxiliary.architecture().hidden_size);
  const auto more = static_cast<double>(g.analytic_flops - last.analytic_flops);
  CHECK(more > 4 * 2 * width * static_cast<double>(vocab));
  CHECK(more < 4 * width * (2 * static_cast<double>(vocab) + 10));
  CHECK(merged.run(request_of({{5}})).logits_shape[1] == 1);
}

TEST_CASE("kvp: a prompt of one token is the base model's alone") {
  const Expected expected;
  const Checkpoint base(oracle_folder() / "openelm");
  const Session plain(base, {});
  const Session predicting(base, {.methods = kvp(auxiliary_folder, predictor_folder)});
  const Generation a = plain.run(request_of({{5}, {9}}, 9));
  Request request = request_of({{5}, {9}}, 9);
  std::size_t helper_nodes = 0;
  request.on_node = [&](const Graph& graph, const NodeRun&, std::span<const std::uint64_t>) {
    if (&graph == &predicting.recording().helpers()[0].graph) ++helper_nodes;
  };
  const Generation b = predicting.run(request);
  CHECK(helper_nodes == 0);
  CHECK(a.kv_cache_bytes == b.kv_cache_bytes);
  CHECK(std::equal(a.logits.begin(), a.logits.end(), b.logits.begin(), b.logits.end()));
  CHECK(a.tokens == b.tokens);
  CHECK(a.analytic_flops == b.analytic_flops);
}

/// Rows of the base's caches as nodes leave them, and the predicted keys and values of its layers.
struct Seen {
  std::map<std::string, std::size_t> cache_rows;
  std::map<std::pair<std::string, int>, std::vector<float>> predicted;
};

Seen watch(const Session& session, Request request) {
  Seen seen;
  request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[run.node];
    const Operand& out = run.call->output;
    if (std::holds_alternative<CacheAppend>(node.op)) {
      seen.cache_rows[graph.tensor(node.inputs[0]).name] = out.shape[1];
    }
    if (node.label == "predict_key" || node.label == "predict_value") {
      seen.predicted[{node.label, node.layer}].assign(out.data, out.data + out.shape.elements());
    }
  };
  session.run(request);
  return seen;
}

TEST_CASE("kvp: the cache has a row for each token, in the base's shapes") {
  const Checkpoint base(oracle_folder() / "openelm");
  const Session session(base, {.methods = kvp(auxiliary_folder, predictor_folder)});
  for (const std::uint64_t output : {1u, 4u}) {
    const Seen seen = watch(session, request_of({{5, 9, 2, 7, 1}}, output));
    CHECK(seen.cache_rows.size() == 6);  // keys and values of 3 layers, none of the auxiliary
    for (const auto& [name, rows] : seen.cache_rows) CHECK(rows == 5 + output - 1);
    CHECK(seen.predicted.size() == 6);
    for (const auto& [place, numbers] : seen.predicted) {
      const Heads& heads =
          base.architecture().decoder.layers[static_cast<std::size_t>(place.second)].heads;
      CHECK(numbers.size() == 4 * heads.num_key_value_heads * heads.head_dim);
    }
  }
}

TEST_CASE("kvp: what is predicted for a token does not depend on later tokens") {
  const Checkpoint base(oracle_folder() / "openelm");
  const Session session(
      base, {.methods = kvp(auxiliary_folder, predictor_folder), .loops = Loops::Counting});
  const Seen shorter = watch(session, request_of({{5, 9, 2, 7, 1}}));
  const Seen longer = watch(session, request_of({{5, 9, 2, 7, 60, 3, 8}}));
  REQUIRE(shorter.predicted.size() == 6);
  for (const auto& [place, numbers] : shorter.predicted) {
    CAPTURE(place.first);
    const std::vector<float>& more = longer.predicted.at(place);
    REQUIRE(more.size() > numbers.size());
    CHECK(std::equal(numbers.begin(), numbers.end(), more.begin()));
  }
}

// The auxiliary's first layer projects embeddings alone, without positions: what the maps make of
// it moves with the tokens. Of its second layer, which has attended to others, it does not.
TEST_CASE("kvp: the predictor commutes with the order of the tokens") {
  const Checkpoint base(oracle_folder() / "openelm");
  const PredictorConfig config =
      read_predictor_config(read_json_file(predictor_folder / "config.json"), "config.json");
  REQUIRE(config.map == LayerMap{0, 0, 1});
  const Session session(
      base, {.methods = kvp(auxiliary_folder, predictor_folder), .loops = Loops::Counting});
  const std::vector<std::size_t> order{3, 0, 4, 2, 1};
  std::vector<TokenId> prompt{5, 9, 2, 7, 60, 8}, moved = prompt;  // the last one is the base's
  for (std::size_t i = 0; i < order.size(); ++i) moved[i] = prompt[order[i]];
  const Seen one = watch(session, request_of({prompt}));
  const Seen other = watch(session, request_of({moved}));
  REQUIRE(one.predicted.size() == 6);
  for (const auto& [place, numbers] : one.predicted) {
    CAPTURE(place.first);
    CAPTURE(place.second);
    const std::size_t features = numbers.size() / order.size();
    std::vector<float> expected;
    for (const std::size_t i : order) {
      const auto row = std::span(numbers).subspan(i * features, features);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    CHECK((other.predicted.at(place) == expected) == (place.second < 2));
  }
}

TEST_CASE("kvp: what is counted is what the formulas say, in every pass") {
  const Checkpoint base(oracle_folder() / "openelm");
  for (const char* mode : {"prompt", "likelihood"}) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      for (const DType dtype : {DType::FP32, DType::FP64}) {
        const Session session(base, {.methods = kvp(auxiliary_folder, predictor_folder, mode),
                                     .attention = kernels,
                                     .elementwise = kernels,
                                     .loops = Loops::Counting,
                                     .dtype = dtype});
        for (const std::size_t length : {1u, 2u, 6u}) {
          CAPTURE(mode);
          CAPTURE(length);
          const std::vector<TokenId> row(length, 7);
          const Generation g = session.run(request_of({row, row}, 3));
          CHECK(g.counted.flops == g.analytic_flops);
          CHECK(g.counted.bytes() == g.analytic_bytes);
        }
      }
    }
  }
}

TEST_CASE("kvp: an auxiliary of the base's own layers needs no checkpoint of its own") {
  const TestFolder folder;
  const fs::path place = oracle_folder() / "openelm";
  const Checkpoint base(place);
  convert_to_pruned(base, folder / "pruned", {{0, 2}});
  const Checkpoint pruned(folder / "pruned");
  KvpFit fit;
  fit.map = code_layer_map(base.architecture(), pruned.architecture());
  CHECK(fit.map == LayerMap{0, 0, 1});
  fit.window = 16;
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 200; ++i) text.push_back((i * i + 3) % 67);
  fit_predictor(base, pruned, text, folder / "predictor", fit);
  const Session named(base, {.methods = kvp(folder / "pruned", folder / "predictor")});
  const Session own(base, {.methods = kvp("lp-0.50", folder / "predictor")});
  const auto request = request_of({{5, 9, 2, 7, 1, 8, 11}}, 12);
  const Generation a = named.run(request), b = own.run(request);
  CHECK(a.tokens == b.tokens);
  CHECK(std::equal(a.logits.begin(), a.logits.end(), b.logits.begin(), b.logits.end()));
}

// "lp-0.50" is the base with half of its layers; a folder of any other name is a model.
TEST_CASE("kvp: a folder whose name begins like a pruned base is a model of its own") {
  const Checkpoint base(oracle_folder() / "openelm");
  SessionOptions o{.methods = kvp("lp-large", predictor_folder)};
  std::string opened;
  o.open = [&](const std::string& name) {
    opened = name;
    return Checkpoint(auxiliary_folder);
  };
  const Session session(base, o);
  CHECK(opened == "lp-large");
}

TEST_CASE("kvp: a fitted predictor comes nearer to the base than one that was not") {
  const Expected expected;
  const TestFolder folder;
  const Checkpoint base(oracle_folder() / "openelm"), auxiliary(auxiliary_folder);
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 600; ++i) text.push_back((i * i * 7 + 11 * i + 3) % 67);
  KvpFit fit;
  fit.map = {0, 0, 1};
  fit.window = 32;
  fit_predictor(base, auxiliary, text, folder / "predictor", fit);
  const auto consistency = [&](const fs::path& predictor) {
    return kvp_objective(base, auxiliary, auxiliary_folder.string(), predictor.string(), text, 32)
        .consistency;
  };
  CHECK(consistency(folder / "predictor") < 0.7 * consistency(predictor_folder));
}

TEST_CASE("kvp: what does not fit is refused in one line") {
  const TestFolder folder;
  const Checkpoint base(oracle_folder() / "openelm");
  const auto refused = [&](const Checkpoint& checkpoint, const SessionOptions& o,
                           const std::string& part) {
    const std::string line = message_of([&] { const Session session(checkpoint, o); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  const auto of = [](const std::string& text) {
    return SessionOptions{.methods = parse_methods(text)};
  };
  const std::string known = "kvp:auxiliary=" + auxiliary_folder.string();
  const std::string both = known + ",predictor=" + predictor_folder.string();
  refused(base, of("kvp"), "option 'auxiliary' is missing");
  refused(base, of(known), "option predictor=FOLDER");
  refused(base, of("kvp:auxiliary=lp-0.33"), "lp-0.33");
  refused(base, of("kvp"), "lp-0.75, lp-0.50 or lp-0.25");
  refused(base, of("kvp:auxiliary=nowhere"), "nowhere");
  refused(base, of(known + ",predictor=" + (oracle_folder() / "openelm").string()),
          "expected \"kvcast_kv_predictor\"");
  refused(base, of(known + ",predictor=nowhere"), "nowhere");
  refused(base,
          of("kvp:auxiliary=" + (oracle_folder() / "openelm").string() +
             ",predictor=" + predictor_folder.string()),
          "made for the auxiliary model auxiliary, 2 layers");
  refused(Checkpoint(oracle_folder() / "gpt_neox"), of(both), "made for the base model openelm");
  refused(Checkpoint(oracle_folder() / "t5"), of(both), "an encoder-decoder model");
  refused(base, of(both + ",map=table"), "unknown map 'table'");
  refused(base, of(both + ",map=paper"), "have 28 entries for 36 layers");
  refused(base, of(both + ",mode=training"), "a pass that does not train");
  refused(base, of(both + ",mode=train"), "unknown mode 'train'");
  refused(base, of(both + "+streaming:sinks=1,window=4"), "cannot be combined");
  refused(base, of("streaming:sinks=1,window=4+" + both), "cannot be combined");
  SessionOptions chunks = of(both);
  chunks.chunk = 2;
  refused(base, chunks, "in one piece");
}

}  // namespace
}  // namespace kvcast::execute
