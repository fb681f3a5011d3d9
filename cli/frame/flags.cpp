#include "cli/frame/flags.h"

#include <algorithm>
#include <iterator>

namespace kvcast::cli {
namespace {

/// Headings of --help.
constexpr const char* request = request_heading;
constexpr const char* kernels = "Kernels and element types";
constexpr const char* devices = "Several devices";
constexpr const char* output = "Output";

/// In the order of --help.
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
    {"--hardware", "", "HW",
     "catalog name (kvcast hardware list) or a JSON file; default: this machine, once calibrated",
     request},
    {"--prompt-len", "-p", "TOKENS", "prompt tokens", request},
    {"--output-len", "-n", "TOKENS", "tokens to generate, including the first", request},
    {"--batch", "-b", "N", "sequences processed together", request},
    {"--method", "", "METHOD", "NAME[:KEY=VALUE,...][+NAME...], see Methods", request},
    {"--dtype", "", "DTYPE",
     "dtype of weights, activations and KV cache; default: as the model is published, else bf16",
     kernels},
    {"--engine", "", "ENGINE[:VERSION]", "software that runs the model (kvcast engine list)",
     kernels},
    {"--attention", "", "KIND",
     "attention kernel: eager (stores the scores, as plain PyTorch) or tiled (FlashAttention)",
     kernels},
    {"--weight-dtype", "", "TYPES",
     "dtype of weights or a preset (q4_k_m and other GGUF mixtures, fp8-block, fp8-channel, awq, "
     "gptq, "
     "mxfp4, nvfp4), then CLASS=DTYPE,... (embedding=bf16,head=bf16); default: as the model's "
     "config or "
     "GGUF file says, or as --dtype",
     kernels},
    {"--cache-dtype", "", "DTYPE", "dtype of the KV cache; default: as --dtype", kernels},
    {"--activation-dtype", "", "DTYPE",
     "dtype of activations; default: what a checkpoint's quantised products read, where the device "
     "multiplies in it, or as --dtype",
     kernels},
    {"--arithmetic", "", "DTYPE",
     "dtype that products with weights multiply in; default: the wider of weights and activations",
     kernels},
    {"--mode", "", "MODE",
     "calibrated (datasheet peaks times measured factors) or speed-of-light (peaks alone)",
     kernels},
    {"--set", "", "KEY=VALUE",
     "override a config entry (num_key_value_heads=8); or of experts expert_tokens=FILE.csv: "
     "measured loads; with --ep expert_draws=N: the fullest device of N steps, expert_copies=N: "
     "as many copies of those that tokens choose most",
     request},
    {"--semantics", "", "WHICH",
     "how to read MLKV models: paper, or released (the authors' checkpoints)", request},
    {"--elementwise", "", "KIND",
     "norms, rotary embedding and activations: eager or fused; default: as --attention", kernels},
    {"--skip-unread-rows", "", "",
     "prefill: the last layer computes only the positions whose logits are needed (as llama.cpp)",
     kernels},
    {"--devices", "", "P", "number of devices; each reads one part of the prompt", devices},
    {"--tp", "", "N", "tensor parallel: N devices share the heads and widths of each layer",
     devices},
    {"--pp", "", "N", "pipeline: N stages of layers, a group of devices each", devices},
    {"--ep", "", "N", "expert parallel: the experts of each layer lie on N groups of the devices",
     devices},
    {"--dp", "", "N",
     "data parallel: N replicas share the sequences; default: 1, or with --ep as many as make N "
     "devices",
     devices},
    {"--stages", "", "A/B/...",
     "with --pp: layers of each stage; default: as many in each, and one more in the first ones; "
     "with --virtual-stages of each of their parts",
     devices},
    {"--platform", "", "NAME",
     "what joins the devices (kvcast platform list), or a JSON file; default: the hardware's "
     "node; for kvr and tsp the hardware's link",
     devices},
    {"--link", "", "NAME", "name of a link in the hardware file, such as nvlink", devices},
    {"--link-gb-per-s", "", "GB/S",
     "bandwidth from each device to the next, in 1e9 bytes/s; default: the hardware's link",
     devices},
    {"--link-latency-s", "", "SECONDS",
     "latency of a message from device to device, in seconds; default: the hardware's link",
     devices},
    {"--send-order", "", "ORDER",
     "fifo: one message at a time; async: messages share the link; block: the sender waits until "
     "its message has left",
     devices},
    {"--base", "", "MODEL", "the model whose cache is predicted"},
    {"--auxiliary", "", "MODEL", "the small model that reads the prompt"},
    {"--window", "", "TOKENS", "tokens per window of text"},
    {"--text", "", "FILE", "a text file, or token ids in a .json"},
    {"--threads", "-t", "N", "number of threads; 0: all cores"},
    {"--restart", "", "", "discard FILE.partial of an interrupted run and start again"},
    {"--csv", "", "FILE", "write the rows as CSV; - is stdout", output, Writes::File},
    {"--plot", "", "FILE.svg|png", "", output, Writes::Picture},
    {"--json", "", "", "print JSON, in base units (s, bytes, FLOPs)", output},
};

/// "Options" is what CLI11 calls those without a heading.
constexpr const char* headings[] = {request, "Axes",  "Requests", "Options",
                                    output,  kernels, devices,    "Training"};

}  // namespace

std::size_t heading_rank(const std::string& heading) {
  const auto found = std::find(std::begin(headings), std::end(headings), heading);
  return found == std::end(headings)
             ? unlisted_rank
             : static_cast<std::size_t>(std::distance(std::begin(headings), found));
}

std::size_t flag_rank(const std::string& name) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const Row& r) { return name == r.name; });
  return found == std::end(table)
             ? unlisted_rank
             : static_cast<std::size_t>(std::distance(std::begin(table), found));
}

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
