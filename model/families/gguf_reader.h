/// What a family asks a GGUF file: the metadata of its architecture, and its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/tensors/gguf.h"

namespace kvcast {

/// "llama.block_count" is asked for as "block_count". Throws Error "FILE: metadata KEY: ..." for
/// what is missing or impossible.
class GgufReader {
 public:
  explicit GgufReader(const GgufFile& file)
      : file_(file), prefix_(std::string(file.metadata.text("general.architecture")) + ".") {}

  const GgufMetadata& metadata() const { return file_.metadata; }
  /// The whole name of a key of the architecture, which counts as read from then on.
  std::string key(std::string_view key) const {
    return *asked_.insert(prefix_ + std::string(key)).first;
  }
  /// Counts a key as read that changes nothing in this file.
  void pass_over(std::string_view k) const { key(k); }
  /// Keys of the architecture that nobody asked for, in the file's order.
  std::vector<std::string> unread_keys() const;
  bool has(std::string_view k) const { return metadata().has(key(k)); }
  bool has_tensor(std::string_view name) const { return file_.has(name); }

  /// A number that all layers share, given once or once a layer.
  std::uint64_t whole(std::string_view k) const;
  std::uint64_t whole_or(std::string_view k, std::uint64_t fallback) const {
    return has(k) ? whole(k) : fallback;
  }
  double number(std::string_view k) const { return metadata().number(key(k)); }
  double number_or(std::string_view k, double fallback) const {
    return metadata().number_or(key(k), fallback);
  }
  bool flag_or(std::string_view k, bool fallback) const {
    return metadata().flag_or(key(k), fallback);
  }
  /// One number a layer, at least `least`; a single number stands for all of them.
  std::vector<std::uint64_t> by_layer(std::string_view k, std::uint64_t least = 1) const;
  /// The number that all layers share but those that have 0; 0: none has another.
  std::uint64_t whole_or_none(std::string_view k) const;
  /// One flag for each of the model's layers.
  std::vector<bool> flags(std::string_view k) const;

  std::uint64_t num_layers() const;
  /// The same without layers that predict further tokens, which stand last.
  std::uint64_t num_hidden_layers() const;
  /// Which layers have a sliding window. `usual`: every how many layers one has none, where the
  /// file does not say.
  std::vector<bool> windowed_layers(std::uint64_t usual) const;
  /// Whether a layer has a tensor of this name, such as "attn_q.bias".
  bool has_in_layers(std::string_view name) const;
  /// Which of the model's layers have it.
  std::vector<bool> layers_with(std::string_view name) const;
  /// Which layers have key-value heads.
  std::vector<bool> attending_layers() const;
  /// Of queries, keys and values.
  bool has_projection_bias() const {
    return has_in_layers("attn_q.bias") || has_in_layers("attn_qkv.bias");
  }
  /// Of keys and of values alike.
  std::uint64_t head_dim() const;
  /// The rows of token_embd.weight: files say the vocabulary's size in various ways or not at all.
  std::uint64_t vocab_size() const {
    return rows("token_embd.weight", "a table of the tokens' embeddings");
  }
  /// The rows of a matrix. `what` it is, for errors.
  std::uint64_t rows(std::string_view name, std::string_view what) const;
  /// The values of a tensor that belongs to the config.
  std::vector<float> values(std::string_view name) const;

 private:
  const GgufFile& file_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace kvcast
