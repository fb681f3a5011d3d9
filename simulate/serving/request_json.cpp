#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "simulate/serving/request_lines.h"

namespace kvcast::simulate {
namespace {

using nlohmann::json;

constexpr std::uint64_t mooncake_block_tokens = 512;
constexpr std::uint64_t llmservingsim_block_tokens = 16;
/// Ours: traces show it on the first line; only prompts of 16 to 31 tokens do not.
constexpr std::size_t most_ahead = 64;
constexpr double exact_whole = 0x1p53;

/// The keys of a format; empty: it has none such.
struct Keys {
  std::string_view arrival, prompt, output, blocks;
  std::string_view id, block_tokens, tokens;
  double arrivals_per_s;  ///< what a second is in the file
};

constexpr Keys kvcast_keys{"arrival_s", "prompt_tokens", "output_tokens", "blocks",
                           "id",        "block_tokens",  "tokens",        1};
constexpr Keys mooncake_keys{"timestamp", "input_length", "output_length", "hash_ids", "", "", "",
                             1000};

/// A number as it stands in the file.
struct Number {
  double value = 0;
  std::optional<std::uint64_t> whole = {};
  bool found = false;
};

/// Takes the known keys of one line's object and skips the others, without a document in memory.
class LineHandler {
 public:
  LineHandler(const LineReader& lines, const Keys& keys, ServingRequest& request)
      : lines_(lines), keys_(keys), request_(request) {}

  Number arrival, prompt, output, id, block_tokens;
  bool has_blocks = false;
  bool has_tokens = false;
  bool is_object = false;

  bool null() {
    if (!wanted()) return true;
    fail("null");
  }
  bool boolean(bool) {
    if (!wanted()) return true;
    fail("a truth value");
  }
  bool string(std::string& text) {
    if (!wanted()) return true;
    fail(shown(json(text)));
  }
  bool binary(json::binary_t&) { return true; }
  bool number_integer(std::int64_t n) {
    take({static_cast<double>(n), std::nullopt, true}, std::to_string(n));
    return true;
  }
  bool number_unsigned(std::uint64_t n) {
    if (depth_ == 2 && list_ == List::Blocks) {
      request_.blocks.push_back(n);
      return true;
    }
    take({static_cast<double>(n), n, true}, std::to_string(n));
    return true;
  }
  bool number_float(double n, const std::string& text) {
    Number number{n, std::nullopt, true};
    if (n >= 0 && n <= exact_whole && n == std::floor(n)) {
      number.whole = static_cast<std::uint64_t>(n);
    }
    take(number, text);
    return true;
  }
  bool start_object(std::size_t) {
    if (wanted()) fail("an object");
    if (depth_++ == 0) is_object = true;
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ == 1 && list_ != List::None) {
      ++depth_;
      return true;
    }
    if (wanted()) fail("a list");
    ++depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool key(std::string& key) {
    if (depth_ != 1) return true;
    slot_ = slot_of(key);
    list_ = List::None;
    key_ = key;
    if (slot_ != nullptr && slot_->found) fail_twice();
    if (key == keys_.blocks && !key.empty()) {
      if (std::exchange(has_blocks, true)) fail_twice();
      list_ = List::Blocks;
    } else if (key == keys_.tokens && !key.empty()) {
      if (std::exchange(has_tokens, true)) fail_twice();
      list_ = List::Tokens;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& e) {
    std::string reason = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while ..."
    const std::size_t colon = reason.find(": ");
    const std::size_t bracket = reason.find("] ");
    if (colon != std::string::npos) {
      reason = reason.substr(colon + 2);
    } else if (bracket != std::string::npos) {
      reason = reason.substr(bracket + 2);
    }
    throw Error(fmt::format("{}:{}: not valid JSON: {}", lines_.place(), position, reason));
  }

 private:
  enum class List { None, Blocks, Tokens };

  Number* slot_of(std::string_view key) {
    if (key.empty()) return nullptr;
    if (key == keys_.arrival) return &arrival;
    if (key == keys_.prompt) return &prompt;
    if (key == keys_.output) return &output;
    if (key == keys_.id) return &id;
    if (key == keys_.block_tokens) return &block_tokens;
    return nullptr;
  }

  /// True for the value of a known key, or in its list.
  bool wanted() const {
    return (depth_ == 1 && (slot_ != nullptr || list_ != List::None)) ||
           (depth_ == 2 && list_ != List::None);
  }

  void take(const Number& number, const std::string& text) {
    if (!wanted()) return;
    if (depth_ == 1 && slot_ != nullptr) {
      *slot_ = number;
      return;
    }
    constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max();
    const bool right =
        depth_ == 2 && number.whole && (list_ == List::Blocks || *number.whole <= most);
    if (!right) fail(text);
    if (list_ == List::Blocks) {
      request_.blocks.push_back(*number.whole);
    } else {
      request_.tokens.push_back(static_cast<std::int32_t>(*number.whole));
    }
  }

  [[noreturn]] void fail(const std::string& found) const {
    throw Error(lines_.place("/" + key_), found,
                list_ != List::None ? "a list of whole numbers" : "a number");
  }
  [[noreturn]] void fail_twice() const {
    throw Error(lines_.place("/" + key_), "the key twice", "each key once");
  }

  const LineReader& lines_;
  const Keys& keys_;
  ServingRequest& request_;
  int depth_ = 0;
  Number* slot_ = nullptr;  ///< of the current key in the outer object
  List list_ = List::None;
  std::string key_;
};

class JsonRequests : public RequestLines {
 public:
  JsonRequests(LineReader lines, const Keys& keys, const RequestFileOptions& options)
      : RequestLines(std::move(lines), options), keys_(keys) {
    if (!options_.arrival_column.empty()) {
      throw Error(lines_.name(), "an arrival column for JSON", "none: it has no columns");
    }
    if (options_.output_tokens > 0) {
      throw Error(lines_.name(), "output tokens for a file that has them", "none");
    }
    read_ahead();
  }

 private:
  /// Finds out about the blocks.
  void read_ahead() {
    while (ahead_.size() < most_ahead) {
      std::optional<ServingRequest> request = read_next();
      if (!request) break;
      ahead_.push_back(std::move(*request));
      if (first_ids_ == Ids::No || block_tokens_ > 0) break;
    }
    if (first_ids_ == Ids::Yes && block_tokens_ == 0) block_tokens_ = mooncake_block_tokens;
    if (options_.block_tokens > 0 && block_tokens_ == 0) {
      throw Error(lines_.name(), "tokens of a prefix block for a file without block ids", "none");
    }
  }

  std::string place_of(std::string_view key) const { return lines_.place("/" + std::string(key)); }

  std::string arrival_place() const override { return place_of(keys_.arrival); }

  std::uint64_t whole(const Number& number, std::string_view key, const std::string& range) const {
    if (!number.found) throw Error(place_of(key) + ": missing; this key is required");
    if (!number.whole) throw Error(place_of(key), fmt::format("{}", number.value), range);
    return *number.whole;
  }

  void read(std::string_view line, ServingRequest& request) override {
    LineHandler handler(lines_, keys_, request);
    json::sax_parse(line, &handler);
    if (!handler.is_object) {
      throw Error(lines_.place(), shown(json::parse(line)), "a request as a JSON object");
    }
    const bool drop = options_.drop_empty;
    request.prompt_tokens = whole(handler.prompt, keys_.prompt, token_range(drop));
    check_tokens(request.prompt_tokens, place_of(keys_.prompt), drop);
    request.output_tokens = whole(handler.output, keys_.output, token_range(drop));
    check_tokens(request.output_tokens, place_of(keys_.output), drop);
    if (handler.id.found) request.id = whole(handler.id, keys_.id, "a whole number");
    if (!options_.lengths_only) read_arrival(handler.arrival, request);
    if (handler.has_tokens && request.tokens.size() != request.prompt_tokens) {
      throw Error(place_of(keys_.tokens), fmt::format("{} tokens", request.tokens.size()),
                  fmt::format("{}, as {} says", request.prompt_tokens, keys_.prompt));
    }
    for (const std::int32_t token : request.tokens) {
      if (options_.vocab_size == 0 || std::cmp_less(token, options_.vocab_size)) continue;
      throw Error(place_of(keys_.tokens), fmt::format("token id {}", token),
                  fmt::format("ids below the vocabulary size {}", options_.vocab_size));
    }
    read_blocks(handler, request);
  }

  void read_arrival(const Number& arrival, ServingRequest& request) const {
    if (!arrival.found) throw Error(arrival_place() + ": missing; this key is required");
    if (arrival.value < 0) {
      throw Error(arrival_place(), fmt::format("{}", arrival.value), "a time, 0 or more");
    }
    request.arrival_s = arrival.value / keys_.arrivals_per_s + 0.0;  // no -0
  }

  void read_blocks(const LineHandler& handler, const ServingRequest& request) {
    const std::string place = place_of(keys_.blocks);
    const Ids ids = handler.has_blocks ? Ids::Yes : Ids::No;
    if (first_ids_ == Ids::Unknown) first_ids_ = ids;
    if (ids != first_ids_) {
      throw Error(place + (ids == Ids::Yes ? ": there, but not on the first line"
                                           : ": missing, but there on the first line"));
    }
    if (ids == Ids::No) return;
    if (block_tokens_ == 0) find_block_tokens(handler.block_tokens, place, request);
    if (handler.block_tokens.found && handler.block_tokens.whole != block_tokens_) {
      throw Error(place_of(keys_.block_tokens), fmt::format("{}", handler.block_tokens.value),
                  std::to_string(block_tokens_));
    }
    if (block_tokens_ > 0) check_blocks(place, request);
  }

  /// Leaves 0 when the number of ids is right for both kinds of trace.
  void find_block_tokens(const Number& stated, const std::string& place,
                         const ServingRequest& request) {
    if (options_.block_tokens > 0) {
      block_tokens_ = options_.block_tokens;
      return;
    }
    if (!keys_.block_tokens.empty()) {
      block_tokens_ = whole(stated, keys_.block_tokens, "a whole number above 0");
      check_tokens(block_tokens_, place_of(keys_.block_tokens), false);
      return;
    }
    const std::uint64_t tokens = request.prompt_tokens;
    const std::uint64_t mooncake = (tokens + mooncake_block_tokens - 1) / mooncake_block_tokens;
    const std::uint64_t llmservingsim = tokens / llmservingsim_block_tokens;
    const std::uint64_t ids = request.blocks.size();
    if (ids != mooncake && ids != llmservingsim) {
      throw Error(
          place, fmt::format("{} ids for {} tokens", ids, tokens),
          fmt::format("{} of {} tokens, {} of {}, or the number of tokens of a block", mooncake,
                      mooncake_block_tokens, llmservingsim, llmservingsim_block_tokens));
    }
    if (mooncake == llmservingsim) return;
    block_tokens_ = ids == mooncake ? mooncake_block_tokens : llmservingsim_block_tokens;
  }

  enum class Ids { Unknown, Yes, No };

  const Keys& keys_;
  Ids first_ids_ = Ids::Unknown;
};

/// A list of a detailed result, with an entry for each request.
const json& list_of(const JsonObject& result, std::string_view key, std::size_t size) {
  const json& list = result.at(key);
  if (!list.is_array()) result.fail(key, "a list");
  if (size == list.size()) return list;
  throw Error(result.place_of(key), fmt::format("{} entries", list.size()),
              fmt::format("{}, as in input_lens", size));
}

std::uint64_t tokens_at(const JsonObject& result, std::string_view key, std::size_t i,
                        bool drop_empty) {
  const json& entry = result.at(key)[i];
  const std::string place = fmt::format("{}/{}", result.place_of(key), i);
  if (!entry.is_number_unsigned()) throw Error(place, shown(entry), token_range(drop_empty));
  check_tokens(entry.get<std::uint64_t>(), place, drop_empty);
  return entry.get<std::uint64_t>();
}

/// Without start_times, as older releases save it, only a run with all requests at once is known.
void check_all_at_once(const JsonObject& result) {
  const bool at_once = result.has("request_rate") && result.at("request_rate") == "inf" &&
                       !result.has("max_concurrency");
  if (at_once) return;
  throw Error(result.place_of("start_times") +
              ": missing, and the run did not send all requests at once; its lengths can be used "
              "with generated arrivals");
}

std::unique_ptr<RequestSource> open_vllm_result(LineReader& lines, const json& document,
                                                const RequestFileOptions& options) {
  const JsonObject result(document, lines.name());
  if (!result.has("input_lens")) {
    throw Error(lines.name(), "a result without input_lens", "one saved with --save-detailed");
  }
  const std::size_t size = result.at("input_lens").size();
  list_of(result, "input_lens", size);
  list_of(result, "output_lens", size);
  const bool timed = !options.lengths_only && result.has("start_times");
  if (timed) {
    list_of(result, "start_times", size);
  } else if (!options.lengths_only) {
    check_all_at_once(result);
  }
  if (result.has("errors")) list_of(result, "errors", size);
  std::vector<ServingRequest> requests;
  std::uint64_t failed = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (result.has("errors")) {
      const json& error = result.at("errors")[i];
      if (error.is_string() && error != "") {
        ++failed;
        continue;
      }
    }
    ServingRequest request{i};
    request.prompt_tokens = tokens_at(result, "input_lens", i, options.drop_empty);
    request.output_tokens = tokens_at(result, "output_lens", i, options.drop_empty);
    if (timed) {
      const json& start = result.at("start_times")[i];
      if (!start.is_number() || start < 0) {
        throw Error(fmt::format("{}/{}", result.place_of("start_times"), i), shown(start),
                    "a time in seconds, 0 or more");
      }
      request.arrival_s = start.get<double>();
    }
    if (request.prompt_tokens > 0 && request.output_tokens > 0) requests.push_back(request);
  }
  if (requests.empty()) throw Error(lines.name(), "no finished requests", "at least one");
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const ServingRequest& a, const ServingRequest& b) { return a.arrival_s < b.arrival_s; });
  const double first_s = requests.front().arrival_s;
  for (ServingRequest& request : requests) request.arrival_s -= first_s;
  if (options.first_requests > 0 && requests.size() > options.first_requests) {
    requests.resize(options.first_requests);
  }
  return std::make_unique<RequestList>(std::move(requests), 0, failed);
}

/// Nothing but blanks may follow the first line.
void check_single(LineReader& lines) {
  std::string_view line;
  for (lines.next(line); lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    throw Error(lines.place(), "a second result", "a file with one, saved without --append-result");
  }
}

/// All lines as one document.
json read_document(LineReader& lines) {
  std::string text;
  std::string_view line;
  while (lines.next(line)) {
    text.append(line).append("\n");
    if (text.size() > LineReader::max_line_bytes) {
      throw Error(lines.name(),
                  fmt::format("a document of more than {} MiB", LineReader::max_line_bytes >> 20),
                  "a request on each line");
    }
  }
  return parse_json(text, lines.name());
}

}  // namespace

std::unique_ptr<RequestSource> open_json_requests(LineReader lines,
                                                  const RequestFileOptions& options) {
  std::string_view line;
  lines.next(line);
  lines.repeat();
  line.remove_prefix(line.find_first_not_of(" \t"));
  if (line.front() == '[') {
    throw Error(lines.name(),
                "a JSON list, such as ShareGPT's conversations, which have no lengths",
                known_request_files);
  }
  const bool is_start = line.find_first_not_of(" \t", 1) == std::string_view::npos;
  if (!is_start && !json::accept(line)) {
    ServingRequest none;
    LineHandler handler(lines, kvcast_keys, none);
    json::sax_parse(line, &handler);  // says what is wrong
  }
  const json first = is_start ? read_document(lines) : parse_json(line, lines.place());
  const auto has = [&](std::string_view key) { return first.contains(key); };
  if (!is_start) {
    if (has(mooncake_keys.prompt)) {
      return std::make_unique<JsonRequests>(std::move(lines), mooncake_keys, options);
    }
    if (has(kvcast_keys.prompt)) {
      return std::make_unique<JsonRequests>(std::move(lines), kvcast_keys, options);
    }
  }
  if (has("input_lens") || has("mean_ttft_ms")) {
    if (!options.arrival_column.empty() || options.output_tokens > 0 || options.block_tokens > 0) {
      throw Error(lines.name(), "an option for other files", "none for a vLLM result");
    }
    if (!is_start) check_single(lines);
    return open_vllm_result(lines, first, options);
  }
  for (const std::string_view key : {"prompt", "conversations", "messages"}) {
    if (!has(key)) continue;
    throw Error(lines.place("/" + std::string(key)), "a text, whose tokens are not counted",
                known_request_files);
  }
  throw Error(lines.place(), shown(first), known_request_files);
}

}  // namespace kvcast::simulate
