#include "model/convert/slim_conversion.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <doctest/doctest.h>

#include "tests/convert/slim_cases.h"
#include "tests/model/message_of.h"

namespace kvcast::slim_cases {
namespace {

struct Variant {
  std::string option;
  std::vector<std::string> methods;
};

Variant form(const std::string& option) { return {option, {"slim", "slim:order=unoptimized"}}; }

const Variant rotated_keys{"kcache",
                           {"slim", "slim:order=unoptimized", "slim:rope=unrotate",
                            "slim:order=unoptimized,rope=unrotate"}};
const Variant keys = form("kcache");
const Variant values = form("vcache");
const Variant inputs = form("xcache");

void check_equal_to_vanilla(const Case& c, const std::vector<Variant>& variants) {
  CAPTURE(c.name);
  const Outcome vanilla = run(c.checkpoint, c.request, {});
  for (const Variant& variant : variants) {
    const Checkpoint checkpoint = converted(c, variant.option);
    for (const std::string& method : variant.methods) {
      for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
        CAPTURE(variant.option);
        CAPTURE(method);
        CAPTURE(kernels == Kernels::Eager);
        const Outcome slim = run(checkpoint, c.request, slim_session(method, kernels));
        CHECK(slim.tokens == vanilla.tokens);
        CHECK(relative_difference(slim.logits, vanilla.logits) < 1e-10);
      }
    }
  }
}

TEST_CASE("slim: in fp64 every form gives the logits of the model as it was, decoder-only") {
  check_equal_to_vanilla(oracle_case("llama_mha"), {rotated_keys, values});
  check_equal_to_vanilla(oracle_case("gpt_neox"), {rotated_keys, values});
  check_equal_to_vanilla(oracle_case("olmo"), {rotated_keys});
  check_equal_to_vanilla(oracle_case("gpt2"), {keys, values, inputs});
  check_equal_to_vanilla(oracle_case("opt"), {keys, values, inputs});
  check_equal_to_vanilla(oracle_case("falcon_rw"), {keys, values, inputs});
}

// Keys are rotated, and normalised, on their way from the cache; xcache needs no inverse for that.
TEST_CASE("slim: norms of keys, windows, chunks and layers without rotation") {
  check_equal_to_vanilla(oracle_case("llama_mha"), {inputs});
  check_equal_to_vanilla(oracle_case("olmo2_biases"), {keys, values, inputs});
  check_equal_to_vanilla(oracle_case("qwen3_windowed"), {keys, values, inputs});
  check_equal_to_vanilla(oracle_case("smollm3_windowed"), {rotated_keys, values, inputs});
  check_equal_to_vanilla(oracle_case("starcoder2_no_biases"), {rotated_keys, values, inputs});
  check_equal_to_vanilla(oracle_case("phi"), {rotated_keys, values, inputs});
  check_equal_to_vanilla(oracle_case("glm4_moe"), {keys});
  check_equal_to_vanilla(oracle_case("qwen3_moe_windowed"), {keys, inputs});
  check_equal_to_vanilla(oracle_case("llama4_text_dense_first"), {keys, values, inputs});
}

TEST_CASE("slim: more features than inputs, fewer, and normalised keys") {
  const std::vector<Case> cases = random_cases();
  check_equal_to_vanilla(cases[0], {rotated_keys});
  check_equal_to_vanilla(cases[1], {rotated_keys, values});
  check_equal_to_vanilla(cases[2], {keys, values});
  check_equal_to_vanilla(cases[3], {rotated_keys, values});
}

TEST_CASE("slim: in fp64 every form gives the logits of the model as it was, encoder-decoder") {
  for (const char* name : {"t5", "t5_gated", "whisper"}) {
    check_equal_to_vanilla(oracle_case(name),
                           {form("encdec1"), form("encdec2"), form("hybrid"), values, inputs});
  }
}

TEST_CASE("slim: the prompt in one piece, in chunks and token by token") {
  const auto check = [](const Case& c, const char* option, const char* method) {
    CAPTURE(c.name);
    CAPTURE(option);
    const Checkpoint checkpoint = converted(c, option);
    const Outcome whole = run(checkpoint, c.request, slim_session(method, Kernels::Fused));
    for (const std::uint64_t chunk : {1U, 3U}) {
      SessionOptions o = slim_session(method, Kernels::Fused);
      o.chunk = chunk;
      const Outcome chunks = run(checkpoint, c.request, o);
      CHECK(chunks.tokens == whole.tokens);
      CHECK(relative_difference(chunks.prompt_logits, whole.prompt_logits) < 1e-10);
    }
  };
  check(oracle_case("llama_mha"), "kcache", "slim");
  check(oracle_case("gpt_neox"), "kcache", "slim:rope=unrotate");
  check(oracle_case("gpt_neox"), "vcache", "slim");
  check(oracle_case("opt"), "xcache", "slim");
  check(random_cases()[0], "kcache", "slim");
}

// Fractions of the paper: keys alone are half of keys and values, and so are values; the input is
// hidden_size of 2·features; the encoder's states are kept once for all layers.
TEST_CASE("slim: what the run kept is what the paper says, and what the estimate says") {
  const auto kept_share = [](const Case& c, const std::string& option) {
    const Outcome vanilla = run(c.checkpoint, c.request, {});
    const Outcome slim = run(converted(c, option), c.request, slim_session("slim", Kernels::Fused));
    CHECK(slim.estimated_bytes * vanilla.kept_bytes == vanilla.estimated_bytes * slim.kept_bytes);
    return static_cast<double>(slim.kept_bytes) / static_cast<double>(vanilla.kept_bytes);
  };
  CHECK(kept_share(oracle_case("llama_mha"), "kcache") == 0.5);
  CHECK(kept_share(oracle_case("opt"), "vcache") == 0.5);
  CHECK(kept_share(oracle_case("opt"), "xcache") == 0.5);
  CHECK(kept_share(oracle_case("whisper"), "encdec1") == 0.5);
  const std::vector<Case> cases = random_cases();
  CHECK(kept_share(cases[0], "kcache") == 24.0 / (2 * 16));  // D / 2e, appendix G
  CHECK(kept_share(cases[1], "kcache") == 0.5);
}

TEST_CASE("slim: the encoder's states are kept once, and nothing of each layer") {
  const Case c = oracle_case("whisper");
  const Architecture& a = c.checkpoint.architecture();
  const Outcome vanilla = run(c.checkpoint, c.request, {});
  const std::uint64_t batch = c.request.tokens.size();
  const std::uint64_t states = batch * a.max_source_positions * a.hidden_size * sizeof(double);
  const std::uint64_t cross = 2 * a.num_hidden_layers() * states;
  for (const char* option : {"encdec2", "hybrid"}) {
    const Outcome slim = run(converted(c, option), c.request, slim_session("slim", Kernels::Fused));
    CHECK(slim.kept_bytes == (vanilla.kept_bytes - cross) / 2 + states);
    CHECK(slim.estimated_bytes == (vanilla.estimated_bytes - cross) / 2 + states);
  }
}

TEST_CASE("slim: fp32 kernels give the reference's logits, 1e-4 of their range") {
  for (const FormOf& f : {FormOf{"llama_mha", "kcache"},
                          {"gpt_neox", "kcache"},
                          {"opt", "xcache"},
                          {"gpt2", "vcache"},
                          {"t5", "encdec2"},
                          {"whisper", "encdec1"},
                          {"whisper", "hybrid"}}) {
    CAPTURE(f.name);
    const OracleCase oracle(f.name);
    const Case c = oracle_case(f.name);
    const Checkpoint checkpoint = converted(c, f.option);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      SessionOptions o = slim_session("slim", kernels);
      o.logits = Logits::All;
      o.decoder_tokens = c.request.tokens.front().size();
      const Session session(checkpoint, o);
      Request request = c.request;
      // Decode steps too: their greedy tokens are those of the plain counting loops.
      const Generation g = session.run(request);
      CHECK(execute::relative_difference(g.logits, oracle.tensors.at("logits")) < 1e-4);
      CHECK(g.tokens == run(checkpoint, c.request, slim_session("slim", kernels)).tokens);
    }
  }
}

std::string error_of(const Case& c, const SlimConversion& conversion, const char* folder) {
  const std::filesystem::path output = test_folder() / folder;
  std::filesystem::remove_all(output);
  const std::string line = message_of([&] { convert_to_slim(c.checkpoint, output, conversion); });
  CHECK(!std::filesystem::exists(output));
  return line;
}

TEST_CASE("slim: what cannot be converted is refused with the reason, and nothing is written") {
  const auto contains = [](const std::string& text, std::string_view part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const Case llama = oracle_case("llama_mha");
  const Case clipped = oracle_case("olmoe_clipped");
  contains(error_of(clipped, conversion_of(clipped, "xcache"), "refused"), "are clipped");
  const Case latents = oracle_case("minicpm3");
  contains(error_of(latents, conversion_of(latents, "auto"), "refused"), "latents are smaller");
  const Case grouped = oracle_case("llama_mqa_linear_rope");
  contains(error_of(grouped, conversion_of(grouped, "auto"), "refused"), "more than half");
  contains(error_of(grouped, conversion_of(grouped, "kcache"), "refused"), "more than half");
  const Case sinks = oracle_case("gpt_oss");
  contains(error_of(sinks, conversion_of(sinks, "xcache"), "refused"), "has sinks");
  contains(error_of(llama, conversion_of(llama, "encdec2"), "refused"), "decoder-only");
  contains(error_of(llama, conversion_of(llama, "kcahe"), "refused"), "kcache");
  contains(error_of(llama, conversion_of(llama, "plain"), "refused"), "unknown option 'plain'");
  SlimConversion strict = conversion_of(llama, "kcache");
  strict.max_error = 1e-15;
  contains(error_of(llama, strict, "refused"), "no layer can be converted");
  SlimConversion brief = conversion_of(llama, "kcache");
  brief.calibration.tokens = {{1, 2, 3}};
  contains(error_of(llama, brief, "refused"), "at least 8");

  const Checkpoint slim = converted(llama, "kcache");
  contains(error_of({"again", slim, llama.request}, conversion_of(llama, "kcache"), "refused"),
           "converted");
}

json small_llama() {
  return {{"model_type", "llama"},        {"hidden_size", 16},       {"num_hidden_layers", 2},
          {"num_attention_heads", 2},     {"intermediate_size", 24}, {"vocab_size", 61},
          {"max_position_embeddings", 64}};
}

using Change = std::function<void(std::vector<float>&)>;

/// A case with projections of the first layer changed in its file.
Case with_weights(const std::string& name, const std::map<std::string, Change>& changes) {
  const Case c = random_case(name, small_llama());
  change_tensors(c.checkpoint.path(), [&](const std::string& tensor, std::vector<float>& w) {
    for (const auto& [projection, change] : changes) {
      if (tensor.ends_with("layers.0.self_attn." + projection + ".weight")) change(w);
    }
  });
  return {name, Checkpoint(c.checkpoint.path()), c.request};
}

void two_equal_rows(std::vector<float>& w) { std::copy_n(w.begin(), 16, w.begin() + 16); }

TEST_CASE("slim: a singular layer stays plain and says so, and runs beside converted ones") {
  const Case c = with_weights("singular", {{"k_proj", two_equal_rows}});
  const std::filesystem::path folder = test_folder() / "singular_slim";
  const SlimReport report = convert_to_slim(c.checkpoint, folder, conversion_of(c, "kcache"));
  CHECK(report.layers[0].chosen == CacheForm::KeysAndValues);
  CHECK(std::isinf(*report.layers[0].key_condition));
  CHECK(report.layers[0].reason.find("condition inf") != std::string::npos);
  CHECK(report.layers[1].chosen == CacheForm::Keys);
  const Outcome vanilla = run(c.checkpoint, c.request, {});
  const Outcome slim = run(Checkpoint(folder), c.request, slim_session("slim", Kernels::Fused));
  CHECK(relative_difference(slim.logits, vanilla.logits) < 1e-10);
}

TEST_CASE("slim: with rotary positions too values serve where keys do not, and the price is said") {
  const Case c = with_weights("singular_keys", {{"k_proj", two_equal_rows}});
  const std::filesystem::path folder = test_folder() / "singular_keys_slim";
  const SlimReport report = convert_to_slim(c.checkpoint, folder, conversion_of(c, "auto"));
  CHECK(report.layers[0].chosen == CacheForm::Values);
  CHECK(report.layers[0].reason.find("kcache: error inf") == 0);
  CHECK(report.layers[0].reason.find("vcache: every step computes the keys of all tokens anew") !=
        std::string::npos);
  CHECK(report.layers[1].chosen == CacheForm::Keys);
  CHECK(report.layers[1].reason.empty());
  const Outcome vanilla = run(c.checkpoint, c.request, {});
  const Outcome slim = run(Checkpoint(folder), c.request, slim_session("slim", Kernels::Fused));
  CHECK(slim.tokens == vanilla.tokens);
  CHECK(relative_difference(slim.logits, vanilla.logits) < 1e-10);
  CHECK(slim.kept_bytes * 2 == vanilla.kept_bytes);
}

TEST_CASE("slim: a layer that stays plain names every form that it could not take") {
  const Case c =
      with_weights("singular_both", {{"k_proj", two_equal_rows}, {"v_proj", two_equal_rows}});
  const std::filesystem::path folder = test_folder() / "singular_both_slim";
  const SlimReport report = convert_to_slim(c.checkpoint, folder, conversion_of(c, "auto"));
  CHECK(report.layers[0].chosen == CacheForm::KeysAndValues);
  for (const char* form : {"kcache: error inf", "vcache: error inf"}) {
    CAPTURE(report.layers[0].reason);
    CHECK(report.layers[0].reason.find(form) != std::string::npos);
  }
}

/// Keys of a 2^20th: W_KV grows by that.
void tiny(std::vector<float>& w) {
  for (float& x : w) x *= 0x1p-20F;
}

SlimConversion in_fp16(const Case& c, const std::string& option) {
  SlimConversion conversion = conversion_of(c, option);
  conversion.dtype = DType::FP16;
  return conversion;
}

TEST_CASE("slim: weights beyond fp16 are refused, and nothing is written") {
  const Case c = with_weights("small_keys", {{"k_proj", tiny}});
  const std::string line = error_of(c, in_fp16(c, "kcache"), "refused");
  CAPTURE(line);
  CHECK(line.find("layer 0, kcache in fp16: got weights of up to") != std::string::npos);
  CHECK(line.find("65504") != std::string::npos);
}

TEST_CASE("slim: beyond fp16 another form is taken, and a layer with none is refused, not kept") {
  const Case small = with_weights("small_keys_auto", {{"k_proj", tiny}});
  const SlimReport report =
      convert_to_slim(small.checkpoint, test_folder() / "small_keys_slim", in_fp16(small, "auto"));
  CHECK(report.layers[0].chosen == CacheForm::Values);
  CAPTURE(report.layers[0].reason);
  CHECK(report.layers[0].reason.find("beyond fp16's 65504; vcache:") != std::string::npos);

  const Case neither =
      with_weights("small_keys_only", {{"k_proj", tiny}, {"v_proj", two_equal_rows}});
  const std::string line = error_of(neither, in_fp16(neither, "auto"), "refused");
  CAPTURE(line);
  CHECK(line.find("layer 0, kcache in fp16: got weights of up to") != std::string::npos);
  CHECK(line.find("--dtype bf16 or fp32") != std::string::npos);

  // Where fp32 fails too, the condition is what is wrong, and the layer stays plain.
  const auto nearly_equal_rows = [](std::vector<float>& w) {
    for (std::size_t i = 0; i < 16; ++i) w[16 + i] = w[i] * (1 + (i % 2 == 0 ? 0x1p-22F : 0));
  };
  const Case bad =
      with_weights("bad_keys", {{"k_proj", nearly_equal_rows}, {"v_proj", two_equal_rows}});
  const SlimReport kept =
      convert_to_slim(bad.checkpoint, test_folder() / "bad_keys_slim", in_fp16(bad, "auto"));
  CHECK(kept.layers[0].errors.at(CacheForm::Keys).at(DType::FP32) > 0.5);
  CHECK(kept.layers[0].largest_weight.at(CacheForm::Keys) > 65504);
  CHECK(kept.layers[0].chosen == CacheForm::KeysAndValues);
  CHECK(kept.layers[0].reason.find("beyond fp16's 65504") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::slim_cases
