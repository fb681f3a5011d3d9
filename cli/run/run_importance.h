/// The importance of a prompt's tokens under a prompt method, as a table and as a plot.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::cli {

/// Throws Error unless the session's runs have what these files show. An empty name: no file.
void check_importance(const std::string& csv, const std::string& plot,
                      const execute::Session& session);

/// Columns sequence, position, token, importance, kept (1 or 0); importance is empty where tokens
/// were drawn by lot. The run has selected tokens.
void write_importance_csv(const std::string& path, const execute::Request& request,
                          const execute::Generation& run);

/// The importance over the first sequence's prompt, with marks at what was kept. The run has
/// weighed the tokens.
void write_importance_plot(const std::string& path, const std::string& title,
                           const execute::Generation& run);

/// Throws Error unless the methods' models read the prompts' ids as the same text. Models without a
/// tokenizer are not checked.
void check_tokenizers(const execute::OpenedModels& models,
                      std::span<const std::vector<execute::TokenId>> prompts,
                      const text::Tokenizer& tokenizer);

}  // namespace kvcast::cli
