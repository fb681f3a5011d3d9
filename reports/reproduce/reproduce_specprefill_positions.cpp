#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/execute/generate.h"
#include "reports/reproduce/reproduce_specprefill.h"

namespace kvcast::reports {
namespace {

using execute::TokenId;

/// Ours: a Llama small enough to read a thousand prompts at once; positions are the same in any.
constexpr std::uint64_t vocab_size = 64;
const std::vector<ConfigOverride> small_shape{
    {"hidden_size", "16"},        {"intermediate_size", "16"},
    {"num_attention_heads", "2"}, {"num_key_value_heads", "1"},
    {"num_hidden_layers", "1"},   {"vocab_size", std::to_string(vocab_size)}};
constexpr std::size_t prompts_at_once = 1024;
/// A set of 5 tokens of 10 is one of 252: that none of 64 x 1024 prompts keeps it is a mistake.
constexpr int most_tries = 64;

/// What a run told the base model about where its tokens stand.
struct Positions {
  std::vector<std::uint64_t> prefill;
  std::vector<std::uint64_t> decode;  ///< one each step
};

Positions positions_of_run(const execute::Session& session, execute::Request request) {
  Positions found;
  request.on_node = [&](const Graph& graph, const execute::NodeRun& node,
                        std::span<const std::uint64_t>) {
    const execute::Call& call = *node.call;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (graph.tensor(call.node.inputs[i]).name != "positions") continue;
      const float* const places = call.inputs[i].data;
      const std::vector<std::uint64_t> all(places, places + call.inputs[i].shape.elements());
      if (&graph == &session.recording().prefill()) {
        found.prefill = all;
      } else if (found.decode.empty() || found.decode.back() != all.front()) {
        found.decode.push_back(all.front());
      }
    }
  };
  session.run(request);
  return found;
}

/// A prompt of which the session keeps the tokens at these positions.
std::vector<TokenId> prompt_that_keeps(const execute::Session& session,
                                       const std::vector<std::uint64_t>& kept, std::size_t length) {
  std::mt19937_64 random(1);
  for (int i = 0; i < most_tries; ++i) {
    execute::Request request;
    request.tokens.resize(prompts_at_once, std::vector<TokenId>(length));
    for (auto& prompt : request.tokens) {
      for (TokenId& id : prompt) id = static_cast<TokenId>(random() % vocab_size);
    }
    const std::vector<std::vector<std::uint64_t>> all = session.run(request).kept;
    const auto found = std::find(all.begin(), all.end(), kept);
    if (found != all.end()) return request.tokens[static_cast<std::size_t>(found - all.begin())];
  }
  throw Error("specprefill_position_id_example.csv",
              fmt::format("kept tokens that none of {} prompts keeps",
                          prompts_at_once * static_cast<std::size_t>(most_tries)),
              "as many as a share of the prompt, in ascending order");
}

}  // namespace

/// The example names the tokens that were kept, not the prompt. So a small model with random
/// weights reads prompts until it keeps those by itself; the positions are what its base model is
/// then told, in prefill and in each decode step.
std::vector<ReproducedRow> specprefill_positions(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_position_id_example.csv");
  std::map<std::string, std::vector<std::uint64_t>> printed;
  std::uint64_t output_len = 1;
  for (const CsvRow& row : table.rows()) {
    printed[row.text("sequence")].push_back(row.whole("position_id"));
    if (row.text("is_decoded_token") == "yes") ++output_len;
  }
  const std::size_t length = printed["original_prompt"].size();
  const std::vector<std::uint64_t>& kept = printed["kept_prompt"];

  const Checkpoint checkpoint(load_model(catalog, "llama-3.1-8b", small_shape), 1);
  const auto session_of = [&](double keep) {
    execute::SessionOptions options;
    options.methods = parse_methods(fmt::format("specprefill:keep={},lookahead=1", keep));
    return execute::Session(checkpoint, options);
  };
  const execute::Session session =
      session_of(static_cast<double>(kept.size()) / static_cast<double>(length));
  execute::Request request;
  request.tokens = {prompt_that_keeps(session, kept, length)};
  request.output_len = output_len;
  const Positions pruned = positions_of_run(session, request);
  request.output_len = 1;
  std::map<std::string, std::vector<std::uint64_t>> ours{
      {"original_prompt", positions_of_run(session_of(1), request).prefill},
      {"kept_prompt", pruned.prefill},
      {"decoding", pruned.prefill}};
  ours["decoding"].insert(ours["decoding"].end(), pruned.decode.begin(), pruned.decode.end());

  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::vector<std::uint64_t>& positions = ours[row.text("sequence")];
    const std::uint64_t index = row.whole("index");
    if (index >= positions.size()) {
      throw Error(row.place("index"), std::to_string(index),
                  fmt::format("below the {} tokens of the run", positions.size()));
    }
    rows.push_back(published.compare(
        row, "position_id", fmt::format("{}, token {}: its position", row.text("sequence"), index),
        static_cast<double>(positions[index])));
  }
  return rows;
}

}  // namespace kvcast::reports
