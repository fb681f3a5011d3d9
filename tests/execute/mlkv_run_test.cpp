#include <algorithm>
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "model/convert/mlkv_conversion.h"
#include "tests/execute/oracle.h"
#include "tests/execute/random_checkpoint.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

// tests/oracle/make_mlkv.py computes the expected values with a forward pass of its own.

namespace kvcast::execute {
namespace {

/// What the authors' semantics give: tests/oracle/CASE/released.*.
struct Released {
  explicit Released(const OracleCase& c) {
    const nlohmann::json j = read_json_file(c.folder / "released.json");
    greedy = j.at("greedy").get<std::vector<std::vector<TokenId>>>();
    tensors = stored_numbers(c.folder / "released.safetensors");
    const Stack& s = c.checkpoint.architecture().decoder;
    methods = {{"mlkv",
                {{"layers", std::to_string(s.num_key_value_layers)},
                 {"heads", std::to_string(s.layers[0].heads.num_key_value_heads)},
                 {"semantics", "released"}}}};
  }
  std::vector<std::vector<TokenId>> greedy;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<MethodSpec> methods;
};

constexpr const char* names[] = {"mlkv_neox", "mlkv_llama"};

Generation all_logits(const Checkpoint& checkpoint, const OracleCase& c, SessionOptions o) {
  o.logits = Logits::All;
  return Session(checkpoint, o).run(c.request(c.prompt, 1));
}

double difference(const Checkpoint& checkpoint, const OracleCase& c, const SessionOptions& o,
                  std::span<const float> expected) {
  return relative_difference(all_logits(checkpoint, c, o).logits, expected);
}

TEST_CASE("mlkv run: the released semantics gives the oracle's logits, in one piece and stepped") {
  for (const char* name : names) {
    const OracleCase c(name);
    const Released released(c);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      SessionOptions o{.methods = released.methods, .attention = kernels, .elementwise = kernels};
      CHECK(difference(c.checkpoint, c, o, released.tensors.at("logits")) < 1e-4);
      o.chunk = 1;
      CHECK(difference(c.checkpoint, c, o, released.tensors.at("stepped_logits")) < 1e-4);
    }
  }
}

TEST_CASE("mlkv run: the released semantics decodes the oracle's 64 tokens") {
  for (const char* name : names) {
    const OracleCase c(name);
    const Released released(c);
    const Session session(c.checkpoint, {.methods = released.methods});
    CHECK(session.run(c.request(c.prompt, 64)).tokens == released.greedy);
  }
}

TEST_CASE("mlkv run: released, one piece differs from steps, and both from the paper's") {
  for (const char* name : names) {
    const OracleCase c(name);
    const Released released(c);
    SessionOptions o{.methods = released.methods};
    const auto& paper = c.tensors.at("logits");
    CHECK(difference(c.checkpoint, c, o, paper) > 1e-2);
    CHECK(difference(c.checkpoint, c, o, released.tensors.at("stepped_logits")) > 1e-2);
    o.chunk = 1;
    CHECK(difference(c.checkpoint, c, o, paper) > 1e-2);
  }
}

TEST_CASE("mlkv run: the cache holds 2·b·s·m·g·hd numbers") {
  const OracleCase c("mlkv_neox");
  const Session session(c.checkpoint, {});
  // 17 + 6 slots, the last one reserved; 2 layers of 2 heads of 8, fp32.
  CHECK(session.run(c.request(c.prompt, 6)).kv_cache_bytes == 2 * 2 * (17 + 6) * 2 * 2 * 8 * 4);
}

// A run of P tokens and N generated ones leaves P + N - 1 rows of each sequence: the last token is
// not read back. The estimate, by the recorder's formula, is for all P + N.
TEST_CASE("mlkv run: only owners append, and what they hold is the estimate to the byte") {
  for (const char* name : names) {
    const OracleCase c(name);
    CAPTURE(name);
    const Stack& s = c.checkpoint.architecture().decoder;
    const Heads& heads = s.layers[0].heads;
    const std::uint64_t batch = c.prompt.size();
    const std::uint64_t tokens = c.prompt[0].size() + 6;
    const auto bytes = [&](std::uint64_t slots) {
      return 2 * batch * slots * s.num_key_value_layers * heads.num_key_value_heads *
             heads.head_dim * sizeof(float);
    };
    Request request = c.request(c.prompt, 6);
    std::map<std::string, std::uint64_t> kept;
    request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
      const Node& node = graph.nodes()[run.node];
      if (!std::holds_alternative<CacheAppend>(node.op)) return;
      kept[graph.tensor(node.inputs[0]).name] = run.call->output.shape.elements() * sizeof(float);
    };
    const Session session(c.checkpoint, {});
    CHECK(session.run(request).kv_cache_bytes == bytes(tokens));
    CHECK(kept.size() == 2 * s.num_key_value_layers);
    std::uint64_t all = 0;
    for (const auto& [tensor, size] : kept) all += size;
    CHECK(all == bytes(tokens - 1));
    const Recording& r = session.recording();
    CHECK(all == r.kv_cache_bytes.at(r.symbols.resolve({batch, c.prompt[0].size(), tokens - 1})));
  }
}

/// A checkpoint of the case, converted.
struct Converted {
  Converted(const OracleCase& c, const MlkvConversion& conversion)
      : report(convert_to_mlkv(c.checkpoint, folder / "out", conversion)),
        checkpoint(folder / "out") {}
  TestFolder folder;
  MlkvReport report;
  Checkpoint checkpoint;
};

/// Layers that could read each other's keys and values, and that all have some.
bool has_mlkv_form(const Architecture& a) {
  const std::vector<LayerShape>& layers = a.decoder.layers;
  return !a.encoder_decoder && !has_states(a.decoder) &&
         std::all_of(layers.begin(), layers.end(), [&](const LayerShape& layer) {
           return !layer.latent && !layer.kv_layer &&
                  layer.heads.num_key_value_heads == layers[0].heads.num_key_value_heads;
         });
}

TEST_CASE("mlkv run: all layers and heads kept, every family has its original logits") {
  std::size_t converted = 0;
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    const Architecture& a = c.checkpoint.architecture();
    const MlkvShape shape{a.decoder.layers.size(), a.decoder.layers[0].heads.num_key_value_heads};
    CAPTURE(name);
    const std::string line = message_of([&] { to_mlkv(a, shape); });
    CAPTURE(line);
    CHECK((line == "(no Error was thrown)") == has_mlkv_form(a));
    if (!has_mlkv_form(a)) continue;
    const LayerMerge merge = ++converted % 4 == 0 ? LayerMerge::Sequential : LayerMerge::Mean;
    const Converted m(c, {shape, merge});
    CHECK(m.checkpoint.architecture().decoder.num_key_value_layers == shape.layers);
    CHECK(m.report.parameters_after == m.report.parameters_before);
    CHECK(difference(m.checkpoint, c, {}, c.tensors.at("logits")) < 1e-4);
  }
  CHECK(converted > 90);
}

/// Random weights of 2 layers of 4 heads, in each of which `equal` heads in a row have the same
/// keys and values.
Checkpoint with_equal_heads(const nlohmann::json& config, const std::filesystem::path& folder,
                            std::size_t equal) {
  write_random_checkpoint(config, folder, 5);
  change_tensors(folder, [&](const std::string& name, std::vector<float>& w) {
    const bool fused = name.find("query_key_value") != std::string::npos;  // [head, part, row]
    const bool alone = name.find("k_proj") != std::string::npos ||
                       name.find("v_proj") != std::string::npos ||
                       name.find("k_norm") != std::string::npos;  // [head, row]
    if (!fused && !alone) return;
    const std::size_t head = w.size() / 4;
    const std::size_t query = fused ? head / 3 : 0;
    for (std::size_t h = 0; h < 4; ++h) {
      const auto first = w.begin() + static_cast<std::ptrdiff_t>(h / equal * equal * head);
      std::copy(first + static_cast<std::ptrdiff_t>(query),
                first + static_cast<std::ptrdiff_t>(head),
                w.begin() + static_cast<std::ptrdiff_t>(h * head + query));
    }
  });
  return Checkpoint(folder);
}

std::vector<double> logits64_of(const Checkpoint& checkpoint) {
  Request request;
  request.tokens = {{3, 1, 4, 1, 5, 9, 2}, {2, 7, 1, 8, 2, 8, 1}};
  request.output_len = 4;
  std::vector<double> logits;
  request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
    if (graph.nodes()[run.node].label != "head") return;
    const Operand& out = run.call->output;
    const double* numbers = out.numbers<double>();
    logits.insert(logits.end(), numbers, numbers + out.shape.elements());
  };
  const Session session(checkpoint, {.logits = Logits::All, .dtype = DType::FP64});
  session.run(request);
  return logits;
}

TEST_CASE("mlkv run: merging equal heads changes no logit, merging different ones does") {
  const nlohmann::json neox{{"model_type", "gpt_neox"}, {"hidden_size", 24},
                            {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                            {"intermediate_size", 40},  {"vocab_size", 61},
                            {"rotary_pct", 0.34},       {"max_position_embeddings", 64}};
  const nlohmann::json llama{{"model_type", "llama"},   {"hidden_size", 24},
                             {"num_hidden_layers", 2},  {"num_attention_heads", 4},
                             {"intermediate_size", 40}, {"vocab_size", 61},
                             {"attention_bias", true},  {"max_position_embeddings", 64}};
  nlohmann::json qwen3 = llama;
  qwen3["model_type"] = "qwen3";
  qwen3["head_dim"] = 8;
  qwen3["num_key_value_heads"] = 4;
  nlohmann::json olmo2 = llama;
  olmo2["model_type"] = "olmo2";  // a norm of all keys together
  for (const nlohmann::json& config : {neox, llama, qwen3, olmo2}) {
    CAPTURE(config.dump());
    for (const std::size_t equal : {2U, 4U}) {
      const TestFolder folder;
      const Checkpoint whole = with_equal_heads(config, folder / "in", equal);
      const std::vector<double> expected = logits64_of(whole);
      const auto merged = [&](const char* name, std::uint64_t heads) {
        convert_to_mlkv(whole, folder / name,
                        {{2, heads, MlpWidening::None}, LayerMerge::Mean, DType::FP64});
        return logits64_of(Checkpoint(folder / name));
      };
      CHECK(relative_difference_of<double>(merged("merged", 4 / equal), expected) < 1e-12);
      if (equal == 2) CHECK(relative_difference_of<double>(merged("more", 1), expected) > 1e-2);
    }
  }
}

TEST_CASE("mlkv run: converted models with norms of keys, sinks and experts do counted work") {
  for (const char* name : {"qwen3", "olmo2", "granite", "gpt_oss", "granitemoe", "mixtral", "phi3",
                           "gpt2", "opt", "falcon_40b", "glm", "hunyuan_v1_dense"}) {
    CAPTURE(name);
    const OracleCase c(name);
    const bool mixed = std::string(name) == "gpt_oss";  // a window in some layers
    const std::uint64_t layers = mixed ? c.checkpoint.architecture().num_hidden_layers() : 1;
    const MlpWidening widening = layers_with_experts(c.checkpoint.architecture().decoder) > 0
                                     ? MlpWidening::None
                                     : MlpWidening::Preserve;
    const Converted m(c, {{layers, 1, widening}});
    const Session counting(m.checkpoint, {.loops = Loops::Counting});
    const Generation g = counting.run(c.request(c.prompt, 8));
    CHECK(g.counted.flops == g.analytic_flops);
    CHECK(g.counted.bytes() == g.analytic_bytes);
    CHECK(g.tokens == Session(m.checkpoint, {}).run(c.request(c.prompt, 8)).tokens);
    CHECK(m.report.kv_cache_ratio < 1);
  }
}

TEST_CASE("mlkv run: widening at half weight keeps the logits, copies at full weight do not") {
  for (const char* name : {"gpt_neox", "llama_mha", "phi3", "gpt2", "opt", "falcon_40b"}) {
    const OracleCase c(name);
    CAPTURE(name);
    const Converted narrow(c, {{1, 1, MlpWidening::None}});
    const Generation expected = all_logits(narrow.checkpoint, c, {});
    const Converted preserved(c, {{1, 1, MlpWidening::Preserve}});
    CHECK(preserved.report.after.decoder.layers[0].intermediate_size >
          narrow.report.after.decoder.layers[0].intermediate_size);
    CHECK(difference(preserved.checkpoint, c, {}, expected.logits) < 1e-4);
    const Converted copied(c, {{1, 1, MlpWidening::Copy}});
    CHECK(difference(copied.checkpoint, c, {}, expected.logits) > 1e-2);
    CHECK(copied.report.parameters_after == preserved.report.parameters_after);
  }
}

TEST_CASE("mlkv run: a converted model runs as it is and by its method, and does counted work") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Converted m(c, {{1, 1}});
  const Session plain(m.checkpoint, {.loops = Loops::Counting});
  const Session method(m.checkpoint, {.methods = parse_methods("mlkv:layers=1,heads=1")});
  const Generation g = plain.run(c.request(c.prompt, 8));
  CHECK(g.tokens == method.run(c.request(c.prompt, 8)).tokens);
  CHECK(g.counted.flops == g.analytic_flops);
  CHECK(g.counted.bytes() == g.analytic_bytes);
}

TEST_CASE("mlkv run: a checkpoint that is not converted says which command does it") {
  const OracleCase c("llama_gqa_llama3_rope");
  const SessionOptions o{.methods = parse_methods("mlkv:layers=1,heads=1")};
  const std::string line = message_of([&] { check_checkpoint(c.checkpoint, o); });
  CHECK(line.find("'kvcast convert mlkv IN OUT --kv-layers 1 --kv-heads 1'") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
