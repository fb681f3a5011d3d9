#include "cli/run/run_importance.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/run/pair_text.h"
#include "cli/run/run_inputs.h"
#include "model/base/error.h"
#include "model/io/files/csv_writer.h"
#include "model/io/files/number_text.h"
#include "reports/plot/plot.h"

namespace kvcast::cli {
namespace {

bool is_kept(const std::vector<std::uint64_t>& kept, std::uint64_t position) {
  return std::binary_search(kept.begin(), kept.end(), position);
}

}  // namespace

void check_importance(const std::string& csv, const std::string& plot,
                      const execute::Session& session) {
  const auto& selection = session.recording().selection;
  if (!selection && !(csv + plot).empty()) {
    throw Error(
        csv.empty() ? "--plot-importance" : "--dump-importance",
        "the method " + to_string(session.options().methods) + ", which selects no prompt tokens",
        "one that does, such as specprefill");
  }
  if (!plot.empty() && selection->seed) {
    throw Error("--plot-importance",
                to_string(session.options().methods) + ", which keeps random tokens",
                "a method that ranks tokens");
  }
}

void write_importance_csv(const std::string& path, const execute::Request& request,
                          const execute::Generation& run) {
  CsvWriter csv(path, {"sequence", "position", "token", "importance", "kept"});
  for (std::uint64_t b = 0; b < request.tokens.size(); ++b) {
    for (std::uint64_t i = 0; i < request.tokens[b].size(); ++i) {
      csv.cell(b).cell(i).cell(std::uint64_t{request.tokens[b][i]});
      csv.cell(run.importance.empty() ? no_value : run.importance[b][i]);
      csv.cell(std::uint64_t{is_kept(run.kept[b], i) ? 1U : 0U});
      csv.end_row();
    }
  }
  csv.commit();
}

void write_importance_plot(const std::string& path, const std::string& title,
                           const execute::Generation& run) {
  KVCAST_ASSERT(!run.importance.empty());
  reports::Plot plot{.title = title};
  plot.x = {.label = "position in the prompt (tokens)", .column = "position"};
  plot.y = {.label = "importance", .column = "importance"};
  plot.series = {
      {.label = "all tokens", .style = reports::Style::Line},
      {.label = fmt::format("kept, {} of {}", run.kept[0].size(), run.importance[0].size()),
       .style = reports::Style::Marks}};
  for (std::uint64_t i = 0; i < run.importance[0].size(); ++i) {
    const reports::Point point{static_cast<double>(i), run.importance[0][i]};
    plot.series[0].points.push_back(point);
    if (is_kept(run.kept[0], i)) plot.series[1].points.push_back(point);
  }
  reports::write_plot(plot, path);
}

void check_tokenizers(const execute::OpenedModels& models,
                      std::span<const std::vector<execute::TokenId>> prompts,
                      const text::Tokenizer& tokenizer) {
  for (const auto& [name, checkpoint] : models) {
    const FoundTokenizer other = find_tokenizer(checkpoint);
    if (!other) continue;
    for (const std::vector<execute::TokenId>& ids : prompts) {
      if (read_alike(*other, tokenizer, ids)) continue;
      throw Error("model " + name + " of the method",
                  "a tokenizer that decodes the prompt's ids to another text",
                  "the base model's tokenizer");
    }
  }
}

}  // namespace kvcast::cli
