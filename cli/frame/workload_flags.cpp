#include "cli/frame/workload_flags.h"

#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/read_file.h"
#include "simulate/serving/request_files.h"

namespace kvcast::cli {
namespace {

constexpr const char* requests_heading = "Requests";
/// As `vllm bench serve` of vLLM 0.11.
constexpr std::uint64_t default_count = 1000;
/// Ours: what is known of each that has ended takes 40 bytes.
constexpr std::uint64_t most_count = 100'000'000;

std::uint64_t whole(const std::string& text, const char* flag, std::uint64_t fallback) {
  return text.empty() ? fallback : parse_token_count(text, flag);
}

std::unique_ptr<simulate::RequestSource> open_file(const WorkloadFlags& f) {
  const simulate::RequestFileOptions options{
      .first_requests = whole(f.first_requests, "--first-requests", 0),
      .block_tokens = whole(f.block_tokens, "--request-block-tokens", 0),
      .arrival_column = f.arrival_column,
      .output_tokens = whole(f.output_tokens, "--output-tokens", 0),
      .vocab_size = f.vocab_size};
  if (f.held == nullptr) return simulate::open_requests(f.requests, options);
  return simulate::open_requests(std::make_unique<std::istringstream>(*f.held), f.requests,
                                 options);
}

/// The same requests at times that are all stretched alike.
class Stretched : public simulate::RequestSource {
 public:
  Stretched(std::unique_ptr<simulate::RequestSource> requests, double factor)
      : requests_(std::move(requests)), factor_(factor) {}
  std::optional<simulate::ServingRequest> next() override {
    std::optional<simulate::ServingRequest> r = requests_->next();
    if (r) r->arrival_s *= factor_;
    return r;
  }
  std::uint64_t block_tokens() const override { return requests_->block_tokens(); }
  std::uint64_t num_failed() const override { return requests_->num_failed(); }

 private:
  std::unique_ptr<simulate::RequestSource> requests_;
  double factor_;
};

/// Requests of a file over the time of the last one.
double rate_of(const WorkloadFlags& f) {
  const auto requests = open_file(f);
  double count = 0;
  double last_s = 0;
  while (const auto r = requests->next()) {
    ++count;
    last_s = r->arrival_s;
  }
  if (last_s == 0) {
    throw Error(f.requests, "requests that all arrive at 0",
                "times that can be stretched to other rates, or --arrivals poisson:rate=R");
  }
  return count / last_s;
}

}  // namespace

void WorkloadFlags::add_to(Command c) {
  const auto add = [&c](const char* flag, std::string& value, const char* help) {
    c.add(flag, value, help).group(requests_heading);
  };
  add("--requests FILE", requests,
      "a trace: kvcast's CSV or JSONL, Mooncake, Azure, BurstGPT, AccelMark, or vLLM's detailed "
      "results");
  add("--first-requests N", first_requests, "stop after so many of the file");
  add("--request-block-tokens N", block_tokens, "tokens of each prefix block of the file");
  add("--arrival-column NAME", arrival_column, "column of a file with several arrival times");
  add("--output-tokens N", output_tokens, "of each request, for a file without");
  add("--arrivals HOW", arrivals,
      "poisson:rate=R, gamma:rate=R,burstiness=B, uniform:rate=R, burst, or "
      "closed:users=N[,think=S]; rescale=true ends poisson and gamma after N/R seconds exactly; "
      "with --requests: instead of the file's times");
  add("--prompt-lens LENGTHS", prompt_lens,
      "N, uniform:LO,HI, normal:mean=M,sd=S, lognormal:mean=M,p50=P, or empirical:FILE");
  add("--output-lens LENGTHS", output_lens, "likewise");
  add("--prefixes SPEC", prefixes, "prompts begin with shared ones: prefix:groups=G,tokens=T");
  add("--num-requests N", count, "how many are generated [1000]");
  add("--seed N", seed, "of everything that is drawn [1]");
  c.need({"--first-requests", "--arrival-column", "--output-tokens"}, {"--requests"});
  c.need({"--request-block-tokens"}, {"--requests", "--prefixes"});
}

void WorkloadFlags::check(const Globals& globals, bool reads_again) const {
  const bool generated = !prompt_lens.empty() || !output_lens.empty() || !prefixes.empty();
  if (is_file() && (generated || !count.empty())) {
    throw Error(
        "--requests: cannot be combined with --prompt-lens, --output-lens, --prefixes and "
        "--num-requests; the file has the lengths");
  }
  if (is_file()) {
    constexpr std::uint64_t most_bytes = std::uint64_t{1} << 32;
    const std::filesystem::file_status status = std::filesystem::status(requests);
    const bool is_pipe = is_fifo(status) || is_character_file(status);
    const bool counts =
        !arrivals.empty() && simulate::parse_arrivals(arrivals, "--arrivals").rescale;
    if (is_pipe && !reads_again && !counts) return;
    if (is_pipe && held == nullptr) {
      held = std::make_shared<const std::string>(
          read_file(requests, "a file of requests", most_bytes));
    }
    const std::uint64_t failed = open_file(*this)->num_failed();
    if (failed > 0) {
      globals.warn(fmt::format("{}: left out {} requests that failed", requests, failed));
    }
    return;
  }
  if (arrivals.empty() || prompt_lens.empty() || output_lens.empty()) {
    throw Error(
        "--requests FILE is required, or all of --arrivals, --prompt-lens and --output-lens");
  }
}

std::unique_ptr<simulate::RequestSource> WorkloadFlags::open(
    const std::optional<double>& rate) const {
  std::optional<simulate::Arrivals> how;
  if (!arrivals.empty()) how = simulate::parse_arrivals(arrivals, "--arrivals");
  const std::uint64_t own_seed = whole(seed, "--seed", 1);
  if (how && rate) {
    if (how->rate == 0) {
      throw Error("--arrivals", arrivals + ", which has no rate to change",
                  "poisson, gamma or uniform, or the times of a file");
    }
    how->rate = *rate;
  }
  if (is_file()) {
    auto from_file = open_file(*this);
    if (how) {
      std::uint64_t number = 0;
      if (how->rescale) {
        for (const auto all = open_file(*this); all->next();) ++number;
      }
      return simulate::with_arrivals(std::move(from_file), *how, number, own_seed);
    }
    if (!rate) return from_file;
    return std::make_unique<Stretched>(std::move(from_file), rate_of(*this) / *rate);
  }
  simulate::GeneratedLoad load;
  load.arrivals = *how;
  load.prompt = simulate::parse_lengths(prompt_lens, "--prompt-lens");
  load.output = simulate::parse_lengths(output_lens, "--output-lens");
  if (!prefixes.empty()) load.prefixes = simulate::parse_shared_prefixes(prefixes, "--prefixes");
  load.block_tokens = whole(block_tokens, "--request-block-tokens", load.block_tokens);
  load.count = whole(count, "--num-requests", default_count);
  if (load.count > most_count) {
    throw Error("--num-requests", count, fmt::format("at most {}", most_count));
  }
  load.seed = own_seed;
  return simulate::generate_requests(load);
}

std::string WorkloadFlags::in_words() const {
  std::string words = is_file() ? "requests of " + requests
                                : "prompts of " + prompt_lens + ", outputs of " + output_lens;
  for (const auto& [what, value] :
       {std::pair{", ", &arrivals}, std::pair{", first ", &first_requests},
        std::pair{", arrivals ", &arrival_column}, std::pair{", outputs ", &output_tokens},
        std::pair{", ", &prefixes}, std::pair{", requests ", &count}}) {
    if (!value->empty()) words += what + *value;
  }
  return words + (seed.empty() || seed == "1" ? "" : ", seed " + seed);
}

std::optional<simulate::ClosedLoop> WorkloadFlags::closed_loop() const {
  if (arrivals.empty()) return {};
  return simulate::closed_loop(simulate::parse_arrivals(arrivals, "--arrivals"));
}

}  // namespace kvcast::cli
