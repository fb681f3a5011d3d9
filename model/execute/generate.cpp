#include "model/execute/generate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "model/execute/messenger.h"
#include "model/rank_recording.h"
#include "model/stopwatch.h"
#include "model/work.h"

namespace kvcast::execute {
namespace {

Recording record_session(const Architecture& a, const SessionOptions& o) {
  if (o.chunk > 0 && a.encoder_decoder) {
    throw Error("prefill in chunks", "the encoder-decoder model " + a.name, "a decoder-only model");
  }
  if (o.dtype != DType::FP32 && o.dtype != DType::FP64) {
    throw Error("a run's dtype", std::string(name(o.dtype)), "fp32 or fp64");
  }
  for (const MethodSpec& method : o.methods) {
    const Method& m = find_method(method.name);
    if (m.runs || m.kind == MethodKind::Placement) continue;
    throw Error("method " + method.name + " is costed (estimate, sweep) but does not run yet");
  }
  const RecordOptions options{
      .logits = o.logits, .decoder_tokens = o.decoder_tokens, .chunked = o.chunk > 0};
  if (!o.share) return record(a, o.methods, session_lowering(o), options);
  if (o.chunk > 0) {
    throw Error("methods " + to_string(o.methods), "a prefill in chunks",
                "each rank's part in one piece");
  }
  return record_rank(a, o.methods, session_lowering(o), *o.share, options);
}

/// A checkpoint made for a method runs under it, and no other does.
void check_converted(const Checkpoint& checkpoint, const Recording& recording,
                     const SessionOptions& o) {
  if (checkpoint.is_random()) return;
  const std::string place = checkpoint.path().string();
  if (!recording.conversion.empty()) {
    throw Error(place, "a checkpoint of the unchanged model",
                "one that '" + recording.conversion + "' has made of it");
  }
  const bool slim = std::any_of(o.methods.begin(), o.methods.end(),
                                [](const MethodSpec& m) { return m.name == "slim"; });
  if (!checkpoint.architecture().slim.empty() && !slim) {
    throw Error(place, "a checkpoint converted for slim attention", "--method slim");
  }
}

Loops loops_of(const SessionOptions& o) {
  return o.dtype == DType::FP32 ? o.loops : Loops::Counting;
}

/// Loads the weights and says how long it took.
WeightStore load_weights(const Checkpoint& checkpoint, const Recording& recording,
                         const SessionOptions& o, double& seconds) {
  check_converted(checkpoint, recording, o);
  const Stopwatch watch;
  WeightStore weights(checkpoint, {&recording.prefill, &recording.decode},
                      loops_of(o) == Loops::Fast ? WeightForm::Packed : WeightForm::Plain, o.dtype);
  seconds = watch.seconds();
  return weights;
}

void check_ids(const std::vector<std::vector<TokenId>>& sequences, const Architecture& a,
               const std::string& what) {
  if (sequences.empty() || sequences.front().empty()) {
    throw Error(what, "no token", "at least one");
  }
  for (const std::vector<TokenId>& sequence : sequences) {
    if (sequence.size() != sequences.front().size()) {
      throw Error(
          what,
          fmt::format("sequences of {} and {} tokens", sequences.front().size(), sequence.size()),
          "sequences of one length in a batch");
    }
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      if (sequence[i] < a.vocab_size) continue;
      throw Error(what, fmt::format("token id {} at position {}", sequence[i], i),
                  fmt::format("ids below the vocabulary size {} of {}", a.vocab_size, a.name));
    }
  }
}

void check_positions(const Stack& stack, std::uint64_t tokens, const std::string& what) {
  const std::uint64_t limit = stack.rope ? stack.rope->max_positions : 0;
  if (limit > 0 && tokens > limit) {
    throw Error(what, fmt::format("{} positions", tokens),
                fmt::format("at most the {} of the original context: longrope's long factors are "
                            "not executed",
                            limit));
  }
  if (stack.position_rows == 0 || tokens <= stack.position_rows) return;
  throw Error(what, fmt::format("{} positions", tokens),
              fmt::format("at most the {} of the model's position table", stack.position_rows));
}

/// Token ids as the numbers that graphs take.
std::vector<float> flatten(const std::vector<std::vector<TokenId>>& sequences, std::size_t first,
                           std::size_t count) {
  std::vector<float> ids;
  ids.reserve(sequences.size() * count);
  for (const std::vector<TokenId>& sequence : sequences) {
    for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<float>(sequence[first + i]));
  }
  return ids;
}

std::vector<float> positions(const Stack& stack, std::size_t first, std::size_t count) {
  std::vector<float> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i] = static_cast<float>(first + i + stack.position_offset);
  }
  return rows;
}

/// The most likely token at each sequence's last position; the lowest id among equals.
template <typename N>
std::vector<TokenId> greedy_of(const Output& logits, DType dtype) {
  const std::size_t vocab = logits.shape.back();
  const std::size_t rows = logits.shape[1];
  std::vector<TokenId> tokens;
  for (std::size_t b = 0; b < logits.shape[0]; ++b) {
    const N* row = reinterpret_cast<const N*>(logits.data.get()) + (b * rows + rows - 1) * vocab;
    if (!std::all_of(row, row + vocab, [](N x) { return std::isfinite(x); })) {
      throw Error("sequence " + std::to_string(b) +
                      ": logits that are no finite numbers; the model's "
                      "weights overflow " +
                      std::string(name(dtype)),
                  Fault::Run);
    }
    tokens.push_back(static_cast<TokenId>(std::max_element(row, row + vocab) - row));
  }
  return tokens;
}

std::vector<TokenId> greedy(const Output& logits, DType dtype) {
  return dtype == DType::FP64 ? greedy_of<double>(logits, dtype) : greedy_of<float>(logits, dtype);
}

}  // namespace

Lowering session_lowering(const SessionOptions& options) {
  Lowering l;
  l.attention = options.attention;
  l.elementwise = options.elementwise;
  l.weights = l.activations = l.cache = options.dtype;
  return l;
}

void check_checkpoint(const Checkpoint& checkpoint, const SessionOptions& options) {
  const Recording r = record_session(checkpoint.architecture(), options);
  check_converted(checkpoint, r, options);
  check_weights(checkpoint, {&r.prefill, &r.decode});
}

double needed_bytes(const Architecture& a, const SessionOptions& options, std::uint64_t batch,
                    std::uint64_t prompt_len, std::uint64_t output_len) {
  const Recording r = record_session(a, options);
  const std::uint64_t start = a.encoder_decoder ? options.decoder_tokens : prompt_len;
  const std::uint64_t chunk = options.chunk > 0 ? std::min(options.chunk, prompt_len) : prompt_len;
  const auto& share = options.share;
  const SymbolValues prefill =
      r.symbols.resolve({batch, share ? share->tokens() : chunk, share ? share->end() : start});
  const SymbolValues last = r.symbols.resolve({batch, prompt_len, start + output_len});
  // The cache after the prompt is larger than at the end where a method evicts.
  std::map<std::string, double> cache;
  double activations = 0;
  const auto add = [&](const Graph& graph, const SymbolValues& values) {
    std::vector<std::string> names;  // by tensor: of the cache that it is a state of
    for (const TensorInfo& t : graph.tensors()) {
      const bool cached = t.storage == Storage::KvCache;
      const bool state = cached && t.producer;
      names.push_back(state ? names[graph.node(*t.producer).inputs[0].index] : t.name);
      if (!cached) continue;
      double& known = cache[names.back()];
      known = std::max(known, static_cast<double>(t.bytes().at(values)));
    }
    for (const Count& peak : activation_peaks(graph)) {
      activations = std::max(activations, static_cast<double>(peak.at(values)));
    }
  };
  add(r.prefill, prefill);
  if (!share || share->is_last()) add(r.decode, last);
  double sum = static_cast<double>(r.weight_bytes.at({})) + activations;
  for (const auto& [name, bytes] : cache) sum += bytes;
  return sum;
}

std::vector<TokenId> made_up_prompt(std::uint64_t length, std::uint64_t vocab_size) {
  constexpr std::uint64_t stride = 7919;  // a prime: no short cycles
  std::vector<TokenId> prompt;
  for (std::uint64_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<TokenId>((i + 1) * stride % vocab_size));
  }
  return prompt;
}

Session::Session(const Checkpoint& checkpoint, const SessionOptions& options)
    : checkpoint_(checkpoint),
      options_(options),
      recording_(record_session(checkpoint.architecture(), options)),
      weights_(load_weights(checkpoint, recording_, options, load_s_)) {}

std::vector<std::uint64_t> Session::symbols(const Request& request, std::uint64_t prompt_len,
                                            std::uint64_t kv_len) const {
  return recording_.symbols.resolve({request.tokens.size(), prompt_len, kv_len});
}

void Session::check(const Request& request) const {
  const Architecture& a = architecture();
  check_ids(request.tokens, a, a.encoder_decoder ? "decoder tokens" : "prompt");
  const std::size_t batch = request.tokens.size();
  const std::uint64_t length = request.tokens.front().size();
  if (options_.share && options_.share->prompt_len() != length) {
    throw Error("prompt", fmt::format("{} tokens", length),
                fmt::format("the {} of the session's partition", options_.share->prompt_len()));
  }
  if (request.output_len == 0) throw Error("output length", "0", "at least 1");
  // The last generated token is not fed back.
  check_positions(a.decoder, length + request.output_len - 1,
                  a.encoder_decoder ? "decoder tokens and output" : "prompt and output");
  if (!a.encoder_decoder) return;
  if (length != options_.decoder_tokens) {
    throw Error("decoder tokens", fmt::format("{} of them", length),
                fmt::format("the {} that the session was made for", options_.decoder_tokens));
  }
  if (a.num_mel_bins == 0) {
    check_ids(request.encoder_tokens, a, "encoder tokens");
    if (request.encoder_tokens.size() != batch) {
      throw Error("encoder tokens", fmt::format("{} sequences", request.encoder_tokens.size()),
                  fmt::format("{}, as many as decoder sequences", batch));
    }
    return;
  }
  const std::size_t frame = a.num_mel_bins * batch;
  const std::size_t frames = request.features.size() / frame;
  if (request.features.empty() || request.features.size() % frame != 0 || frames % 2 != 0) {
    throw Error("features", fmt::format("{} numbers", request.features.size()),
                fmt::format("[batch, frames, {}] for a batch of {} and an even number of frames",
                            a.num_mel_bins, batch));
  }
  if (frames / 2 != a.max_source_positions) {
    throw Error("features", fmt::format("{} frames", frames),
                fmt::format("{}, the model's encoder length twice", 2 * a.max_source_positions));
  }
}

/// One pass of a request: which tokens go in, and what came before them.
struct Session::Pass {
  std::uint64_t prompt_len;  ///< value of the symbol
  std::uint64_t kv_len;
  std::vector<float> tokens;
  std::vector<float> positions;
};

Generation Session::run(const Request& request) const {
  check(request);
  const Architecture& a = architecture();
  const std::string prefix = a.encoder_decoder ? "decoder." : "";
  const std::size_t batch = request.tokens.size();
  const std::size_t length = request.tokens.front().size();
  std::uint64_t prompt_len = length;
  if (a.encoder_decoder) {
    prompt_len = a.num_mel_bins > 0 ? a.max_source_positions : request.encoder_tokens[0].size();
  }

  const DType dtype = options_.dtype;
  const Executor prefill(recording_.prefill, weights_, loops_of(options_), dtype);
  const Executor decode(recording_.decode, weights_, loops_of(options_), dtype);
  const Work prefill_work = total_work(recording_.prefill);
  const Work decode_work = total_work(recording_.decode);
  CacheStore cache(dtype);
  Arena arena;
  Generation g;
  g.tokens.resize(batch);
  g.profile.prefill_s.resize(recording_.prefill.nodes().size());
  g.profile.decode_s.resize(recording_.decode.nodes().size());

  // The tokens of prefill: the whole prompt or this rank's part.
  const std::size_t part_begin = options_.share ? options_.share->first() : 0;
  const std::size_t part_end = options_.share ? options_.share->end() : length;
  const bool decodes = part_end == length;
  const std::size_t chunk = options_.chunk > 0 ? options_.chunk : part_end - part_begin;
  const std::uint64_t chunks = a.encoder_decoder ? 1 : (part_end - part_begin + chunk - 1) / chunk;
  const std::uint64_t passes = chunks + (decodes ? request.output_len - 1 : 0);
  std::uint64_t done = 0;

  std::vector<float> encoder_ids;
  std::vector<float> encoder_positions;
  const auto run_pass = [&](const Executor& executor, const Graph& graph, const Work& work,
                            Pass pass, std::vector<double>& seconds) {
    if (request.on_pass) request.on_pass(done++, passes);
    const std::vector<std::uint64_t> values = symbols(request, pass.prompt_len, pass.kv_len);
    Inputs inputs{{prefix + "tokens", pass.tokens},
                  {prefix + "positions", pass.positions},
                  {"encoder.tokens", encoder_ids},
                  {"encoder.positions", encoder_positions},
                  {"features", request.features}};
    g.analytic_flops += work.flops.at(values);
    g.analytic_bytes += work.bytes().at(values);
    const auto observe = [&](const NodeRun& node) {
      seconds[node.node] += node.seconds;
      g.skipped += node.skipped;
      if (node.counted != nullptr) g.counted += *node.counted;
      if (request.on_node) request.on_node(graph, node, values);
    };
    return executor.run(values, inputs, cache, arena, observe, request.messenger);
  };
  const std::size_t kept = options_.logits == Logits::All ? part_end - part_begin : decodes ? 1 : 0;
  for (const std::size_t dim : {batch, kept, static_cast<std::size_t>(a.vocab_size)}) {
    g.logits_shape.push_back(dim);
  }
  // Whole passes hand over their logits; chunks are put together.
  const auto keep_logits = [&](Output& out, std::size_t first_row) {
    if (kept == 0) return;  // hidden states
    if (out.shape[1] == kept) {
      g.logits_data = std::move(out.data);
      return;
    }
    const std::size_t row = a.vocab_size * floats_in(dtype);
    if (!g.logits_data) g.logits_data = allocate_floats(batch * kept * row);
    const std::size_t n = out.shape[1] * row;
    for (std::size_t b = 0; b < batch; ++b) {
      std::copy_n(out.data.get() + b * n, n, &g.logits_data[(b * kept + first_row) * row]);
    }
  };

  // The cache has room for the whole request from the start.
  const auto pass_len = [&](std::size_t first) -> std::uint64_t {
    return a.encoder_decoder ? prompt_len : std::min(chunk, part_end - first);
  };
  for (std::size_t first = part_begin; first < part_end; first += chunk) {
    const std::size_t end = std::min(part_end, first + chunk);
    prefill.prepare(cache, symbols(request, pass_len(first), end));
  }
  const std::uint64_t last_kv_len = length + request.output_len;
  if (decodes) decode.prepare(cache, symbols(request, prompt_len, last_kv_len));
  cache.allocate();

  if (request.messenger != nullptr) meet(*request.messenger);
  const Stopwatch watch;
  if (a.encoder_decoder) {
    if (a.num_mel_bins == 0) encoder_ids = flatten(request.encoder_tokens, 0, prompt_len);
    encoder_positions = positions(a.encoder, 0, prompt_len);
  }
  Output logits;
  std::vector<TokenId> next;
  for (std::size_t first = part_begin; first < part_end; first += chunk) {
    const std::size_t n = std::min(chunk, part_end - first);
    logits = run_pass(prefill, recording_.prefill, prefill_work,
                      {pass_len(first), first + n, flatten(request.tokens, first, n),
                       positions(a.decoder, first, n)},
                      g.profile.prefill_s);
    const bool last = first + n == part_end;
    if (last && decodes) next = greedy(logits, dtype);
    if (kept > 1 || last) keep_logits(logits, kept > 1 ? first - part_begin : 0);
  }
  const std::size_t num_logits = g.logits_shape.elements();
  if (dtype == DType::FP64) {
    g.logits64 = {reinterpret_cast<const double*>(g.logits_data.get()), num_logits};
  } else {
    g.logits = {g.logits_data.get(), num_logits};
  }

  g.ttft_s = watch.seconds();
  if (!decodes) return g;
  std::vector<bool> stopped(batch, false);
  const auto accept = [&] {
    for (std::size_t b = 0; b < batch; ++b) {
      if (stopped[b]) continue;
      g.tokens[b].push_back(next[b]);
      const auto& stops = request.stop_tokens;
      stopped[b] = std::find(stops.begin(), stops.end(), next[b]) != stops.end();
    }
    if (request.on_token) request.on_token(next);
    return std::find(stopped.begin(), stopped.end(), false) != stopped.end();
  };

  const Stopwatch decode_watch;
  bool going = accept();
  for (std::uint64_t step = 1; going && step < request.output_len; ++step) {
    const std::uint64_t kv_len = length + step;
    std::vector<float> ids(next.begin(), next.end());
    logits = run_pass(decode, recording_.decode, decode_work,
                      {prompt_len, kv_len, std::move(ids), positions(a.decoder, kv_len - 1, 1)},
                      g.profile.decode_s);
    next = greedy(logits, dtype);
    ++g.decode_steps;
    going = accept();
  }
  if (g.decode_steps > 0) {
    g.tpot_s = decode_watch.seconds() / static_cast<double>(g.decode_steps);
  }
  g.kv_cache_bytes = recording_.kv_cache_bytes.at(symbols(request, prompt_len, last_kv_len));
  return g;
}

}  // namespace kvcast::execute
