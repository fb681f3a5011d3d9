#include "model/io/weights/packed_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/units.h"
#include "model/families/wrappers.h"
#include "model/io/tensors/packed_weight.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast {
namespace {

using Method = Packing::Method;

constexpr std::pair<std::string_view, Method> methods[] = {
    {"fp8", Method::Fp8},     {"fbgemm_fp8", Method::Fp8},
    {"mxfp4", Method::Mxfp4}, {"awq", Method::Awq},
    {"gptq", Method::Gptq},   {"compressed-tensors", Method::CompressedTensors}};

/// The text must be one of these.
void check_text(const JsonObject& q, const char* key, std::string_view fallback,
                const std::vector<std::string_view>& known) {
  const std::string text = lower_case(q.text_or(key, std::string(fallback)));
  if (std::find(known.begin(), known.end(), text) != known.end()) return;
  std::string expected;
  for (const std::string_view one : known) {
    expected += (expected.empty() ? "" : " or ") + std::string(one);
  }
  q.fail(key, expected);
}

/// [outputs, inputs] of a block.
void read_block(const JsonObject& q, const char* key, Packing& p) {
  if (!q.has(key)) return;
  const std::vector<std::uint64_t> block = q.wholes(key);
  if (block.size() != 2 || block[0] == 0 || block[1] == 0) q.fail(key, "two numbers above 0");
  p.rows = block[0];
  p.columns = block[1];
}

/// Of int4: "bits" and "group_size", -1 for one group for each output.
void read_groups(const JsonObject& q, const char* bits, const char* group, Packing& p) {
  if (!q.has(bits) || q.at(bits) != 4) q.fail(bits, "4");
  if (!q.has(group)) q.fail(group, "a whole number above 0, or -1");
  if (q.at(group) == -1) return;
  p.group = q.whole(group);
}

void read_compressed(const JsonObject& q, Packing& p) {
  check_text(q, "format", "", {"float-quantized", "pack-quantized"});
  if (q.has("kv_cache_scheme")) q.fail("kv_cache_scheme", "null: the cache has --cache-dtype");
  if (q.has("sparsity_config")) {
    const JsonObject sparsity = q.object("sparsity_config");
    if (!sparsity.keys().empty()) check_text(sparsity, "format", "dense", {"dense"});
  }
  // Rotations of what a product reads.
  if (q.has("transform_config") && !q.object("transform_config").keys().empty()) {
    q.fail("transform_config", "none");
  }
  const JsonObject groups = q.object("config_groups");
  std::set<std::uint64_t> sizes;  // of groups of integers, 0 for whole rows
  for (const std::string& name : groups.keys()) {
    const JsonObject group = groups.object(name);
    if (!group.has("weights")) continue;
    const JsonObject weights = group.object("weights");
    const bool floats = weights.text_or("type", "int") == "float";
    if (!weights.has("num_bits") || weights.at("num_bits") != (floats ? 8 : 4)) {
      weights.fail("num_bits", floats ? "8 of floats" : "4 of integers");
    }
    if (!weights.flag_or("symmetric", true)) weights.fail("symmetric", "true");
    read_block(weights, "block_structure", p);
    const bool whole_rows = !weights.has("group_size") || weights.at("group_size") == -1;
    if (!floats) sizes.insert(whole_rows ? 0 : weights.whole("group_size"));
  }
  if (sizes.size() == 1) p.group = *sizes.begin();
}

class Uniter {
 public:
  Uniter(std::vector<StoredTensor> stored, const Packing& packing)
      : stored_(std::move(stored)), packing_(packing) {
    for (const StoredTensor& t : stored_) tensors_.emplace(t.name, &t);
  }

  std::vector<StoredTensor> united() {
    std::vector<StoredTensor> weights;
    for (const StoredTensor& t : stored_) {
      if (std::optional<StoredTensor> weight = weight_of(t)) weights.push_back(std::move(*weight));
    }
    std::vector<StoredTensor> all;
    for (StoredTensor& t : stored_) {
      if (!used_.contains(t.name)) all.push_back(t);
    }
    for (StoredTensor& w : weights) {
      const auto same = std::find_if(all.begin(), all.end(),
                                     [&](const StoredTensor& t) { return t.name == w.name; });
      if (same != all.end()) {
        throw Error(same->place(), "the weight twice, also packed", "each weight once");
      }
    }
    std::move(weights.begin(), weights.end(), std::back_inserter(all));
    return all;
  }

 private:
  /// The one with that name; it is a part of a weight.
  std::optional<StoredTensor> take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    used_.insert(name);
    return *found->second;
  }
  StoredTensor need(const std::string& name, const StoredTensor& of) {
    if (std::optional<StoredTensor> t = take(name)) return *t;
    throw Error(of.place() + ": tensor " + shortened(name) + ", which belongs to it, is missing");
  }

  /// The weight whose codes these are, if they are.
  std::optional<StoredTensor> weight_of(const StoredTensor& t) {
    const auto stem = [&](std::string_view ending) -> std::optional<std::string> {
      if (!t.name.ends_with(ending)) return {};
      return t.name.substr(0, t.name.size() - ending.size());
    };
    std::optional<std::string> s;
    switch (packing_.method) {
      case Method::CompressedTensors:
        if ((s = stem(".weight_packed"))) return packed_rows(t, *s);
        [[fallthrough]];
      case Method::Fp8:
        if (t.type == "F8_E4M3") return fp8(t);
        return {};
      case Method::Mxfp4:
        if (!(s = stem("_blocks"))) return {};
        used_.insert(t.name);
        return packed_tensor(*s, Fp4Weight{t, need(*s + "_scales", t)});
      case Method::Awq:
      case Method::Gptq:
        if ((s = stem(".qweight"))) return groups(t, *s);
        return {};
    }
    return {};
  }

  StoredTensor fp8(const StoredTensor& t) {
    used_.insert(t.name);
    std::optional<StoredTensor> scales = take(t.name + "_scale_inv");
    if (!scales) scales = need(t.name + "_scale", t);
    // Of activations, which stay in fp32.
    const std::string module = t.name.substr(0, t.name.rfind('.') + 1);
    for (const char* const of : {"input_scale", "input_scale_ub", "activation_scale"}) {
      take(module + of);
    }
    Fp8Weight w{t, std::move(*scales)};
    if (t.shape.size() == 2) {
      const bool of_outputs = w.scales.elements() > 1;
      w.rows = packing_.rows > 0 ? packing_.rows
               : of_outputs      ? 1
                                 : std::max<std::uint64_t>(t.shape[0], 1);
      w.columns = packing_.columns > 0 ? packing_.columns : std::max<std::uint64_t>(t.shape[1], 1);
    }
    return packed_tensor(t.name, std::move(w));
  }

  StoredTensor groups(const StoredTensor& t, const std::string& module) {
    used_.insert(t.name);
    const bool awq = packing_.method == Method::Awq;
    Int4Weight w{awq ? Int4Weight::Order::Outputs : Int4Weight::Order::Inputs, t,
                 need(module + ".scales", t), need(module + ".qzeros", t)};
    w.zero_offset = packing_.zero_offset;
    w.group = packing_.group;
    if (const std::optional<StoredTensor> index = take(module + ".g_idx"); index && !awq) {
      w.groups = words_of(*index);
    }
    if (packing_.has_own_order && w.groups.empty()) {
      throw Error(t.place() + ": the groups of its inputs, " + shortened(module + ".g_idx") +
                  ", are missing; expected them with desc_act");
    }
    return packed_tensor(module + ".weight", std::move(w));
  }

  StoredTensor packed_rows(const StoredTensor& t, const std::string& module) {
    used_.insert(t.name);
    for (const char* const other : {".weight_zero_point", ".weight_g_idx"}) {
      if (const std::optional<StoredTensor> found = take(module + other)) {
        throw Error(found->place(), "a packed weight with zeros or an order of inputs",
                    "symmetric groups in order");
      }
    }
    take(module + ".weight_shape");
    Int4Weight w{Int4Weight::Order::Rows, t, need(module + ".weight_scale", t)};
    // Without one size for all, as many groups as there are scales.
    const std::uint64_t scales = w.scales.shape.empty() ? 0 : w.scales.shape.back();
    const std::uint64_t in = t.shape.empty() ? 0 : checked_multiply(t.shape.back(), 8);
    w.group = packing_.group;
    if (w.group > 0) return packed_tensor(module + ".weight", std::move(w));
    if (scales == 0 || in % scales != 0) {
      throw Error(w.scales.place(), std::to_string(scales) + " groups",
                  "a divisor of " + std::to_string(in) + " inputs");
    }
    w.group = in / scales;
    return packed_tensor(module + ".weight", std::move(w));
  }

  static std::vector<std::uint32_t> words_of(const StoredTensor& t) {
    if (t.type != "I32") throw Error(t.place(), "element type " + t.type, "I32");
    std::vector<std::uint32_t> words(t.bytes.size() / sizeof(std::uint32_t));
    std::ranges::copy(t.bytes, std::as_writable_bytes(std::span(words)).begin());
    return words;
  }

  std::vector<StoredTensor> stored_;
  const Packing& packing_;
  std::map<std::string, const StoredTensor*, std::less<>> tensors_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

Packing read_packing(const JsonObject& q) {
  const std::string method = q.text_or("quant_method", "unnamed");
  const auto known = std::find_if(std::begin(methods), std::end(methods),
                                  [&](const auto& m) { return m.first == method; });
  if (known == std::end(methods)) {
    std::string expected;
    for (const auto& [name, of] : methods) {
      expected += (expected.empty() ? "" : ", ") + std::string(name);
    }
    throw Error(q.place(), method + " weights", expected + " or none");
  }
  Packing p{known->second};
  switch (p.method) {
    case Method::Fp8:
      check_text(q, "fmt", "e4m3", {"e4m3"});
      read_block(q, "weight_block_size", p);
      break;
    case Method::Mxfp4: break;
    case Method::Awq:
      check_text(q, "version", "gemm", {"gemm"});
      read_groups(q, q.has("w_bit") ? "w_bit" : "bits",
                  q.has("q_group_size") ? "q_group_size" : "group_size", p);
      break;
    case Method::Gptq: {
      check_text(q, "checkpoint_format", "gptq", {"gptq", "gptq_v2"});
      if (q.flag_or("is_marlin_format", false)) q.fail("is_marlin_format", "false");
      read_groups(q, "bits", "group_size", p);
      p.has_own_order = q.flag_or("desc_act", false);
      // The first version stores zeros less 1.
      p.zero_offset = q.text_or("checkpoint_format", "gptq") == "gptq" ? 1 : 0;
      break;
    }
    case Method::CompressedTensors: read_compressed(q, p); break;
  }
  return p;
}

std::vector<StoredTensor> unite_packed(std::vector<StoredTensor> stored, const Packing& packing) {
  return Uniter(std::move(stored), packing).united();
}

std::vector<StoredTensor> read_checkpoint_folder(const std::filesystem::path& folder,
                                                 const nlohmann::json& config) {
  const std::string place = (folder / "config.json").string();
  const std::optional<TextConfig> text = text_config(config, place);
  const JsonObject object =
      text ? JsonObject(text->config, text->place) : JsonObject(config, place);
  if (!object.has("quantization_config")) return read_safetensors_folder(folder);
  const Packing packing = read_packing(object.object("quantization_config"));
  return unite_packed(read_safetensors_folder(folder), packing);
}

}  // namespace kvcast
