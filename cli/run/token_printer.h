/// Generated tokens as text.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::cli {

/// The text of generated tokens; ids that only pad the model's vocabulary have none.
inline std::string text_of(const text::Tokenizer& tokenizer, std::vector<execute::TokenId> tokens) {
  std::erase_if(tokens, [&](execute::TokenId token) { return token >= tokenizer.vocab_size(); });
  return tokenizer.decode(tokens);
}

/// Prints text as it comes, or token ids where there is no tokenizer.
class Printer {
 public:
  explicit Printer(const std::optional<text::Tokenizer>& tokenizer) {
    if (!tokenizer) return;
    stream_.emplace(*tokenizer);
    vocab_size_ = tokenizer->vocab_size();
  }
  void operator()(execute::TokenId token) {
    if (stream_ && token >= vocab_size_) return;  // the model's vocabulary is padded
    write(stream_ ? stream_->push(token) : fmt::format("{}{}", first_ ? "" : ",", token));
    first_ = false;
  }
  void finish() { write((stream_ ? stream_->finish() : "") + "\n"); }

 private:
  static void write(const std::string& text) {
    print_text(text);
    std::fflush(stdout);
  }
  std::optional<text::StreamDecoder> stream_;
  std::size_t vocab_size_ = 0;
  bool first_ = true;
};

}  // namespace kvcast::cli
