#include "model/execute/generate.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "model/base/stopwatch.h"
#include "model/execute/batch_order.h"
#include "model/execute/messenger.h"
#include "model/graph/work.h"
#include "model/record/rank_recording.h"

namespace kvcast::execute {
namespace {

/// Whether devices with tokens of their own send them to each other's experts: all run as many
/// passes of as many tokens.
bool moves_tokens(const SessionOptions& o) {
  return o.place && o.place->plan.dp > 1 && o.place->plan.ep > 1;
}

/// A method may name the base itself, which is open already.
void forget_base(OpenedModels& opened, const Recording& recording) {
  const auto& helpers = recording.helper_models;
  std::erase_if(opened, [&](const auto& model) {
    return std::none_of(helpers.begin(), helpers.end(),
                        [&](const HelperModel& h) { return h.name == model.first; });
  });
}

/// `opened` takes what the methods name.
Recording record_session(const Architecture& a, const SessionOptions& o, OpenedModels& opened) {
  if (o.chunk > 0 && a.encoder_decoder) {
    throw Error("prefill in chunks", "the encoder-decoder model " + a.name, "a decoder-only model");
  }
  if (o.dtype != DType::FP32 && o.dtype != DType::FP64) {
    throw Error("a run's dtype", std::string(name(o.dtype)), "fp32 or fp64");
  }
  if (o.dtype != DType::FP32 && o.cache != DType::FP32) {
    throw Error("a cache in " + std::string(name(o.cache)),
                "a run in " + std::string(name(o.dtype)), "a run in fp32");
  }
  RecordOptions options{.logits = o.logits,
                        .decoder_tokens = o.decoder_tokens,
                        .chunked = o.chunk > 0,
                        .steps = o.steps,
                        .find_model = [&](const std::string& name) -> Architecture {
                          return open_model(name, o.open, opened).architecture();
                        }};
  if (o.place) {
    check_runs_spread(o.place->plan);
    options.place = o.place;
    if (o.share) options.place->rank = o.share->rank;
    options.place->counts_by_layer = true;
  }
  if (o.share && o.chunk > 0) {
    throw Error("methods " + to_string(o.methods), "a prefill in chunks",
                "each rank's part in one piece");
  }
  Recording recording = o.share ? record_rank(a, o.methods, session_lowering(o), *o.share, options)
                                : record(a, o.methods, session_lowering(o), options);
  forget_base(opened, recording);
  return recording;
}

std::vector<ModelWeights> weights_of(const Checkpoint& base, const Recording& recording,
                                     const SessionOptions& o, OpenedModels& opened) {
  std::vector<ModelWeights> models = find_weights(base, recording.helper_models, opened);
  models.front().may_leave = o.place && o.place->device > 0;
  return models;
}

/// Loads the weights and says how long it took.
WeightStore load_weights(const Checkpoint& checkpoint, const Recording& recording,
                         const SessionOptions& o, OpenedModels& opened, double& seconds) {
  check_converted(checkpoint, recording.conversion, o.methods);
  const Stopwatch watch;
  WeightStore weights(weights_of(checkpoint, recording, o, opened), graphs_of(recording),
                      loops_of(o) == Loops::Fast ? WeightForm::Packed : WeightForm::Plain, o.dtype,
                      o.arithmetic);
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

void check_continuation(const Request& request, const Architecture& a) {
  const auto& continuation = request.continuation;
  if (continuation.empty()) return;
  const std::uint64_t steps = request.output_len - 1;
  if (continuation.size() != request.tokens.size() || continuation.front().size() != steps) {
    throw Error(
        "continuation",
        fmt::format("{} sequences, the first of {} tokens", continuation.size(),
                    continuation.front().size()),
        fmt::format("{} of {} tokens, one less than the output", request.tokens.size(), steps));
  }
  if (steps > 0) check_ids(continuation, a, "continuation");
}

void check_share(const Recording& recording, const RankShare& share, std::uint64_t length) {
  if (keeps_differently_many(recording, length)) {
    throw Error("prompt",
                fmt::format("{} tokens in chunks of {}, the last one shorter", length,
                            recording.selection->chunk),
                "full chunks: ranks share out a number of kept tokens that they know beforehand");
  }
  const std::uint64_t read = shared_tokens(recording, length);
  if (share.prompt_len() == read) return;
  throw Error("prompt", fmt::format("{} tokens{}", read, recording.selection ? " kept" : ""),
              fmt::format("the {} of the session's partition", share.prompt_len()));
}

/// Beyond the context that a model was trained for its rotations may be others (longrope, dynamic).
/// Those of a cached key stay what they were in its own pass.
void check_rotations(const Stack& stack, std::uint64_t first_pass, std::uint64_t tokens, bool plain,
                     const std::string& what) {
  for (const LayerShape& layer : stack.layers) {
    if (!layer.rope || layer.rope->max_positions == 0) continue;
    const RopeTable& rope = *layer.rope;
    if (tokens <= rope.max_positions) continue;
    const auto fail = [&](const std::string& why) {
      throw Error(
          what, fmt::format("{} positions", tokens),
          fmt::format("at most {}: beyond, its rotations are others (longrope, dynamic), {}",
                      rope.max_positions, why));
    };
    if (!plain) fail("which kvcast runs without methods and on one rank only");
    if (!rope.is_unbounded()) fail("which its file does not say");
    // Phi-3's generation reads the whole text again when it gets there.
    const bool crosses = !rope.long_frequencies.empty() && first_pass <= rope.max_positions;
    if (crosses) fail("or a first pass beyond too: cached keys would have the rotations of both");
  }
}

}  // namespace

void check_positions(const Stack& stack, std::uint64_t tokens, const std::string& what) {
  if (stack.position_rows == 0 || tokens <= stack.position_rows) return;
  throw Error(what, fmt::format("{} positions", tokens),
              fmt::format("at most the {} of the model's position table", stack.position_rows));
}

void Generation::set_logits(DType dtype, const Shape& shape, Floats data) {
  logits_shape = shape;
  logits_data = std::move(data);
  if (dtype == DType::FP64) {
    logits64 = {reinterpret_cast<const double*>(logits_data.get()), shape.elements()};
  } else {
    logits = {logits_data.get(), shape.elements()};
  }
}

RevivedShares revived_shares(const Recording& recording, const Generation& run,
                             std::uint64_t prompt_len) {
  if (run.revived.empty()) return {};
  // Before a step at most all dropped tokens are back.
  const SymbolValues most = recording.symbols.resolve_most({1, prompt_len, prompt_len + 1});
  std::uint64_t dropped = 0;
  for (const RevivedTokens& r : recording.revived) dropped += most[r.before.id];
  if (dropped == 0) return {};
  const auto share = [&](std::size_t begin, std::size_t end) {
    std::uint64_t revived = 0;
    for (std::size_t step = begin; step < end; ++step) {
      revived = std::accumulate(run.revived[step].begin(), run.revived[step].end(), revived);
    }
    return static_cast<double>(revived) / static_cast<double>(dropped * (end - begin));
  };
  const std::size_t steps = run.revived.size();
  return {.first_step = share(0, 1), .later_steps = steps > 1 ? share(1, steps) : 0};
}

void check_runs_spread(const Parallelism& plan) {
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw Error("a run with " + to_string(plan), found, expected);
  };
  if (plan.pp > 1) refuse("stages of layers", "pp 1: only forecasts know stages");
  if (plan.sequence_parallel) {
    refuse("sequence-parallel norms", "norms of all tokens: only forecasts split them");
  }
}

Loops loops_of(const SessionOptions& o) {
  return o.dtype == DType::FP32 ? o.loops : Loops::Counting;
}

DType cache_dtype(const SessionOptions& options) {
  return loops_of(options) == Loops::Fast ? options.cache : options.dtype;
}

Lowering session_lowering(const SessionOptions& options) {
  Lowering l;
  l.attention = options.attention;
  l.elementwise = options.elementwise;
  l.skip_unread_rows = options.skip_unread_rows;
  l.activations = options.dtype;
  if (options.arithmetic == Arithmetic::BF16) l.products = DType::BF16;
  if (options.arithmetic == Arithmetic::INT8) l.products = DType::INT8;
  l.cache = options.dtype == DType::FP32 ? options.cache : options.dtype;
  l.weights = options.dtype == DType::FP32 ? options.weights : options.dtype;
  return l;
}

OpenedModels check_checkpoint(const Checkpoint& checkpoint, const SessionOptions& options,
                              const std::set<std::uint64_t>& prompt_lens) {
  OpenedModels opened;
  const Recording r = record_session(checkpoint.architecture(), options, opened);
  check_converted(checkpoint, r.conversion, options.methods);
  check_weights(weights_of(checkpoint, r, options, opened), graphs_of(r));
  for (const std::uint64_t length : prompt_lens) check_prompt_length(r, length);
  return opened;
}

std::uint64_t tokens_to_share(const Architecture& a, SessionOptions options,
                              std::uint64_t prompt_len) {
  std::erase_if(options.methods, [](const MethodSpec& m) {
    return find_method(m.name).kind == MethodKind::Placement;
  });
  OpenedModels opened;
  return shared_tokens(record_session(a, options, opened), prompt_len);
}

double needed_bytes(const Architecture& a, SessionOptions options, std::uint64_t batch,
                    std::uint64_t prompt_len, std::uint64_t output_len) {
  // What counting loops hold, whatever they count.
  if (loops_of(options) == Loops::Counting) options.weights = options.dtype;
  OpenedModels opened;
  const Recording r = record_session(a, options, opened);
  const std::uint64_t start = a.encoder_decoder ? options.decoder_tokens : prompt_len;
  const std::uint64_t chunk = options.chunk > 0 ? std::min(options.chunk, prompt_len) : prompt_len;
  const auto& share = options.share;
  const SymbolValues prefill =
      r.symbols.resolve({batch, share ? share->tokens() : chunk, share ? share->end() : start});
  const SymbolValues last = r.symbols.resolve_most({batch, prompt_len, start + output_len});
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
  for (const RecordedPass& pass : r.helpers()) {
    const std::uint64_t kv_len =
        pass.first_kv_len.at(r.symbols.resolve({batch, start, start})) + pass.steps;
    add(pass.graph, r.symbols.resolve({batch, start, kv_len - 1}));
  }
  add(r.prefill(), prefill);
  if (!share || share->decodes()) add(r.decode(), last);
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
      recording_(record_session(checkpoint.architecture(), options, opened_)),
      weights_(load_weights(checkpoint, recording_, options, opened_, load_s_)) {}

void check_encoder_sequences(const Request& request) {
  const std::size_t batch = request.tokens.size();
  if (request.encoder_tokens.size() == batch) return;
  throw Error("encoder tokens", fmt::format("{} sequences", request.encoder_tokens.size()),
              fmt::format("{}, as many as decoder sequences", batch));
}

void Session::check_apart(const Request& request) const {
  const auto refuse = [](const std::string& what) {
    throw Error(what, "prompts of different lengths in a batch", "prompts of one length");
  };
  if (options_.share) refuse("a prompt that ranks share");
  if (moves_tokens(options_)) refuse("experts of tokens of several devices");
  if (architecture().encoder_decoder) refuse("an encoder-decoder model");
  if (options_.logits == Logits::All) refuse("logits of all positions");
  check_continuation(request, architecture());
  for (std::size_t b = 0; b < request.tokens.size(); ++b) check(only_sequence(request, b));
}

void Session::check(const Request& request) const {
  const Architecture& a = architecture();
  check_ids(request.tokens, a, a.encoder_decoder ? "decoder tokens" : "prompt");
  const std::size_t batch = request.tokens.size();
  const std::uint64_t length = request.tokens.front().size();
  if (options_.share) check_share(recording_, *options_.share, length);
  for (const HelperModel& model : recording_.helper_models) {
    check_ids(request.tokens, model.architecture, "prompt, read by " + model.name);
  }
  for (const RecordedPass& pass : recording_.helpers()) {
    const std::uint64_t before = pass.reads == HelperTokens::Next ? length : 0;
    const std::uint64_t tokens = before > 0 ? pass.steps : length;
    check_positions(stack_of(recording_, pass), before + tokens, pass.name);
    check_rotations(stack_of(recording_, pass), tokens, before + tokens, false, pass.name);
  }
  check_prompt_length(recording_, length);
  if (moves_tokens(options_) && keeps_differently_many(recording_, length)) {
    throw Error("prompt", "prompts that may keep different numbers of tokens",
                "full chunks: devices that move tokens to experts have equally many");
  }
  if (options_.logits == Logits::All && batch > 1 && keeps_differently_many(recording_, length)) {
    throw Error("logits of all positions",
                "a batch whose sequences may keep different numbers of tokens",
                "one sequence, or the last position's logits");
  }
  if (options_.logits == Logits::All && recording_.selection && recording_.selection->reused) {
    throw Error("logits of all positions", "a prefill that reuses the speculator's cache",
                "the last position's logits: it reads no other token");
  }
  if (request.output_len == 0) throw Error("output length", "0", "at least 1");
  check_continuation(request, a);
  // The last generated token is not fed back.
  const std::string all = a.encoder_decoder ? "decoder tokens and output" : "prompt and output";
  check_positions(a.decoder, length + request.output_len - 1, all);
  const bool plain =
      !options_.share && std::all_of(options_.methods.begin(), options_.methods.end(),
                                     [](const auto& m) { return m.name == "plain"; });
  const std::uint64_t first = options_.chunk > 0 ? std::min(options_.chunk, length) : length;
  check_rotations(a.decoder, first, length + request.output_len - 1, plain, all);
  if (!a.encoder_decoder) return;
  if (length != options_.decoder_tokens) {
    throw Error("decoder tokens", fmt::format("{} of them", length),
                fmt::format("the {} that the session was made for", options_.decoder_tokens));
  }
  if (a.num_mel_bins == 0) {
    check_ids(request.encoder_tokens, a, "encoder tokens");
    return check_encoder_sequences(request);
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

}  // namespace kvcast::execute
