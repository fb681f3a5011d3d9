#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/base/stopwatch.h"
#include "model/execute/batch_order.h"
#include "model/execute/generate.h"
#include "model/execute/messenger.h"
#include "model/graph/work.h"

namespace kvcast::execute {
namespace {

void add(std::vector<double>& sums, const std::vector<double>& terms) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
}

template <typename N>
void copy_row_of(const Output& logits, std::size_t row, float* to, std::size_t width) {
  const std::size_t own = logits.shape.back();
  const std::size_t shared = std::min(own, width);
  N* const out = reinterpret_cast<N*>(to);
  std::copy_n(reinterpret_cast<const N*>(logits.data.get()) + row * own, shared, out);
  std::fill(out + shared, out + width, -std::numeric_limits<N>::infinity());
}

/// One row of logits for a vocabulary of `width` ids. A vocabulary that is padded differently
/// differs in ids that no text has: they are cut off, or cannot come next.
void copy_row(const Output& logits, std::size_t row, float* to, std::size_t width, DType dtype) {
  if (dtype == DType::FP64) {
    copy_row_of<double>(logits, row, to, width);
  } else {
    copy_row_of<float>(logits, row, to, width);
  }
}

/// Adds a sequence that ran after the others, of `batch` in all. The time of a token is that of one
/// of each sequence.
void append(Generation& all, const Generation& g, std::size_t batch) {
  const std::size_t n = g.logits_shape.elements();
  const std::size_t before = all.tokens.size();
  KVCAST_ASSERT(all.logits_shape[1] == g.logits_shape[1]);
  const bool wide = !g.logits64.empty();
  const std::size_t floats = n * (wide ? 2 : 1);
  if (before == 1) {
    Floats room = allocate_floats(batch * floats);
    std::copy_n(all.logits_data.get(), floats, room.get());
    all.logits_data = std::move(room);
  }
  std::copy_n(g.logits_data.get(), floats, all.logits_data.get() + before * floats);
  all.logits_shape = Shape();
  for (const std::size_t dim : {before + 1, g.logits_shape[1], g.logits_shape[2]}) {
    all.logits_shape.push_back(dim);
  }
  if (wide) {
    all.logits64 = {reinterpret_cast<const double*>(all.logits_data.get()), (before + 1) * n};
  } else {
    all.logits = {all.logits_data.get(), (before + 1) * n};
  }
  all.tokens.push_back(g.tokens[0]);
  if (!g.kept.empty()) all.kept.push_back(g.kept[0]);
  if (!g.importance.empty()) all.importance.push_back(g.importance[0]);
  all.ttft_s += g.ttft_s;
  all.tpot_s += g.tpot_s;
  all.kv_cache_bytes += g.kv_cache_bytes;
  all.analytic_flops += g.analytic_flops;
  all.analytic_bytes += g.analytic_bytes;
  all.counted += g.counted;
  all.skipped += g.skipped;
  all.decode_steps = std::max(all.decode_steps, g.decode_steps);
  for (std::size_t i = 0; i < g.helper_steps.size(); ++i) all.helper_steps[i] += g.helper_steps[i];
  for (std::size_t i = 0; i < all.profile.helpers_s.size(); ++i) {
    add(all.profile.helpers_s[i], g.profile.helpers_s[i]);
  }
  add(all.profile.prefill_s, g.profile.prefill_s);
  add(all.profile.decode_s, g.profile.decode_s);
}

std::vector<float> positions(const Stack& stack, std::size_t first, std::size_t count) {
  std::vector<std::uint64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return position_ids(stack, rows);
}

/// Token `i` of each sequence.
std::vector<float> column(const std::vector<std::vector<TokenId>>& sequences, std::size_t i) {
  std::vector<float> ids;
  for (const auto& sequence : sequences) ids.push_back(static_cast<float>(sequence[i]));
  return ids;
}

/// What the formulas say of a pass; made once, since sums of counts take long.
struct PassWork {
  explicit PassWork(const Graph& graph) {
    const Work work = total_work(graph);
    flops = work.flops;
    bytes = work.bytes();
  }
  Count flops;
  Count bytes;
};

/// The logits of the last position [batch, 1, vocab], from the rank that has them to the one that
/// goes on with them.
void send_last_logits(const Output& logits, DType dtype, const RankShare& share, Messenger& m) {
  const std::size_t rows = logits.shape[1];
  const std::size_t row = logits.shape[2] * floats_in(dtype);
  for (std::size_t b = 0; b < logits.shape[0]; ++b) {
    send_bytes(m, share.decoder(), &logits.data[(b * rows + rows - 1) * row], row * sizeof(float));
  }
}

Output receive_last_logits(std::size_t batch, std::size_t vocab, DType dtype,
                           const RankShare& share, Messenger& m) {
  const std::size_t row = vocab * floats_in(dtype);
  Output logits{{}, allocate_floats(batch * row)};
  for (const std::size_t dim : {batch, std::size_t{1}, vocab}) logits.shape.push_back(dim);
  for (std::size_t b = 0; b < batch; ++b) {
    receive_bytes(m, share.ranks() - 1, &logits.data[b * row], row * sizeof(float));
  }
  return logits;
}

/// Ranks choose for themselves, from the same numbers if they compute alike.
void check_same_kept(const std::vector<std::vector<std::uint64_t>>& kept, Messenger& messenger) {
  if (kept.empty()) return;
  std::string positions;
  for (const auto& sequence : kept) positions += fmt::format("[{}]", fmt::join(sequence, ","));
  const std::string problem = first_error(messenger, "", positions);
  if (!problem.empty()) throw Error("kept tokens: " + problem, Fault::Run);
}

}  // namespace

/// One pass of a request: which tokens go in, and what came before them.
struct Session::Pass {
  std::uint64_t prompt_len;  ///< value of the symbol
  std::uint64_t kv_len;
  std::vector<float> tokens;
  std::vector<float> positions;
  std::vector<float> kept = {};  ///< indices of the prompt's tokens whose cache is reused
};

Generation Session::run(const Request& request) const {
  if (have_different_lengths(request.tokens)) {
    check_apart(request);
  } else {
    check(request);
  }
  return runs_one_by_one(*this, request) ? run_one_by_one(request) : run_together(request);
}

Generation Session::run_together(const Request& request, std::size_t index) const {
  const Architecture& a = architecture();
  const std::string prefix = a.encoder_decoder ? "decoder." : "";
  const std::size_t batch = request.tokens.size();
  const std::size_t length = request.tokens.front().size();
  std::uint64_t prompt_len = length;
  if (a.encoder_decoder) {
    prompt_len = a.num_mel_bins > 0 ? a.max_source_positions : request.encoder_tokens[0].size();
  }

  const DType dtype = options_.dtype;
  const Loops loops = dtype == DType::FP32 ? options_.loops : Loops::Counting;
  const Executor prefill(recording_.prefill(), weights_, loops, dtype);
  const Executor decode(recording_.decode(), weights_, loops, dtype);
  const HelperRun helpers(recording_, weights_, loops, dtype);
  HelperFindings found;
  const auto symbols = [&](std::uint64_t prompt, std::uint64_t kv_len) {
    return recording_.symbols.resolve({batch, prompt, kv_len}, found.counts);
  };
  const PassWork prefill_work(recording_.prefill());
  const PassWork decode_work(recording_.decode());
  std::vector<PassWork> helper_work;
  CacheStore cache(dtype);
  Arena arena;
  Generation g;
  g.tokens.resize(batch);
  for (const RecordedPass& pass : recording_.helpers()) {
    helper_work.emplace_back(pass.graph);
    g.profile.helpers_s.emplace_back(pass.graph.nodes().size());
  }
  g.helper_steps.resize(recording_.helpers().size());
  g.profile.prefill_s.resize(recording_.prefill().nodes().size());
  g.profile.decode_s.resize(recording_.decode().nodes().size());

  // The tokens of prefill: the whole prompt or this rank's part, of the kept tokens if it is
  // pruned.
  const std::size_t part_begin = options_.share ? options_.share->first() : 0;
  const std::size_t part_end = options_.share ? options_.share->end() : length;
  const bool has_logits = !options_.share || options_.share->is_last();
  const bool decodes = !options_.share || options_.share->decodes();
  const std::size_t chunk = options_.chunk > 0 ? options_.chunk : part_end - part_begin;
  const std::uint64_t chunks = a.encoder_decoder ? 1 : (part_end - part_begin + chunk - 1) / chunk;
  const std::uint64_t passes =
      helpers.passes(batch, prompt_len) + chunks + (decodes ? request.output_len - 1 : 0);
  std::uint64_t done = 0;

  LateSizes late;  // of the last pass
  std::vector<float> encoder_ids;
  std::vector<float> encoder_positions;
  const auto run_graph = [&](const Executor& executor, const Graph& graph, const PassWork& work,
                             const SymbolValues& values, const Inputs& inputs,
                             std::vector<double>& seconds) {
    if (request.on_pass) request.on_pass(done++, passes);
    const auto observe = [&](const NodeRun& node) {
      seconds[node.node] += node.seconds;
      g.skipped += node.skipped;
      if (node.counted != nullptr) g.counted += *node.counted;
      if (request.on_node) request.on_node(graph, node, node.call->symbols);
    };
    late = {&recording_.symbols, found.counts, values};
    Output out = executor.run(values, inputs, cache, arena, observe, request.messenger, &late);
    g.analytic_flops += work.flops.at(late.values);
    g.analytic_bytes += work.bytes.at(late.values);
    return out;
  };
  const auto run_pass = [&](const Executor& executor, const Graph& graph, const PassWork& work,
                            Pass pass, std::vector<double>& seconds) {
    const Inputs inputs{{prefix + "tokens", pass.tokens},
                        {prefix + "positions", pass.positions},
                        {"kept", pass.kept},
                        {"encoder.tokens", encoder_ids},
                        {"encoder.positions", encoder_positions},
                        {"features", request.features}};
    return run_graph(executor, graph, work, symbols(pass.prompt_len, pass.kv_len), inputs, seconds);
  };
  const auto run_helper = [&](std::size_t i, const Executor& executor, const SymbolValues& values,
                              const Inputs& inputs) {
    ++g.helper_steps[i];
    return run_graph(executor, recording_.helpers()[i].graph, helper_work[i], values, inputs,
                     g.profile.helpers_s[i]);
  };

  // The cache has room for the whole request from the start.
  const auto pass_len = [&](std::size_t first) -> std::uint64_t {
    return a.encoder_decoder ? prompt_len : std::min(chunk, part_end - first);
  };
  for (std::size_t first = part_begin; first < part_end; first += chunk) {
    const std::size_t end = std::min(part_end, first + chunk);
    prefill.reserve(cache, symbols(pass_len(first), end));
  }
  const auto slots = [&] { return recording_.prompt_slots.at(symbols(prompt_len, length)); };
  helpers.reserve(cache, batch, prompt_len);
  if (decodes) {
    decode.reserve(cache, recording_.symbols.resolve_most(
                              {batch, prompt_len, slots() + request.output_len}, found.counts));
  }
  cache.allocate();

  if (request.messenger != nullptr) meet(*request.messenger);
  const Stopwatch watch;
  found = helpers.run(request.tokens, request.stop_tokens, index, run_helper);
  g.importance = std::move(found.importance);
  g.kept = std::move(found.kept);
  if (request.messenger != nullptr) check_same_kept(g.kept, *request.messenger);
  const std::size_t past = recording_.prompt_past.at(symbols(prompt_len, length));

  const bool reads_all_kept = !g.kept.empty() && !options_.share;
  const std::size_t read = (reads_all_kept ? g.kept[0].size() : part_end - part_begin) - past;
  const bool all_logits = options_.logits == Logits::All;
  const std::size_t rows_before =
      all_logits && found.prompt_logits ? found.prompt_logits->shape[1] : 0;
  const std::size_t kept = all_logits ? rows_before + read : has_logits ? 1 : 0;
  for (const std::size_t dim : {batch, kept, static_cast<std::size_t>(a.vocab_size)}) {
    g.logits_shape.push_back(dim);
  }
  const auto copy_logits = [&](const Output& out, std::size_t first_row) {
    const std::size_t row = a.vocab_size * floats_in(dtype);
    if (!g.logits_data) g.logits_data = allocate_floats(batch * kept * row);
    const std::size_t n = out.shape[1];
    for (std::size_t i = 0; i < batch * n; ++i) {
      float* const to = &g.logits_data[(i / n * kept + first_row + i % n) * row];
      copy_row(out, i, to, a.vocab_size, dtype);
    }
  };
  if (rows_before > 0) copy_logits(*found.prompt_logits, 0);
  found.prompt_logits.reset();  // the logits of a whole prompt are large
  // Whole passes hand over their logits; chunks, and what a helper pass has, are put together.
  const auto keep_logits = [&](Output& out, std::size_t first_row) {
    if (kept == 0) return;  // hidden states
    const bool whole = part_end - part_begin <= chunk && rows_before == 0;
    if (whole) {  // fewer rows where a pass drops tokens on its way
      g.logits_shape = out.shape;
      g.logits_data = std::move(out.data);
      return;
    }
    copy_logits(out, rows_before + first_row);
  };

  if (a.encoder_decoder) {
    if (a.num_mel_bins == 0) encoder_ids = flatten(request.encoder_tokens, 0, prompt_len);
    encoder_positions = positions(a.encoder, 0, prompt_len);
  }
  Output logits;
  std::vector<TokenId> next;
  for (std::size_t first = part_begin; first < part_end; first += chunk) {
    const std::size_t n = std::min(chunk, part_end - first) - past;
    Pass pass{pass_len(first), first + past + n, {}, {}, {}};
    if (g.kept.empty()) {
      pass.tokens = flatten(request.tokens, first + past, n);
      const std::vector<float> places = positions(a.decoder, first + past, n);
      const std::size_t copies = recording_.given_positions ? batch : 1;
      for (std::size_t b = 0; b < copies; ++b) {
        pass.positions.insert(pass.positions.end(), places.begin(), places.end());
      }
    } else {
      for (std::size_t b = 0; b < batch; ++b) {
        const auto own = std::span(g.kept[b]).subspan(part_begin);
        for (const std::uint64_t p : own.first(past)) {
          pass.kept.push_back(static_cast<float>(p));
        }
        const auto tokens = own.subspan(past, read);
        for (const std::uint64_t p : tokens) {
          pass.tokens.push_back(static_cast<float>(request.tokens[b][p]));
        }
        const std::vector<float> places = position_ids(a.decoder, tokens);
        pass.positions.insert(pass.positions.end(), places.begin(), places.end());
      }
    }
    logits =
        run_pass(prefill, recording_.prefill(), prefill_work, std::move(pass), g.profile.prefill_s);
    const bool last = first + past + n == part_end;
    if (last && has_logits && !decodes) {
      send_last_logits(logits, dtype, *options_.share, *request.messenger);
    }
    if (last && decodes) {
      Output received;
      if (!has_logits) {
        received =
            receive_last_logits(batch, a.vocab_size, dtype, *options_.share, *request.messenger);
      }
      const Output& first_logits = has_logits ? logits : received;
      next = greedy(first_logits, dtype);
      if (request.on_logits) request.on_logits(first_logits);
      if (!has_logits && kept == 0) {
        g.logits_shape = received.shape;
        g.logits_data = std::move(received.data);
      }
    }
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
  const bool given = !request.continuation.empty();
  const auto accept = [&] {
    for (std::size_t b = 0; b < batch; ++b) {
      if (stopped[b]) continue;
      g.tokens[b].push_back(next[b]);
      const auto& stops = request.stop_tokens;
      stopped[b] = !given && std::find(stops.begin(), stops.end(), next[b]) != stops.end();
    }
    if (request.on_token) request.on_token(next);
    return std::find(stopped.begin(), stopped.end(), false) != stopped.end();
  };

  const std::size_t first_revived = found.counts.size();
  for (const RevivedTokens& r : recording_.revived) found.counts.push_back({r.before, 0});
  const Stopwatch decode_watch;
  bool going = accept();
  for (std::uint64_t step = 1; going && step < request.output_len; ++step) {
    std::vector<float> ids = given ? column(request.continuation, step - 1)
                                   : std::vector<float>(next.begin(), next.end());
    std::vector<float> places = positions(a.decoder, length + step - 1, 1);
    if (recording_.given_positions) places.resize(batch, places[0]);
    logits = run_pass(decode, recording_.decode(), decode_work,
                      {prompt_len, slots() + step, std::move(ids), std::move(places), {}},
                      g.profile.decode_s);
    next = greedy(logits, dtype);
    for (std::size_t i = 0; i < recording_.revived.size(); ++i) {
      if (i == 0) g.revived.emplace_back();
      g.revived.back().push_back(late.values[recording_.revived[i].now.id]);
      found.counts[first_revived + i].value += g.revived.back().back();
    }
    if (request.on_logits) request.on_logits(logits);
    ++g.decode_steps;
    going = accept();
  }
  if (g.decode_steps > 0) {
    g.tpot_s = decode_watch.seconds() / static_cast<double>(g.decode_steps);
  }
  for (const RevivedTokens& r : recording_.revived) found.counts.push_back({r.now, 0});
  g.kv_cache_bytes =
      recording_.kv_cache_bytes.at(symbols(prompt_len, slots() + request.output_len));
  g.found = std::move(found.counts);
  return g;
}

Generation Session::run_one_by_one(const Request& request) const {
  Generation all;
  for (std::size_t b = 0; b < request.tokens.size(); ++b) {
    Generation g = run_together(only_sequence(request, b), b);
    if (all.tokens.empty()) {
      all = std::move(g);
    } else {
      append(all, g, request.tokens.size());
    }
  }
  return all;
}

}  // namespace kvcast::execute
