#include "model/execute/pass_timer.h"

#include <numeric>

#include "model/base/error.h"
#include "model/base/stopwatch.h"

namespace kvcast::execute {

PassTimer::PassTimer(const Checkpoint& checkpoint, const SessionOptions& options)
    : session_(std::make_shared<const Session>(checkpoint, options)) {}

PassTimer::PassTimer(const PassTimer& other, Kernels kernels) : session_(other.session_) {
  SessionOptions options = session_->options();
  KVCAST_ASSERT(options.methods.empty());
  options.attention = options.elementwise = kernels;
  recording_ = record(session_->architecture(), {}, session_lowering(options));
}

std::vector<PassSeconds> PassTimer::decode(const PassSizes& sizes, int repeats) {
  return time(recording().decode(), sizes, 1, sizes.kv_len - 1, true, repeats);
}

std::vector<PassSeconds> PassTimer::prefill(const PassSizes& sizes, int repeats) {
  const Architecture& a = session_->architecture();
  if (a.encoder_decoder) {
    throw Error("timing a prefill", "the encoder-decoder model " + a.name, "a decoder-only model");
  }
  const std::array key{sizes.batch, sizes.prompt_len, sizes.kv_len};
  const bool is_new = prefilled_.count(key) == 0;
  std::vector<PassSeconds> runs =
      time(recording().prefill(), sizes, sizes.prompt_len, 0, is_new, repeats);
  prefilled_.insert(key);
  return runs;
}

std::vector<PassSeconds> PassTimer::time(const Graph& graph, const PassSizes& sizes,
                                         std::uint64_t tokens, std::uint64_t first_position,
                                         bool is_new, int repeats) {
  const Architecture& a = session_->architecture();
  const SymbolValues values =
      recording().symbols.resolve({sizes.batch, sizes.prompt_len, sizes.kv_len});
  const std::uint64_t all_tokens = sizes.batch * tokens;
  const std::vector<float> ids = flatten({made_up_prompt(all_tokens, a.vocab_size)}, 0, all_tokens);
  std::vector<std::uint64_t> places(tokens);
  std::iota(places.begin(), places.end(), first_position);
  const std::vector<float> positions = position_ids(a.decoder, places);
  const std::string prefix = a.encoder_decoder ? "decoder." : "";
  const Inputs inputs{{prefix + "tokens", ids}, {prefix + "positions", positions}};

  const Executor executor(graph, session_->weights(), Loops::Fast);
  CacheStore cache;
  executor.reserve(cache, values);
  cache.allocate();
  if (is_new) {
    const std::size_t before = arena_.capacity();
    executor.run(values, inputs, cache, arena_);  // touches memory
    if (arena_.capacity() != before) prefilled_.clear();
  }
  std::vector<PassSeconds> runs(static_cast<std::size_t>(repeats));
  for (PassSeconds& run : runs) {
    run.nodes.resize(graph.nodes().size());
    const Stopwatch watch;
    double first_end = 0;
    double last_end = 0;
    double behind_first = 0;
    executor.run(values, inputs, cache, arena_, [&](const NodeRun& node) {
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
