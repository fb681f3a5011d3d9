#include "model/convert/slim_check.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/execute/batch_order.h"

namespace kvcast {
namespace {

constexpr std::uint64_t fewest_steps = 16;
/// Of a prompt's logits: 512 MiB.
constexpr std::uint64_t most_numbers = std::uint64_t{1} << 27;

struct Answer {
  std::vector<std::vector<float>> logits;  ///< [batch, positions, vocab_size]: prompt, steps
  std::vector<std::vector<execute::TokenId>> tokens;
};

/// Prompts of one length side by side, of several lengths each alone: only so all positions of them
/// give logits.
std::vector<execute::Request> runs_of(const execute::Request& request) {
  if (!execute::have_different_lengths(request.tokens)) return {request};
  std::vector<execute::Request> alone;
  for (std::size_t b = 0; b < request.tokens.size(); ++b) {
    alone.push_back(execute::only_sequence(request, b));
  }
  return alone;
}

std::vector<Answer> answer(const Checkpoint& checkpoint, std::vector<execute::Request> runs,
                           const char* method) {
  std::uint64_t numbers = 0;
  for (const execute::Request& run : runs) {
    numbers += run.tokens.size() * run.tokens.front().size() * checkpoint.architecture().vocab_size;
  }
  execute::SessionOptions options;
  options.methods = parse_methods(method);
  options.decoder_tokens = runs.front().tokens.front().size();
  options.logits = numbers > most_numbers ? Logits::Last : Logits::All;
  const execute::Session session(checkpoint, options);
  std::vector<Answer> answers;
  for (execute::Request& run : runs) {
    Answer a;
    run.on_logits = [&](const execute::Output& out) {
      a.logits.emplace_back(out.data.get(), out.data.get() + out.shape.elements());
    };
    const execute::Generation g = session.run(run);
    a.logits.front().assign(g.logits.begin(), g.logits.end());
    a.tokens = g.tokens;
    answers.push_back(std::move(a));
  }
  return answers;
}

/// Sums over all logits compared.
struct Sums {
  LogitComparison comparison;
  double difference = 0;
  double norm = 0;

  void add(std::span<const float> a, std::span<const float> b, std::size_t vocabulary) {
    KVCAST_ASSERT(a.size() == b.size());
    for (std::size_t k = 0; k < a.size(); ++k) {
      difference += std::pow(static_cast<double>(b[k]) - a[k], 2);
      norm += std::pow(static_cast<double>(a[k]), 2);
    }
    for (std::size_t first = 0; first < a.size(); first += vocabulary) {
      const auto next = [&](std::span<const float> x) {
        const auto row = x.subspan(first, vocabulary);
        return std::max_element(row.begin(), row.end()) - row.begin();
      };
      ++comparison.positions;
      if (next(a) == next(b)) ++comparison.same;
    }
  }
};

}  // namespace

LogitComparison compare_logits(const Checkpoint& source, const Checkpoint& converted,
                               const execute::Request& request) {
  const std::uint64_t rows = source.architecture().decoder.position_rows;
  std::vector<execute::Request> runs = runs_of(request);
  for (execute::Request& run : runs) {
    const std::uint64_t start = run.tokens.front().size();
    run.output_len = std::max(run.output_len, fewest_steps);
    if (rows > 0) run.output_len = std::min(run.output_len, rows + 1 - std::min(rows, start));
  }
  const std::vector<Answer> expected = answer(source, runs, "plain");
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (const auto& tokens : expected[r].tokens) {
      runs[r].output_len = std::min<std::uint64_t>(runs[r].output_len, tokens.size());
    }
    runs[r].continuation = expected[r].tokens;
    for (std::vector<execute::TokenId>& tokens : runs[r].continuation) {
      tokens.resize(runs[r].output_len - 1);
    }
  }
  const std::vector<Answer> ours = answer(converted, runs, "slim");

  Sums sums;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    KVCAST_ASSERT(ours[r].logits.size() <= expected[r].logits.size());
    for (std::size_t i = 0; i < ours[r].logits.size(); ++i) {
      sums.add(expected[r].logits[i], ours[r].logits[i], source.architecture().vocab_size);
    }
  }
  sums.comparison.relative_error = std::sqrt(sums.difference / sums.norm);
  return sums.comparison;
}

}  // namespace kvcast
