/// The checkpoints of tests/oracle and what transformers computes from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/execute/generate.h"
#include "model/io/audio/log_mel.h"
#include "tests/execute/relative_difference.h"
#include "tests/execute/stored_numbers.h"

namespace kvcast::execute {

inline std::filesystem::path oracle_folder() {
  return std::filesystem::path(KVCAST_SOURCE_DIR) / "tests" / "oracle";
}

/// Of a generation in either precision.
inline std::vector<double> logits_of(const Generation& g) {
  if (!g.logits64.empty()) return {g.logits64.begin(), g.logits64.end()};
  return {g.logits.begin(), g.logits.end()};
}

/// The names of all cases.
inline std::vector<std::string> oracle_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(oracle_folder())) {
    if (std::filesystem::exists(entry.path() / "expected.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  KVCAST_ASSERT(names.size() == 128);  // else a case, and with it its checks, went missing
  return names;
}

struct OracleCase {
  explicit OracleCase(const std::string& name)
      : OracleCase(oracle_folder() / name, oracle_folder() / name) {}
  /// With the weights of another file.
  OracleCase(std::filesystem::path expected_in, const std::filesystem::path& weights)
      : folder(std::move(expected_in)), checkpoint(weights) {
    const nlohmann::json expected = read_json_file(folder / "expected.json");
    const auto ids = [&](const char* key) {
      return expected.contains(key) ? expected.at(key).get<std::vector<std::vector<TokenId>>>()
                                    : std::vector<std::vector<TokenId>>();
    };
    prompt = ids("prompt");
    greedy_prompt = ids("greedy_prompt");
    greedy = ids("greedy");
    encoder_tokens = ids("encoder_tokens");
    tensors = stored_numbers(folder / "expected.safetensors");
    if (std::filesystem::exists(folder / "features.safetensors")) read_features();
  }

  /// A request for the given decoder (or only) tokens.
  Request request(std::vector<std::vector<TokenId>> tokens, std::uint64_t output_len) const {
    Request r;
    r.tokens = std::move(tokens);
    r.encoder_tokens = encoder_tokens;
    r.features = features;
    r.output_len = output_len;
    return r;
  }

  std::filesystem::path folder;
  Checkpoint checkpoint;
  std::vector<std::vector<TokenId>> prompt;
  std::vector<std::vector<TokenId>> greedy_prompt;
  std::vector<std::vector<TokenId>> greedy;
  std::vector<std::vector<TokenId>> encoder_tokens;
  std::vector<float> features;  ///< [batch, frames, mel bins]
  std::map<std::string, std::vector<float>> tensors;

 private:
  void read_features() {
    for (const StoredTensor& t :
         read_safetensors(MappedFile::open(folder / "features.safetensors"))) {
      std::vector<float> stored(t.elements());
      read_elements(t, 0, stored);
      const std::vector<float> sequence = audio::by_frame(stored, t.shape[0]);
      features.insert(features.end(), sequence.begin(), sequence.end());
    }
  }
};

/// A small model that the methods fit.
inline std::string case_for(const std::vector<MethodSpec>& methods) {
  const std::string grouped = "llama_gqa_llama3_rope";
  try {
    record(OracleCase(grouped).checkpoint.architecture(), methods, {});
    return grouped;
  } catch (const Error&) {
    return "llama_mha";
  }
}

/// What the methods run on: the case's checkpoint, or random weights in its shape where they need
/// weights that a conversion has made.
inline Checkpoint checkpoint_for(const OracleCase& c, const std::vector<MethodSpec>& methods) {
  const Architecture& a = c.checkpoint.architecture();
  const Recording r = record(a, methods, {});
  const bool given =
      r.conversion.empty() && std::none_of(r.helper_models.begin(), r.helper_models.end(),
                                           [](const HelperModel& m) { return m.name.empty(); });
  return given ? c.checkpoint : Checkpoint(a, 1);
}

}  // namespace kvcast::execute
