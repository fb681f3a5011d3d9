// A server's steps over a paged cache in turns with the same work of a session: decode steps of a
// batch of one length, and a whole prompt.
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/turns.h"
#include "model/base/stopwatch.h"
#include "model/execute/machine_probe.h"
#include "model/execute/pass_timer.h"
#include "model/execute/step_session.h"

namespace kvcast::execute {
namespace {

struct Options {
  std::string model = "smollm2-135m";
  std::uint64_t batch = 8;
  std::uint64_t kv_len = 513;
  std::vector<std::uint64_t> block_sizes{16};
  int repeats = 9;
  int threads = 0;
};

/// Steps of `batch` sequences that end with kv_len tokens, in blocks of shuffled numbers.
class Steps {
 public:
  Steps(const Checkpoint& checkpoint, const Options& o, std::uint64_t block_size)
      : batch_(o.batch),
        kv_len_(o.kv_len),
        prompt_(made_up_prompt(o.kv_len, checkpoint.architecture().vocab_size)),
        per_sequence_((o.kv_len + block_size - 1) / block_size),
        blocks_(o.batch * per_sequence_),
        session_(checkpoint, {}, {blocks_.size(), block_size}) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), std::mt19937(1));
  }
  double decode() { return median_of_three(batch_, kv_len_ - 1); }
  double prefill() { return median_of_three(1, 0); }

 private:
  double median_of_three(std::uint64_t batch, std::uint64_t cached) {
    std::vector<StepPart> parts;
    for (std::uint64_t b = 0; b < batch; ++b) {
      parts.push_back({std::span(prompt_).subspan(cached), cached,
                       std::span(blocks_).subspan(b * per_sequence_, per_sequence_)});
    }
    session_.step(parts);
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      const Stopwatch watch;
      session_.step(parts);
      seconds.push_back(watch.seconds());
    }
    return median(seconds);
  }

  std::uint64_t batch_;
  std::uint64_t kv_len_;
  std::vector<TokenId> prompt_;
  std::uint64_t per_sequence_;
  std::vector<std::uint32_t> blocks_;
  StepSession session_;
};

void run(const Options& o) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  const Checkpoint checkpoint(load_model(catalog, o.model), 1);
  use_threads(o.threads);
  PassTimer session(checkpoint, {});
  const auto total = [](const std::vector<PassSeconds>& runs) {
    std::vector<double> totals;
    for (const PassSeconds& r : runs) totals.push_back(r.total);
    return median(totals);
  };
  std::vector<std::unique_ptr<Steps>> steps;
  std::vector<Turn> decode;
  std::vector<Turn> prefill;
  decode.push_back({"session", 0, [&] {
                      return total(session.decode({o.batch, 1, o.kv_len}, 3));
                    }});
  prefill.push_back({"session", 0, [&] {
                       return total(session.prefill({1, o.kv_len, o.kv_len}, 3));
                     }});
  for (const std::uint64_t block_size : o.block_sizes) {
    Steps& s = *steps.emplace_back(std::make_unique<Steps>(checkpoint, o, block_size));
    const std::string name = fmt::format("step, blocks of {}", block_size);
    decode.push_back({name, 0, [&s] { return s.decode(); }});
    prefill.push_back({name, 0, [&s] { return s.prefill(); }});
  }
  std::printf("model,work,batch,kv_len,way,seconds,of_session\n");
  const auto print = [&](std::vector<Turn>& turns, const char* work, std::uint64_t batch) {
    take_turns(turns, o.repeats);
    for (const Turn& turn : turns) {
      std::vector<double> shares;
      for (std::size_t i = 0; i < turn.seconds.size(); ++i) {
        shares.push_back(turn.seconds[i] / turns[0].seconds[i]);
      }
      std::printf("%s,%s,%llu,%llu,\"%s\",%.6g,%.4f\n", o.model.c_str(), work,
                  static_cast<unsigned long long>(batch), static_cast<unsigned long long>(o.kv_len),
                  turn.method.c_str(), median(turn.seconds), median(shares));
    }
  };
  print(decode, "decode", o.batch);
  print(prefill, "prefill", 1);
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("a server's steps beside a session's passes; random weights");
  app.add_option("--model", o.model, "of the catalog");
  app.add_option("--batch", o.batch, "sequences of a decode step")->check(CLI::PositiveNumber);
  app.add_option("--kv-len", o.kv_len, "tokens of a sequence after a step")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--block-size", o.block_sizes, "repeatable")->check(CLI::PositiveNumber);
  app.add_option("--repeats", o.repeats, "rounds")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return kvcast::run_guarded(argv[0], [&] { kvcast::execute::run(o); });
}
