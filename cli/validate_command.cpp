#include "cli/validate_kvp.h"

namespace kvcast::cli {

void add_validate(CLI::App& app, const Globals& globals) {
  CLI::App* command = app.add_subcommand("validate", "Hold what is predicted against what is.");
  command->require_subcommand(1);
  add_validate_kvp(*command, globals);
}

}  // namespace kvcast::cli
