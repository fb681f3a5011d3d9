#include "cli/choose/choose_parts.h"

namespace kvcast::cli {

void add_choose(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "choose",
      "Choose a method's options for a goal and a budget.\n\nExamples:\n"
      "  kvcast choose mlkv --model pythia-160m --hardware rtx-3060-12gb --batch 100 "
      "--context 2k\n"
      "  kvcast choose mlkv --help");
  command.require_subcommand(1);
  add_choose_mlkv(command, globals);
  add_choose_slim(command, globals);
  add_choose_devices(command, globals);
  add_choose_keep_rate(command, globals);
  add_choose_frontier(command, globals);
  add_choose_serving(command, globals);
}

}  // namespace kvcast::cli
