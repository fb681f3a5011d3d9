#include "model/train/token_windows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/base/error.h"
#include "model/base/random.h"
#include "model/base/read_file.h"
#include "model/io/files/fnv_hash.h"

namespace kvcast::train {
namespace {

constexpr std::uint64_t longest_text = std::uint64_t{4} << 30;

std::string read_text(const std::filesystem::path& path) {
  std::string text = read_file(path, "a text", longest_text);
  if (text.empty()) throw Error(path.string(), "an empty file", "text");
  return text;
}

}  // namespace

std::vector<TokenId> TextEncoder::encode(const std::vector<std::filesystem::path>& files) const {
  std::vector<TokenId> tokens;
  for (const std::filesystem::path& path : files) {
    const std::string text = read_text(path);
    if (!tokenizer_) {
      for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
      continue;
    }
    try {
      const std::vector<TokenId> ids = tokenizer_->encode(text);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    } catch (const Error& e) {
      throw Error(path.string(), e);
    }
    if (!tokenizer_->end_of_text().empty()) tokens.push_back(tokenizer_->end_of_text().front());
  }
  return tokens;
}

TokenWindows::TokenWindows(std::vector<TokenId> tokens, std::size_t seq_len, std::uint64_t seed)
    : tokens_(std::move(tokens)), seq_len_(seq_len), seed_(seed) {
  if (tokens_.size() < seq_len + 1) {
    throw Error("the text", std::to_string(tokens_.size()) + " tokens",
                "at least a window of " + std::to_string(seq_len) + " and the token after it");
  }
}

std::string TokenWindows::fingerprint() const {
  FnvHash hash;
  hash.add(tokens_.data(), tokens_.size() * sizeof(TokenId));
  return hash.text();
}

std::span<const TokenId> TokenWindows::drawn(std::uint64_t n) {
  const std::uint64_t epoch = n / size();
  if (epoch_ != epoch) {
    order_.resize(size());
    std::iota(order_.begin(), order_.end(), 0U);
    Random random(seed_, epoch);
    for (std::size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[random.below(static_cast<std::uint32_t>(i))]);
    }
    epoch_ = epoch;
  }
  return window(order_[n % size()]);
}

}  // namespace kvcast::train
