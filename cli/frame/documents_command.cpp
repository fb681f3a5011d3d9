#include <memory>

#include "cli/frame/command.h"
#include "cli/frame/documents.h"

namespace kvcast::cli {

void add_documents(Command app) {
  Command man = app.add_subcommand("man",
                                   "Print the manual page kvcast(1).\n\nExamples:\n"
                                   "  kvcast man | man -l -\n"
                                   "  kvcast man >kvcast.1");
  man.callback([app] { print_text(man_page(app.app(), KVCAST_VERSION)); });

  Command completion =
      app.add_subcommand("completion",
                         "Print a completion script for bash, zsh or fish.\n\nExamples:\n"
                         "  source <(kvcast completion bash)\n"
                         "  kvcast completion fish >~/.config/fish/completions/kvcast.fish");
  const auto shell = std::make_shared<std::string>();
  completion.add("SHELL", *shell, "bash, zsh or fish").required();
  completion.callback([shell] { print_text(completion_script(*shell)); });
}

}  // namespace kvcast::cli
