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
  std::string tokens_name = "--tokens";  ///< what errors call it
  std::string prompt;
  std::string prompt_name = "--prompt";  ///< what errors call it
  std::string prompt_file;
  std::string file_name = "--prompt-file";  ///< what errors call it
  std::string encoder_tokens;
  std::string encoder_tokens_name = "--encoder-tokens";  ///< what errors call it
  std::string features;
  std::string audio;
  std::string audio_name = "--audio";  ///< what errors call it
  std::uint64_t fewest_positions = 0;  ///< of the encoder that the audio has to fill
  std::string language = "en";
  std::string prompt_len;  ///< of a prompt made up: for measuring
  std::string batch = "1";

  void add_to(Command command);
  /// True for a prompt file that is not a .json with token ids.
  bool has_text_file() const;
};

/// The checkpoint's tokenizer, or nothing when it has none; `why` says what was looked for.
std::optional<text::Tokenizer> find_tokenizer(const Checkpoint& checkpoint, std::string& why);

/// Everything of a request but its length and callbacks. Throws Error naming the flag when none or
/// several prompts are given, or when they do not fit the model.
execute::Request read_request(const RunInputs& inputs, const Checkpoint& checkpoint,
                              const std::optional<text::Tokenizer>& tokenizer,
                              const std::string& no_tokenizer,
                              const std::function<void(const std::string&)>& warn);

}  // namespace kvcast::cli
