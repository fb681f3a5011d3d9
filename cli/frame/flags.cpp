#include "cli/frame/flags.h"

namespace kvcast::cli {
namespace {

/// Headings of --help.
constexpr const char* request = "Request";
constexpr const char* kernels = "Kernels and element types";
constexpr const char* devices = "Several devices";
constexpr const char* output = "Output";

struct Row {
  const char* name;
  const char* short_name;
  const char* value;
  const char* help;
  const char* heading = "";
  Writes writes = Writes::Nothing;
};
constexpr Row table[] = {
    {"--model", "-m", "MODEL",
     "catalog name (kvcast model list), config.json, or a folder with one", request},
    {"--hardware", "", "HW", "catalog name (kvcast hardware list) or a JSON file", request},
    {"--method", "", "METHOD", "NAME[:KEY=VALUE,...][+NAME...], see kvcast --help", request},
    {"--attention", "", "KIND", "eager (scores in memory, as plain PyTorch) or tiled (flash)",
     kernels},
    {"--elementwise", "", "KIND",
     "eager or fused norms, rotations and activations; default: as --attention", kernels},
    {"--dtype", "", "DTYPE", "of weights, activations and cache", kernels},
    {"--weight-dtype", "", "DTYPE", "of weights", kernels},
    {"--activation-dtype", "", "DTYPE", "of activations", kernels},
    {"--cache-dtype", "", "DTYPE", "of the KV cache", kernels},
    {"--mode", "", "MODE", "calibrated (datasheet peaks times measured factors) or speed-of-light",
     kernels},
    {"--semantics", "", "WHICH", "of MLKV models: paper, or released for the authors' checkpoints",
     request},
    {"--skip-unread-rows", "", "",
     "prefill: the last layer computes only the positions whose logits are needed (as llama.cpp)",
     kernels},
    {"--batch", "-b", "N", "sequences processed together", request},
    {"--prompt-len", "-p", "TOKENS", "prompt tokens", request},
    {"--output-len", "-n", "TOKENS", "tokens to generate, the first included", request},
    {"--set", "", "KEY=VALUE", "override a config entry, e.g. num_key_value_heads=8", request},
    {"--devices", "", "P", "parts of the prompt, one on each device", devices},
    {"--link", "", "NAME", "a link of the hardware file, such as nvlink", devices},
    {"--link-gb-per-s", "", "GB/S",
     "from each device to the next, 1e9 bytes a second; default: the hardware's link", devices},
    {"--link-latency-s", "", "SECONDS",
     "of a whole message, from device to device; default: the hardware's link", devices},
    {"--send-order", "", "ORDER",
     "fifo: messages leave one at a time; async: they share the link; block: a device waits until "
     "its message has left",
     devices},
    {"--base", "", "MODEL", "the model whose cache is predicted"},
    {"--auxiliary", "", "MODEL", "the model that reads the prompt in its place"},
    {"--window", "", "TOKENS", "tokens that the models read at a time"},
    {"--text", "", "FILE", "a text file, or token ids in a .json"},
    {"--threads", "-t", "N", "0: all cores"},
    {"--restart", "", "", "discard what an earlier run left in FILE.partial"},
    {"--csv", "", "FILE", "write the rows; - is stdout", output, Writes::File},
    {"--plot", "", "FILE.svg|png", "", output, Writes::Picture},
    {"--json", "", "", "one JSON object in base units", output},
};

}  // namespace

FlagWords flag_words(const std::string& flag, const std::string& help) {
  const std::size_t end = flag.find(' ');
  FlagWords words{flag.substr(0, end), end == std::string::npos ? "" : flag.substr(end + 1), help};
  for (const Row& row : table) {
    if (words.names != row.name) continue;
    if (*row.short_name != '\0') words.names += std::string(",") + row.short_name;
    if (words.value.empty()) words.value = row.value;
    if (words.help.empty()) words.help = row.help;
    words.heading = row.heading;
    words.writes = row.writes;
    break;
  }
  return words;
}

}  // namespace kvcast::cli
