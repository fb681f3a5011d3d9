#include "model/execute/pass_timer.h"

#include "model/base/stopwatch.h"

namespace kvcast::execute {

PassTimer::PassTimer(const Checkpoint& checkpoint, const SessionOptions& options)
    : architecture_(checkpoint.architecture()),
      recording_(record(architecture_, options.methods, session_lowering(options),
                        {.logits = options.logits, .decoder_tokens = options.decoder_tokens})),
      weights_({{"", &checkpoint}}, {&recording_.prefill(), &recording_.decode()},
               WeightForm::Packed) {}

std::vector<PassSeconds> PassTimer::decode(const PassSizes& sizes, int repeats) const {
  return time(recording_.decode(), sizes, 1, sizes.kv_len - 1, repeats);
}

std::vector<PassSeconds> PassTimer::prefill(const PassSizes& sizes, int repeats) const {
  if (architecture_.encoder_decoder) {
    throw Error("timing a prefill", "the encoder-decoder model " + architecture_.name,
                "a decoder-only model");
  }
  return time(recording_.prefill(), sizes, sizes.prompt_len, 0, repeats);
}

std::vector<PassSeconds> PassTimer::time(const Graph& graph, const PassSizes& sizes,
                                         std::uint64_t tokens, std::uint64_t first_position,
                                         int repeats) const {
  const SymbolValues values =
      recording_.symbols.resolve({sizes.batch, sizes.prompt_len, sizes.kv_len});
  const std::string prefix = architecture_.encoder_decoder ? "decoder." : "";
  std::vector<float> ids;
  for (const TokenId id : made_up_prompt(sizes.batch * tokens, architecture_.vocab_size)) {
    ids.push_back(static_cast<float>(id));
  }
  std::vector<float> positions;
  for (std::uint64_t i = 0; i < tokens; ++i) {
    positions.push_back(
        static_cast<float>(first_position + i + architecture_.decoder.position_offset));
  }
  const Inputs inputs{{prefix + "tokens", ids}, {prefix + "positions", positions}};

  const Executor executor(graph, weights_, Loops::Fast);
  CacheStore cache;
  Arena arena;
  executor.reserve(cache, values);
  cache.allocate();
  executor.run(values, inputs, cache, arena);  // touches memory
  std::vector<PassSeconds> runs(static_cast<std::size_t>(repeats));
  for (PassSeconds& run : runs) {
    run.nodes.resize(graph.nodes().size());
    const Stopwatch watch;
    double first_end = 0;
    double last_end = 0;
    double behind_first = 0;
    executor.run(values, inputs, cache, arena, [&](const NodeRun& node) {
      run.nodes[node.node] += node.seconds;
      last_end = watch.seconds();
      if (first_end == 0) {
        first_end = last_end;
      } else {
        behind_first += node.seconds;
      }
    });
    run.total = watch.seconds();
    const std::size_t gaps = run.nodes.size() - 1;
    if (gaps > 0) run.between = (last_end - first_end - behind_first) / static_cast<double>(gaps);
  }
  return runs;
}

}  // namespace kvcast::execute
