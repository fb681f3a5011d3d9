/// What `kvcast run` reads before it runs: prompts, encoder inputs, the tokenizer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame/arguments.h"
#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::cli {

/// As the user typed them.
struct RunInputs {
  std::string tokens;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string encoder_tokens;
  std::string features;
  std::string audio;
  std::uint64_t fewest_positions = 0;   ///< of the encoder that the audio has to fill
  std::optional<std::string> language;  ///< of the audio; no value: English
  std::string prompt_len;               ///< of a prompt made up: for measuring
  std::string batch = "1";
  std::string prefix = "--";  ///< of the flags, as errors name them
  std::string encoder_tokens_flag = "--encoder-tokens";

  void add_to(Command command);
  std::string flag(const char* name) const { return prefix + name; }
  /// True for a prompt file that is not a .json with token ids.
  bool has_text_file() const;
};

/// A checkpoint's tokenizer, or what was looked for.
struct FoundTokenizer {
  std::optional<text::Tokenizer> tokenizer = {};
  std::string missing = {};

  explicit operator bool() const { return tokenizer.has_value(); }
  const text::Tokenizer& operator*() const { return *tokenizer; }
  const text::Tokenizer* operator->() const { return &*tokenizer; }
};
FoundTokenizer find_tokenizer(const Checkpoint& checkpoint);

/// The token ids of a text file, or those in a .json. `name` is what errors call the file. Throws
/// Error when it cannot be read or has ids that the model has not.
std::vector<std::vector<execute::TokenId>> read_token_file(const std::string& path,
                                                           const std::string& name,
                                                           const Architecture& a,
                                                           const FoundTokenizer& tokenizer);

/// Everything of a request but its length and callbacks. Throws Error naming the flag when none or
/// several prompts are given, or when they do not fit the model.
execute::Request read_request(const RunInputs& inputs, const Checkpoint& checkpoint,
                              const FoundTokenizer& tokenizer,
                              const std::function<void(const std::string&)>& warn);

}  // namespace kvcast::cli
