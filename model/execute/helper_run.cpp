#include "model/execute/helper_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "model/execute/row_loops.h"

namespace kvcast::execute {
namespace {

using execute::is_finite_row;
using execute::largest_index;

bool is_finite_row(const double* x, std::size_t n) {
  return std::all_of(x, x + n, [](double v) { return std::isfinite(v); });
}

std::size_t largest_index(const double* x, std::size_t n) {
  return static_cast<std::size_t>(std::max_element(x, x + n) - x);
}

std::vector<std::vector<double>> by_sequence(const Output& out, DType dtype) {
  const std::size_t n = out.shape.sequence_elements();
  std::vector<std::vector<double>> sequences;
  with_numbers(dtype, out.data.get(), [&](const auto* numbers) {
    for (std::size_t b = 0; b < out.shape[0]; ++b) {
      sequences.emplace_back(numbers + b * n, numbers + (b + 1) * n);
    }
  });
  return sequences;
}

}  // namespace

const Stack& stack_of(const Recording& recording, const RecordedPass& pass) {
  for (const HelperModel& model : recording.helper_models) {
    if (model.prefix == pass.prefixes.weights) return model.architecture.decoder;
  }
  return recording.model.decoder;
}

std::vector<float> flatten(const std::vector<std::vector<TokenId>>& sequences, std::size_t first,
                           std::size_t count) {
  std::vector<float> ids;
  ids.reserve(sequences.size() * count);
  for (const std::vector<TokenId>& sequence : sequences) {
    for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<float>(sequence[first + i]));
  }
  return ids;
}

std::vector<float> position_ids(const Stack& stack, std::span<const std::uint64_t> positions) {
  std::vector<float> rows;
  rows.reserve(positions.size());
  for (const std::uint64_t p : positions) {
    rows.push_back(static_cast<float>(p + stack.position_offset));
  }
  return rows;
}

std::vector<TokenId> greedy(const Output& logits, DType dtype) {
  const std::size_t vocab = logits.shape.back();
  std::vector<TokenId> tokens;
  with_numbers(dtype, logits.data.get(), [&](const auto* numbers) {
    for (std::size_t b = 0; b < logits.shape[0]; ++b) {
      const auto* last = numbers + (b + 1) * logits.shape.sequence_elements() - vocab;
      if (!is_finite_row(last, vocab)) {
        throw Error(fmt::format("sequence {}: the logits are not finite numbers; the model's "
                                "numbers overflow {}, or keys and values a narrower cache",
                                b, name(dtype)),
                    Fault::Run);
      }
      tokens.push_back(static_cast<TokenId>(largest_index(last, vocab)));
    }
  });
  return tokens;
}

HelperRun::HelperRun(const Recording& recording, const WeightStore& weights, Loops loops,
                     DType dtype)
    : recording_(recording), dtype_(dtype) {
  for (const RecordedPass& pass : recording.helpers()) {
    executors_.emplace_back(pass.graph, weights, loops, dtype);
  }
}

SymbolValues HelperRun::values(const RecordedPass& pass, std::size_t batch,
                               std::uint64_t prompt_len, std::uint64_t step,
                               std::span<const FoundCount> found) const {
  const Symbols& symbols = recording_.symbols;
  const std::uint64_t first =
      pass.first_kv_len.at(symbols.resolve({batch, prompt_len, prompt_len}, found));
  return symbols.resolve({batch, prompt_len, first + step}, found);
}

std::uint64_t HelperRun::passes(std::size_t batch, std::uint64_t prompt_len) const {
  std::uint64_t sum = 0;
  for (const RecordedPass& pass : recording_.helpers()) {
    if (pass.tokens.at(values(pass, batch, prompt_len, 0)) > 0) sum += pass.steps;
  }
  return sum;
}

void HelperRun::reserve(CacheStore& cache, std::size_t batch, std::uint64_t prompt_len) const {
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    const RecordedPass& pass = recording_.helpers()[i];
    if (pass.steps == 0) continue;
    const SymbolValues last = values(pass, batch, prompt_len, pass.steps - 1);
    executors_[i].reserve(cache, last);
  }
}

void HelperRun::select(const std::vector<std::vector<TokenId>>& prompt, std::size_t index,
                       HelperFindings& found) const {
  if (!recording_.selection || !found.kept.empty()) return;
  const TokenSelection& selection = *recording_.selection;
  for (std::size_t b = 0; b < prompt.size(); ++b) {
    found.kept.push_back(select_tokens(
        selection.seed ? random_importance(prompt[b].size(), *selection.seed + index + b)
                       : found.importance[b],
        selection));
  }
  if (selection.kept_tokens) {
    found.counts.push_back({*selection.kept_tokens, found.kept[0].size()});
  }
}

HelperFindings HelperRun::run(const std::vector<std::vector<TokenId>>& prompt,
                              const std::vector<TokenId>& stop_tokens, std::size_t index,
                              const RunPass& run_pass) const {
  const std::size_t batch = prompt.size();
  const std::uint64_t prompt_len = prompt[0].size();
  HelperFindings found;
  std::vector<TokenId> next;
  std::uint64_t seen = 0;  // queries that look ahead, the prompt's last one included
  bool stopped = false;
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    const RecordedPass& pass = recording_.helpers()[i];
    const Stack& stack = stack_of(recording_, pass);
    for (std::uint64_t step = 0; step < pass.steps; ++step) {
      if (pass.reads == HelperTokens::Next && stopped) break;
      if (pass.reads == HelperTokens::Kept) select(prompt, index, found);
      const SymbolValues at = values(pass, batch, prompt_len, step, found.counts);
      const std::uint64_t tokens = pass.tokens.at(at);
      if (tokens == 0) break;
      std::vector<float> ids;
      std::vector<std::uint64_t> places(tokens);
      if (pass.reads == HelperTokens::Prompt) {
        ids = flatten(prompt, 0, tokens);
        std::iota(places.begin(), places.end(), 0);
      } else if (pass.reads == HelperTokens::Kept) {
        places.clear();
        for (std::size_t b = 0; b < batch; ++b) {
          const auto first = std::span(found.kept[b]).first(tokens);
          places.insert(places.end(), first.begin(), first.end());
          for (const std::uint64_t p : first) ids.push_back(static_cast<float>(prompt[b][p]));
        }
      } else if (pass.reads == HelperTokens::Next) {
        ids.assign(next.begin(), next.end());
        places = {at[symbol::kv_len.id] - 1};
      }
      const std::vector<float> positions = position_ids(stack, places);
      const std::vector<float> base_positions = position_ids(recording_.model.decoder, places);
      Output out = run_pass(i, executors_[i], at,
                            {{pass.prefixes.tensors + "tokens", ids},
                             {pass.prefixes.tensors + "positions", positions},
                             {"positions", base_positions}});
      if (pass.result == HelperResult::Importance) {
        found.importance = by_sequence(out, dtype_);
      }
      if (pass.result == HelperResult::PromptLogits) found.prompt_logits = std::move(out);
      if (pass.result != HelperResult::Logits) continue;
      next = greedy(out, dtype_);
      ++seen;
      stopped = batch == 1 &&
                std::find(stop_tokens.begin(), stop_tokens.end(), next[0]) != stop_tokens.end();
    }
    const bool last_look =
        i + 1 == executors_.size() || recording_.helpers()[i + 1].result != HelperResult::Logits;
    if (pass.result == HelperResult::Logits && last_look && recording_.selection &&
        recording_.selection->queries) {
      found.counts.push_back({*recording_.selection->queries, seen});
    }
  }
  select(prompt, index, found);
  return found;
}

}  // namespace kvcast::execute
