#include "model/convert/slim_check.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "model/error.h"

namespace kvcast {
namespace {

constexpr std::uint64_t fewest_steps = 16;
/// Of a prompt's logits: 512 MiB.
constexpr std::uint64_t most_numbers = std::uint64_t{1} << 27;

struct Answer {
  std::vector<std::vector<float>> logits;  ///< [batch, positions, vocab_size]: prompt, steps
  std::vector<std::vector<execute::TokenId>> tokens;
};

Answer answer(const Checkpoint& checkpoint, execute::Request request, const char* method) {
  const std::uint64_t length = request.tokens.front().size();
  const std::uint64_t numbers =
      request.tokens.size() * length * checkpoint.architecture().vocab_size;
  execute::SessionOptions options;
  options.methods = parse_methods(method);
  options.decoder_tokens = length;
  options.logits = numbers > most_numbers ? Logits::Last : Logits::All;
  Answer a;
  request.on_logits = [&](const execute::Output& out) {
    a.logits.emplace_back(out.data.get(), out.data.get() + out.shape.elements());
  };
  const execute::Session session(checkpoint, options);
  const execute::Generation g = session.run(request);
  a.logits.front().assign(g.logits.begin(), g.logits.end());
  a.tokens = g.tokens;
  return a;
}

}  // namespace

LogitComparison compare_logits(const Checkpoint& source, const Checkpoint& converted,
                               execute::Request request) {
  const std::uint64_t rows = source.architecture().decoder.position_rows;
  const std::uint64_t start = request.tokens.front().size();
  request.output_len = std::max(request.output_len, fewest_steps);
  if (rows > 0) {
    request.output_len = std::min(request.output_len, rows + 1 - std::min(rows, start));
  }
  const Answer expected = answer(source, request, "plain");
  for (const auto& tokens : expected.tokens) {
    request.output_len = std::min<std::uint64_t>(request.output_len, tokens.size());
  }
  request.continuation = expected.tokens;
  for (std::vector<execute::TokenId>& tokens : request.continuation) {
    tokens.resize(request.output_len - 1);
  }
  const Answer ours = answer(converted, request, "slim");

  KVCAST_ASSERT(ours.logits.size() <= expected.logits.size());
  const std::size_t vocabulary = source.architecture().vocab_size;
  LogitComparison c;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < ours.logits.size(); ++i) {
    const std::span<const float> a = expected.logits[i];
    const std::span<const float> b = ours.logits[i];
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
      ++c.positions;
      if (next(a) == next(b)) ++c.same;
    }
  }
  c.relative_error = std::sqrt(difference / norm);
  return c;
}

}  // namespace kvcast
