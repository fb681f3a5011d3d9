/// The axes of a sweep as a user names them: lists, ranges, or a JSON file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast::reports {

/// `--set KEY=V1,V2`: a config entry that takes several values.
struct SetAxis {
  std::string key;
  std::vector<std::string> values;
  bool operator==(const SetAxis&) const = default;
};

/// Values of every axis, each value once, in the order given. An empty axis takes the default that
/// `kvcast estimate` has for it; model and hardware have none here.
struct SweepSpec {
  std::vector<std::string> model;
  std::vector<std::string> hardware;
  std::vector<std::string> engine;
  std::vector<std::string> method;
  std::vector<std::string> attention;
  std::vector<std::string> elementwise;
  std::vector<std::string> dtype;
  std::vector<std::string> weight_dtype;
  std::vector<std::string> activation_dtype;
  std::vector<std::string> cache_dtype;
  std::vector<std::string> mode;
  std::vector<std::string> tp;
  std::vector<std::string> pp;
  std::vector<std::string> ep;
  std::vector<std::string> dp;
  std::vector<std::string> sequence_parallel;
  std::vector<std::string> micro_batches;
  std::vector<std::string> platform;
  std::vector<std::uint64_t> batch;
  std::vector<std::uint64_t> prompt_len;
  std::vector<std::uint64_t> output_len;
  // Of a step of training; the grid has sequences in the place of prompts.
  std::vector<std::string> recompute;
  std::vector<std::string> zero;
  std::vector<std::uint64_t> seq_len;
  std::vector<std::uint64_t> virtual_stages;
  std::vector<SetAxis> set;
  std::map<std::string, std::string> places = {};  ///< of axes in a file, by their keys

  /// Where an axis is said: "FILE: /weight_dtype", or else "--weight-dtype".
  std::string place_of(const std::string& key) const;
};

/// The axes by their JSON keys; the flag of `weight_dtype` is `--weight-dtype`.
struct WordAxis {
  const char* key;
  std::vector<std::string> SweepSpec::*values;
  const char* fallback = "";  ///< empty: none, as another axis, the engine or the model
};
inline constexpr std::array word_axes{
    WordAxis{"model", &SweepSpec::model},
    WordAxis{"hardware", &SweepSpec::hardware},
    WordAxis{"engine", &SweepSpec::engine, "ideal"},
    WordAxis{"method", &SweepSpec::method, "plain"},
    WordAxis{"attention", &SweepSpec::attention},
    WordAxis{"elementwise", &SweepSpec::elementwise},
    WordAxis{"dtype", &SweepSpec::dtype},
    WordAxis{"weight_dtype", &SweepSpec::weight_dtype},
    WordAxis{"activation_dtype", &SweepSpec::activation_dtype},
    WordAxis{"cache_dtype", &SweepSpec::cache_dtype},
    WordAxis{"mode", &SweepSpec::mode, "calibrated"},
    WordAxis{"tp", &SweepSpec::tp, "1"},
    WordAxis{"pp", &SweepSpec::pp, "1"},
    WordAxis{"ep", &SweepSpec::ep, "1"},
    WordAxis{"dp", &SweepSpec::dp},
    WordAxis{"sequence_parallel", &SweepSpec::sequence_parallel, "off"},
    WordAxis{"micro_batches", &SweepSpec::micro_batches},
    WordAxis{"platform", &SweepSpec::platform},
};
struct NumberAxis {
  const char* key;
  std::vector<std::uint64_t> SweepSpec::*values;
};
inline constexpr std::array number_axes{
    NumberAxis{"batch", &SweepSpec::batch},
    NumberAxis{"prompt_len", &SweepSpec::prompt_len},
    NumberAxis{"output_len", &SweepSpec::output_len},
};

inline constexpr std::array training_word_axes{
    WordAxis{"recompute", &SweepSpec::recompute},
    WordAxis{"zero", &SweepSpec::zero},
};
inline constexpr std::array training_number_axes{
    NumberAxis{"seq_len", &SweepSpec::seq_len},
    NumberAxis{"virtual_stages", &SweepSpec::virtual_stages},
};

/// "--weight-dtype" of "weight_dtype"
std::string flag_of(std::string key);

/// "a,b": the words between commas. All functions here throw Error starting with `place`, among
/// others for an empty list and an empty word.
std::vector<std::string> parse_words(std::string_view text, std::string_view place);

/// The words of an axis may hold commas before KEY=VALUE: methods and weight_dtype.
bool has_options(std::string_view axis);

/// Alternatives of such an axis, separated by `;`, or by a comma where no KEY=VALUE follows:
/// "plain,random-prune:keep=0.5" and "kvp:auxiliary=lp-0.5,x=1;plain" are two methods each.
std::vector<std::string> parse_method_words(std::string_view text, std::string_view place);

/// "1k,4k", "1k..128k:x2" (times 2), "1k..16k:1k" (steps of 1k), "1..10" (steps of 1) and lists of
/// these; k is 1024. A range ends at the last value that is not above its end. At most 10^7 values.
std::vector<std::uint64_t> parse_numbers(std::string_view text, std::string_view place);

/// How the words of an axis are read: parse_method_words where they may have options, numbers and
/// ranges of `micro_batches`, else parse_words.
using ParseWords = std::vector<std::string> (*)(std::string_view text, std::string_view place);
ParseWords words_of_axis(std::string_view axis);

/// "KEY=V1,V2". Commas inside brackets or quotes do not separate; integer ranges as above, but
/// without k: "num_key_value_heads=1..32:x2".
SetAxis parse_set_axis(std::string_view text, std::string_view place);

/// A JSON object of axes: {"model": ["llama-7b"], "prompt_len": "1k..128k:x2", "batch": [1, 8],
/// "set": {"num_key_value_heads": [1, 8]}}. A string is read as the flag's text is; each element
/// of an array is one value (or range). Throws Error for unknown keys, with the nearest.
SweepSpec read_sweep_spec(const std::filesystem::path& path);

}  // namespace kvcast::reports
