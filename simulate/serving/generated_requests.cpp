#include "simulate/serving/generated_requests.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/random.h"
#include "model/base/words.h"
#include "model/io/files/number_text.h"
#include "simulate/serving/distributions.h"
#include "simulate/serving/line_reader.h"
#include "simulate/serving/option_text.h"
#include "simulate/serving/request_files.h"

namespace kvcast::simulate {
namespace {

/// Ours: what is above is a slip.
constexpr double most_sigma = 100;
constexpr std::uint64_t most_groups = std::uint64_t{1} << 31;
constexpr auto most_tokens = static_cast<double>(max_request_tokens);

constexpr Words<LengthKind, 5> length_words{{{LengthKind::Fixed, "fixed"},
                                             {LengthKind::Uniform, "uniform"},
                                             {LengthKind::Normal, "normal"},
                                             {LengthKind::LogNormal, "lognormal"},
                                             {LengthKind::Empirical, "empirical"}}};

std::uint64_t parse_length(std::string_view text, const std::string& place) {
  const std::uint64_t tokens = parse_token_count(text, place);
  if (tokens <= max_request_tokens) return tokens;
  throw Error(place, "'" + std::string(text) + "'",
              fmt::format("at most {} tokens", max_request_tokens));
}

void parse_range(std::string_view text, const std::string& place, Lengths& lengths) {
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos) {
    throw Error(place, "'uniform:" + std::string(text) + "'", "uniform:LO,HI");
  }
  lengths.low = parse_length(text.substr(0, comma), place);
  lengths.high = parse_length(text.substr(comma + 1), place);
  if (lengths.low > lengths.high) {
    throw Error(place, "'uniform:" + std::string(text) + "'", "uniform:LO,HI with LO <= HI");
  }
}

void parse_bell(const OptionText& options, const std::string& place, Lengths& lengths) {
  lengths.mean = options.number("mean", 1, most_tokens);
  lengths.most = options.whole("max", 1, max_request_tokens, max_request_tokens);
  if (lengths.kind == LengthKind::Normal) {
    lengths.sigma = options.number("sd", 0, most_tokens);
  } else if (options.has("p50") == options.has("sigma")) {
    throw Error(place, options.has("p50") ? "both p50 and sigma" : "neither p50 nor sigma",
                "lognormal:mean=M,p50=P or lognormal:mean=M,sigma=S");
  } else if (options.has("sigma")) {
    lengths.sigma = options.number("sigma", 0, most_sigma);
  } else {
    // p50 = exp(mu) and mean = exp(mu + sigma^2 / 2)
    const double p50 = options.number("p50", 1, lengths.mean);
    lengths.sigma = std::sqrt(std::max(0.0, 2 * portable_log(lengths.mean / p50)));
  }
  options.reject_unknown();
}

/// Lengths to draw from.
struct LengthFile {
  std::vector<std::uint32_t> prompts;  ///< or the numbers of a file with one on each line
  std::vector<std::uint32_t> outputs;  ///< as many; or none: the same numbers
};

LengthFile read_lengths(const std::filesystem::path& path) {
  LengthFile file;
  LineReader lines(std::make_unique<std::ifstream>(path, std::ios::binary), path.string());
  std::string_view line;
  std::uint64_t tokens = 0;
  std::error_code ec;
  const bool numbers =
      !std::filesystem::is_directory(path, ec) && lines.next(line) && parse_number(line, tokens);
  if (!numbers) {
    const auto requests = open_requests(path, {.lengths_only = true});
    while (const std::optional<ServingRequest> request = requests->next()) {
      file.prompts.push_back(static_cast<std::uint32_t>(request->prompt_tokens));
      file.outputs.push_back(static_cast<std::uint32_t>(request->output_tokens));
    }
    return file;
  }
  for (lines.repeat(); lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (!parse_number(line, tokens) || tokens == 0 || tokens > max_request_tokens) {
      throw Error(lines.place(), "'" + std::string(line.substr(0, 60)) + "'",
                  fmt::format("a whole number from 1 to {}", max_request_tokens));
    }
    file.prompts.push_back(static_cast<std::uint32_t>(tokens));
  }
  return file;
}

/// Draws lengths that do not come from a file.
std::uint64_t draw_length(const Lengths& lengths, Random& random) {
  double x = 0;
  switch (lengths.kind) {
    case LengthKind::Fixed: return lengths.low;
    case LengthKind::Uniform:
      return lengths.low + random.below(static_cast<std::uint32_t>(lengths.high - lengths.low + 1));
    case LengthKind::Normal: x = lengths.mean + lengths.sigma * normal(random); break;
    case LengthKind::LogNormal: {
      const double mu = portable_log(lengths.mean) - lengths.sigma * lengths.sigma / 2;
      x = portable_exp(mu + lengths.sigma * normal(random));
      break;
    }
    case LengthKind::Empirical: KVCAST_ASSERT(false);
  }
  const auto most = static_cast<double>(lengths.most);
  return static_cast<std::uint64_t>(std::clamp(std::floor(x + 0.5), 1.0, most));
}

class GeneratedRequests : public RequestSource {
 public:
  explicit GeneratedRequests(const GeneratedLoad& load)
      : load_(load),
        clock_(load.arrivals, load.count, load.seed),
        prompt_random_(load.seed, PromptStream),
        output_random_(load.seed, OutputStream),
        prefix_random_(load.seed, PrefixStream) {
    if (load.count == 0) throw Error("got 0 requests to generate, expected at least 1");
    KVCAST_ASSERT(load.block_tokens > 0);
    const bool prompts_from_file = load.prompt.kind == LengthKind::Empirical;
    const bool outputs_from_file = load.output.kind == LengthKind::Empirical;
    if (prompts_from_file) prompt_file_ = read_lengths(load.prompt.file);
    if (outputs_from_file) read_outputs(prompts_from_file);
    shared_blocks_ = load.prefixes.tokens / load.block_tokens;
    next_block_ = load.prefixes.groups * shared_blocks_;
  }

  std::optional<ServingRequest> next() override {
    if (number_ == load_.count) return std::nullopt;
    ServingRequest request{number_++, clock_.next()};
    std::size_t row = 0;
    if (load_.prompt.kind == LengthKind::Empirical) {
      row = draw_row(prompt_file_.prompts, prompt_random_);
      request.prompt_tokens = prompt_file_.prompts[row];
    } else {
      request.prompt_tokens = draw_length(load_.prompt, prompt_random_);
    }
    if (same_rows_) {
      request.output_tokens = prompt_file_.outputs[row];
    } else if (load_.output.kind == LengthKind::Empirical) {
      request.output_tokens = outputs_[draw_row(outputs_, output_random_)];
    } else {
      request.output_tokens = draw_length(load_.output, output_random_);
    }
    if (load_.prefixes.groups > 0) add_prefix(request);
    return request;
  }

  std::uint64_t block_tokens() const override {
    return load_.prefixes.groups > 0 ? load_.block_tokens : 0;
  }

 private:
  static std::size_t draw_row(const std::vector<std::uint32_t>& rows, Random& random) {
    return random.below(static_cast<std::uint32_t>(rows.size()));
  }

  void read_outputs(bool prompts_from_file) {
    const bool same_file = prompts_from_file && load_.prompt.file == load_.output.file;
    LengthFile file = same_file ? prompt_file_ : read_lengths(load_.output.file);
    same_rows_ = same_file && !file.outputs.empty();
    outputs_ = std::move(file.outputs.empty() ? file.prompts : file.outputs);
    if (std::find(outputs_.begin(), outputs_.end(), 0U) != outputs_.end()) {
      throw Error(load_.output.file.string(), "requests without output tokens",
                  "a file with the lengths of outputs");
    }
  }

  void add_prefix(ServingRequest& request) {
    const SharedPrefixes& prefixes = load_.prefixes;
    request.prompt_tokens += prefixes.tokens;
    if (request.prompt_tokens > max_request_tokens) {
      throw Error(to_string(prefixes), fmt::format("a prompt of {} tokens", request.prompt_tokens),
                  fmt::format("at most {}", max_request_tokens));
    }
    const std::uint64_t group = prefix_random_.below(static_cast<std::uint32_t>(prefixes.groups));
    const std::uint64_t full = request.prompt_tokens / load_.block_tokens;
    request.blocks.reserve(full);
    for (std::uint64_t i = 0; i < full; ++i) {
      request.blocks.push_back(i < shared_blocks_ ? group * shared_blocks_ + i : next_block_++);
    }
  }

  GeneratedLoad load_;
  ArrivalClock clock_;
  Random prompt_random_;
  Random output_random_;
  Random prefix_random_;
  LengthFile prompt_file_;
  std::vector<std::uint32_t> outputs_;
  bool same_rows_ = false;           ///< outputs are those of the prompts' rows
  std::uint64_t shared_blocks_ = 0;  ///< of a prefix
  std::uint64_t next_block_ = 0;     ///< an id that no request has
  std::uint64_t number_ = 0;
};

}  // namespace

Lengths parse_lengths(std::string_view text, const std::string& place) {
  Lengths lengths;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos && !text.empty() && text.front() >= '0' &&
      text.front() <= '9') {
    lengths.low = lengths.high = parse_length(text, place);
    return lengths;
  }
  lengths.kind = OptionText(text.substr(0, colon), place).kind("lengths", length_words);
  const std::string_view rest =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  switch (lengths.kind) {
    case LengthKind::Fixed: lengths.low = lengths.high = parse_length(rest, place); break;
    case LengthKind::Uniform: parse_range(rest, place, lengths); break;
    case LengthKind::Normal:
    case LengthKind::LogNormal: parse_bell(OptionText(text, place), place, lengths); break;
    case LengthKind::Empirical:
      if (rest.empty()) throw Error(place, "'" + std::string(text) + "'", "empirical:FILE");
      lengths.file = rest;
      break;
  }
  return lengths;
}

std::string to_string(const Lengths& l) {
  std::string text(word_for(l.kind, length_words));
  switch (l.kind) {
    case LengthKind::Fixed: return fmt::format("{}:{}", text, l.low);
    case LengthKind::Uniform: return fmt::format("{}:{},{}", text, l.low, l.high);
    case LengthKind::Normal: text += fmt::format(":mean={},sd={}", l.mean, l.sigma); break;
    case LengthKind::LogNormal: text += fmt::format(":mean={},sigma={}", l.mean, l.sigma); break;
    case LengthKind::Empirical: return text + ":" + l.file.string();
  }
  return l.most < max_request_tokens ? text + fmt::format(",max={}", l.most) : text;
}

SharedPrefixes parse_shared_prefixes(std::string_view text, const std::string& place) {
  const OptionText options(text, place);
  if (options.name() != "prefix") {
    throw Error(place, "'" + std::string(text) + "'", "prefix:groups=G,tokens=T");
  }
  SharedPrefixes prefixes;
  prefixes.groups = options.whole("groups", 1, most_groups);
  prefixes.tokens = options.whole("tokens", 1, max_request_tokens);
  options.reject_unknown();
  return prefixes;
}

std::string to_string(const SharedPrefixes& prefixes) {
  return fmt::format("prefix:groups={},tokens={}", prefixes.groups, prefixes.tokens);
}

std::unique_ptr<RequestSource> generate_requests(const GeneratedLoad& load) {
  return std::make_unique<GeneratedRequests>(load);
}

}  // namespace kvcast::simulate
