#include "cli/frame/flags.h"

namespace kvcast::cli {
namespace {

struct Row {
  const char* name;
  const char* short_name;
  const char* value;
  const char* help;
};
constexpr Row table[] = {
    {"--model", "-m", "MODEL",
     "catalog name (kvcast model list), config.json, or a folder with one"},
    {"--hardware", "", "HW", "catalog name (kvcast hardware list) or a JSON file"},
    {"--method", "", "METHOD", "NAME[:KEY=VALUE,...][+NAME...], see kvcast --help"},
    {"--attention", "", "KIND", "eager (scores in memory, as plain PyTorch) or tiled (flash)"},
    {"--elementwise", "", "KIND",
     "eager or fused norms, rotations and activations; default: as --attention"},
    {"--dtype", "", "DTYPE", "of weights, activations and cache"},
    {"--weight-dtype", "", "DTYPE", "of weights"},
    {"--activation-dtype", "", "DTYPE", "of activations"},
    {"--cache-dtype", "", "DTYPE", "of the KV cache"},
    {"--mode", "", "MODE", "calibrated (datasheet peaks times measured factors) or speed-of-light"},
    {"--semantics", "", "WHICH", "of MLKV models: paper, or released for the authors' checkpoints"},
    {"--skip-unread-rows", "", "",
     "prefill: the last layer computes only the positions whose logits are needed (as llama.cpp)"},
    {"--batch", "-b", "N", "sequences processed together"},
    {"--prompt-len", "-p", "TOKENS", "prompt tokens"},
    {"--output-len", "-n", "TOKENS", "tokens to generate, the first included"},
    {"--set", "", "KEY=VALUE", "override a config entry, e.g. num_key_value_heads=8"},
    {"--devices", "", "P", "parts of the prompt, one on each device"},
    {"--link", "", "NAME", "a link of the hardware file, such as nvlink"},
    {"--link-gb-per-s", "", "GB/S",
     "from each device to the next, 1e9 bytes a second; default: the hardware's link"},
    {"--link-latency-s", "", "SECONDS",
     "of a whole message, from device to device; default: the hardware's link"},
    {"--send-order", "", "ORDER",
     "fifo: messages leave one at a time; async: they share the link; block: a device waits until "
     "its message has left"},
    {"--base", "", "MODEL", "the model whose cache is predicted"},
    {"--auxiliary", "", "MODEL", "the model that reads the prompt in its place"},
    {"--window", "", "TOKENS", "tokens that the models read at a time"},
    {"--text", "", "FILE", "a text file, or token ids in a .json"},
    {"--threads", "-t", "N", "0: all cores"},
    {"--restart", "", "", "discard what an earlier run left in FILE.partial"},
    {"--csv", "", "FILE", "write the rows; - is stdout"},
    {"--plot", "", "FILE.svg|png", ""},
    {"--json", "", "", "one JSON object in base units"},
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
    break;
  }
  return words;
}

}  // namespace kvcast::cli
