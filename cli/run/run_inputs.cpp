#include "cli/run/run_inputs.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/request_options.h"
#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/base/read_file.h"
#include "model/families/gguf_config.h"
#include "model/io/audio/log_mel.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast::cli {
namespace fs = std::filesystem;
namespace {

using execute::TokenId;
using Sequences = std::vector<std::vector<TokenId>>;

constexpr int whisper_seconds = 30;  // openai/whisper, whisper/audio.py, CHUNK_LENGTH
// Our limits: beyond what a machine can run, so that a typing error does not fill its memory.
constexpr std::uint64_t max_numbers = std::uint64_t{1} << 28;  ///< of a whole batch's input
constexpr std::uint64_t max_made_up = std::uint64_t{1} << 24;
constexpr std::uint64_t max_copies = 4096;

/// "1,2,3;4,5,6": sequences by semicolons, ids by commas.
Sequences parse_ids(const std::string& text, const std::string& flag) {
  Sequences sequences(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    while (at != end && *at == ' ') ++at;
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc()) {
      throw Error(flag, "'" + text + "'", "token ids such as 1,2,3 (sequences joined by ;)");
    }
    sequences.back().push_back(id);
    at = rest;
    while (at != end && *at == ' ') ++at;
    if (at == end) return sequences;
    if (*at == ';') sequences.emplace_back();
    if (*at != ',' && *at != ';') {
      throw Error(flag, fmt::format("'{}' after a token id", *at), "a comma or a semicolon");
    }
    ++at;
  }
}

/// `instead`: what is expected where there is no tokenizer.
Sequences encode(const std::string& text, const std::string& flag, const std::string& instead,
                 const FoundTokenizer& tokenizer) {
  if (text.empty()) throw Error(flag, "an empty text", "a prompt");
  if (!tokenizer) throw Error(flag + ": " + tokenizer.missing + "; expected " + instead);
  std::vector<TokenId> ids = tokenizer->encode(text);
  if (ids.empty()) throw Error(flag, "a text of no tokens", "a prompt");
  return {ids};
}

/// The token ids of a .json file, one list or several; none for a file of text.
std::optional<Sequences> ids_of_file(const std::string& path, const std::string& name) {
  if (fs::path(path).extension() != ".json") return {};
  const nlohmann::json j = parse_flag(name.c_str(), path, read_json_file);
  const auto is_list = [](const nlohmann::json& list) {
    return list.is_array() && !list.empty() &&
           std::all_of(list.begin(), list.end(),
                       [](const nlohmann::json& id) { return id.is_number_unsigned(); });
  };
  const auto to_ids = [](const nlohmann::json& list) {
    std::vector<TokenId> ids;
    for (const nlohmann::json& id : list) {
      const auto value = id.get<std::uint64_t>();
      ids.push_back(static_cast<TokenId>(std::min<std::uint64_t>(value, 0xFFFFFFFF)));
    }
    return ids;
  };
  if (is_list(j)) return Sequences{to_ids(j)};
  if (!j.is_array() || j.empty() || !std::all_of(j.begin(), j.end(), is_list)) {
    throw Error(name + " " + path, "another JSON document", "a list of token ids");
  }
  Sequences sequences;
  for (const nlohmann::json& list : j) sequences.push_back(to_ids(list));
  return sequences;
}

std::vector<float> read_features(const std::string& path, const Architecture& a) {
  for (const StoredTensor& t : read_safetensors(MappedFile::open(path))) {
    if (t.name != "features") continue;
    if (t.shape.size() != 2 || t.shape[0] != a.num_mel_bins) {
      throw Error(
          t.place(),
          fmt::format("{} dimensions, the first of {}", t.shape.size(),
                      t.shape.empty() ? 0 : t.shape[0]),
          fmt::format("[{}, {}], mel bins and frames", a.num_mel_bins, 2 * a.max_source_positions));
    }
    std::vector<float> values(t.elements());
    read_elements(t, 0, values);
    return audio::by_frame(values, a.num_mel_bins);
  }
  throw Error(path + ": no tensor 'features' in it; expected one [mel bins, frames]");
}

/// Throws Error for ids that the model does not have, as another model's tokenizer may give.
void check_vocabulary(const Sequences& sequences, const Architecture& a, const std::string& flag) {
  for (const std::vector<TokenId>& sequence : sequences) {
    const auto outside = std::find_if(sequence.begin(), sequence.end(),
                                      [&](TokenId id) { return id >= a.vocab_size; });
    if (outside == sequence.end()) continue;
    throw Error(flag,
                fmt::format("token id {} at position {}", *outside, outside - sequence.begin()),
                fmt::format("ids below the vocabulary size {} of {}", a.vocab_size, a.name));
  }
}

/// Whisper's start tokens: the language, and transcription without timestamps.
/// Source: openai/whisper, whisper/tokenizer.py, sot_sequence_including_notimestamps.
Sequences transcription_start(const text::Tokenizer& tokenizer, const std::string& language) {
  std::vector<TokenId> start;
  for (const std::string& token :
       {std::string("<|startoftranscript|>"), "<|" + language + "|>", std::string("<|transcribe|>"),
        std::string("<|notimestamps|>")}) {
    const auto id = tokenizer.id_of(token);
    if (!id) {
      throw Error("--language " + language + ": the tokenizer has no token " + token +
                  "; expected a language such as en, or --tokens");
    }
    start.push_back(*id);
  }
  return {start};
}

/// Seconds of sound in this many encoder positions: two frames each, since the second convolution
/// has stride 2.
double seconds_of(std::uint64_t positions) {
  return static_cast<double>(positions * 2 * audio::whisper_hop) / audio::whisper_sample_rate;
}

/// Throws Error for a --language that nothing reads.
void check_language(const RunInputs& in, const Architecture& a, const FoundTokenizer& tokenizer) {
  if (!in.language) return;
  const std::string refused = "--language: has no effect, since ";
  if (a.num_mel_bins == 0) throw Error(refused + a.name + " reads no audio");
  if (!in.tokens.empty()) throw Error(refused + "--tokens is given; expected one of them");
  if (!tokenizer) throw Error(refused + tokenizer.missing);
}

/// Throws Error unless one of the flags `choices` gave the input `what`.
void check_one(int given, const std::string& what, const std::string& choices) {
  if (given == 0) throw Error("no " + what + "; expected one of " + choices);
  if (given > 1) throw Error(what, std::to_string(given) + " of them", "one of " + choices);
}

/// Ids that a decoder starts from when the user gives none.
Sequences default_decoder_start(const RunInputs& in, const Checkpoint& checkpoint,
                                const FoundTokenizer& tokenizer) {
  if (checkpoint.is_random()) return {{0}};
  if (checkpoint.architecture().num_mel_bins > 0 && tokenizer) {
    return transcription_start(*tokenizer, in.language.value_or("en"));
  }
  const GgufFile* const file = checkpoint.gguf();
  const fs::path config = file != nullptr ? checkpoint.path() : checkpoint.path() / "config.json";
  const nlohmann::json j = file != nullptr ? gguf_config(*file) : read_json_file(config);
  const JsonObject c(j, config.string());
  if (!c.has("decoder_start_token_id")) {
    throw Error("--tokens is missing: " + config.string() + " has no decoder_start_token_id");
  }
  const std::uint64_t id = c.whole("decoder_start_token_id", 0);
  if (id >= checkpoint.architecture().vocab_size) {
    c.fail("decoder_start_token_id", "an id of the vocabulary");
  }
  return {{static_cast<TokenId>(id)}};
}

}  // namespace

void RunInputs::add_to(Command c) {
  c.add("--tokens IDS", tokens,
        "prompt as token ids, such as 1,2,3; separate sequences with ; (sequences of different "
        "lengths run one by one); encoder-decoder models: the decoder's");
  c.add("--prompt TEXT", prompt, "prompt as text; encoder-decoder models: the encoder's input")
      .is_free_text();
  c.add("--prompt-file FILE", prompt_file, "prompt from a text file, or token ids from a .json");
  c.add("--encoder-tokens IDS", encoder_tokens, "the encoder's token ids");
  c.add("--features FILE", features,
        "the encoder's input: tensor 'features' [mel bins, frames] of a safetensors file");
  c.add("--audio FILE.wav", audio,
        "the encoder's input as a WAV file; kvcast computes the log-mel features");
  c.add("--language CODE", language, "language of the audio, if --tokens is not given [en]");
  c.add("--prompt-len", prompt_len, "made-up prompt of this length, for measuring");
  c.add("--batch", batch, "copies of the prompt in one batch");
}

bool RunInputs::has_text_file() const {
  return !prompt_file.empty() && fs::path(prompt_file).extension() != ".json";
}

FoundTokenizer find_tokenizer(const Checkpoint& checkpoint) {
  const std::string path = checkpoint.path().string();
  if (checkpoint.gguf() != nullptr) {
    if (!checkpoint.gguf()->metadata.has("tokenizer.ggml.model")) {
      return {.missing = path + " has no tokenizer"};
    }
    return {text::Tokenizer::from_gguf(*checkpoint.gguf())};
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model"}) {
    std::error_code ec;
    if (fs::exists(checkpoint.path() / name, ec)) {
      return {text::Tokenizer::from_folder(checkpoint.path())};
    }
  }
  return {.missing = path + " has no tokenizer (tokenizer.json, tokenizer.model or spiece.model)"};
}

Sequences read_token_file(const std::string& path, const std::string& name, const Architecture& a,
                          const FoundTokenizer& tokenizer) {
  const std::optional<Sequences> ids = ids_of_file(path, name);
  const auto read_text = [](const std::string& file) { return read_file(file, "a text file"); };
  Sequences sequences = ids ? *ids
                            : encode(parse_flag(name.c_str(), path, read_text), name,
                                     "token ids in a .json", tokenizer);
  check_vocabulary(sequences, a, name);
  return sequences;
}

execute::Request read_request(const RunInputs& in, const Checkpoint& checkpoint,
                              const FoundTokenizer& tokenizer,
                              const std::function<void(const std::string&)>& warn) {
  const Architecture& a = checkpoint.architecture();
  const bool mel = a.num_mel_bins > 0;
  check_language(in, a, tokenizer);
  Sequences prompt;
  int given = 0;
  const auto take = [&](Sequences sequences, const std::string& flag) {
    check_vocabulary(sequences, a, flag);
    prompt = std::move(sequences);
    ++given;
  };
  if (in.prompt) {
    take(encode(*in.prompt, in.flag("prompt"), in.flag("tokens"), tokenizer), in.flag("prompt"));
  }
  if (!in.prompt_file.empty()) {
    const std::string flag = in.flag("prompt-file");
    take(read_token_file(in.prompt_file, flag, a, tokenizer), flag);
  }
  if (!in.prompt_len.empty()) {
    const std::uint64_t length = parse_token_count(in.prompt_len, "--prompt-len");
    if (length > max_made_up) {
      throw Error("--prompt-len", in.prompt_len, fmt::format("at most {}", max_made_up));
    }
    if (mel && length != a.max_source_positions) {
      throw Error("--prompt-len", in.prompt_len,
                  fmt::format("{}, as many positions as the encoder of {} always reads",
                              a.max_source_positions, a.name));
    }
    if (!mel) take({execute::made_up_prompt(length, a.vocab_size)}, "--prompt-len");
  }

  execute::Request r;
  if (!a.encoder_decoder) {
    for (const auto& [flag, value] :
         {std::pair{in.encoder_tokens_flag, &in.encoder_tokens},
          std::pair{in.flag("features"), &in.features}, std::pair{in.flag("audio"), &in.audio}}) {
      if (value->empty()) continue;
      throw Error(flag + ": " + a.name + " has no encoder; expected " + in.flag("tokens"));
    }
    if (!in.tokens.empty()) take(parse_ids(in.tokens, in.flag("tokens")), in.flag("tokens"));
    check_one(given, "prompt", "--tokens, --prompt, --prompt-file and --prompt-len");
    r.tokens = std::move(prompt);
  } else {
    if (mel && !in.prompt_len.empty()) {
      // Silence: the encoder's length is the model's.
      r.features.assign(2 * a.max_source_positions * a.num_mel_bins, 0);
      ++given;
    }
    if (!mel && !(in.features.empty() && in.audio.empty())) {
      throw Error(in.flag(in.features.empty() ? "audio" : "features"),
                  a.name + ", which reads tokens", "--encoder-tokens, --prompt or --prompt-file");
    }
    r.tokens = in.tokens.empty() ? default_decoder_start(in, checkpoint, tokenizer)
                                 : parse_ids(in.tokens, in.flag("tokens"));
    check_vocabulary(r.tokens, a, in.flag("tokens"));
    if (!in.encoder_tokens.empty()) {
      take(parse_ids(in.encoder_tokens, in.encoder_tokens_flag), in.encoder_tokens_flag);
    }
    r.encoder_tokens = std::move(prompt);
    if (!in.features.empty()) {
      r.features = read_features(in.features, a);
      ++given;
    }
    if (!in.audio.empty()) {
      const audio::Recording sound = audio::read_wav_file(in.audio);
      const double seconds = static_cast<double>(sound.samples.size()) / sound.sample_rate;
      if (seconds < seconds_of(in.fewest_positions)) {
        throw Error(in.flag("audio") + " " + in.audio, fmt::format("{:.3g} s of sound", seconds),
                    fmt::format("at least {:.3g} s, {} positions of the encoder",
                                seconds_of(in.fewest_positions), in.fewest_positions));
      }
      if (seconds > whisper_seconds) {
        warn(fmt::format("{}: {:.1f} s of sound; only the first {} s are heard", in.audio, seconds,
                         whisper_seconds));
      }
      r.features = audio::by_frame(
          audio::log_mel(sound, a.num_mel_bins, 2 * a.max_source_positions), a.num_mel_bins);
      ++given;
    }
    const std::string inputs = mel ? "--features, --audio and --prompt-len"
                                   : "--encoder-tokens, --prompt, --prompt-file and --prompt-len";
    check_one(given, "encoder input", inputs);
    if (mel && !r.encoder_tokens.empty()) {
      throw Error("encoder input", "token ids or text", "one of " + inputs);
    }
    if (mel && r.tokens.size() > 1) {
      throw Error("--tokens", std::to_string(r.tokens.size()) + " sequences",
                  "one, as there is one recording");
    }
  }
  const std::uint64_t copies = parse_token_count(in.batch, "--batch");
  if (copies > max_copies) {
    throw Error("--batch", in.batch, fmt::format("at most {} sequences", max_copies));
  }
  std::size_t numbers = r.features.size();
  for (const Sequences* sequences : {&r.tokens, &r.encoder_tokens}) {
    for (const std::vector<TokenId>& sequence : *sequences) numbers += sequence.size();
  }
  if (numbers * copies > max_numbers) {
    throw Error("--batch", fmt::format("{} times an input of {} numbers", copies, numbers),
                fmt::format("at most {} numbers", max_numbers));
  }
  const auto repeat = [&](auto& sequences) {
    const auto once = sequences;
    for (std::uint64_t i = 1; i < copies; ++i) {
      sequences.insert(sequences.end(), once.begin(), once.end());
    }
  };
  repeat(r.tokens);
  repeat(r.encoder_tokens);
  repeat(r.features);
  return r;
}

}  // namespace kvcast::cli
