#include "model/execute/session_run.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/execute/batch_order.h"
#include "model/execute/messenger.h"

namespace kvcast::execute {
namespace {

void add(std::vector<double>& sums, const std::vector<double>& terms) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
}

/// Copies one row of logits for a vocabulary of `width` ids. Models pad their vocabularies
/// differently, by ids that no text has. Ids beyond `width` are cut off; missing ones get
/// -infinity.
void copy_row(const Output& logits, std::size_t row, float* to, std::size_t width, DType dtype) {
  const std::size_t own = logits.shape.back();
  const std::size_t shared = std::min(own, width);
  with_numbers(dtype, to, [&]<typename N>(N* out) {
    std::copy_n(reinterpret_cast<const N*>(logits.data.get()) + row * own, shared, out);
    std::fill(out + shared, out + width, -std::numeric_limits<N>::infinity());
  });
}

/// Adds a sequence that ran after the others; `batch` sequences in all. Times add up: the time of a
/// token is that of one token of each sequence.
void append(Generation& all, const Generation& g, std::size_t batch) {
  const std::size_t before = all.tokens.size();
  KVCAST_ASSERT(all.logits_shape[1] == g.logits_shape[1]);
  const DType dtype = g.logits64.empty() ? DType::FP32 : DType::FP64;
  const std::size_t floats = g.logits_shape.elements() * floats_in(dtype);
  if (before == 1) {
    Floats room = allocate_floats(batch * floats);
    std::copy_n(all.logits_data.get(), floats, room.get());
    all.logits_data = std::move(room);
  }
  std::copy_n(g.logits_data.get(), floats, all.logits_data.get() + before * floats);
  all.set_logits(dtype, {before + 1, g.logits_shape[1], g.logits_shape[2]},
                 std::move(all.logits_data));
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

/// Sends the last position's logits [batch, 1, vocab] to the rank that decodes.
void send_last_logits(const Output& logits, const SessionOptions& o, Messenger& m) {
  const std::size_t rows = logits.shape[1];
  const std::size_t row = logits.shape[2] * floats_in(o.dtype);
  const std::size_t to = o.process_of(o.share->decoder());
  for (std::size_t b = 0; b < logits.shape[0]; ++b) {
    send_bytes(m, to, &logits.data[(b * rows + rows - 1) * row], row * sizeof(float));
  }
}

Output receive_last_logits(std::size_t batch, std::size_t vocab, const SessionOptions& o,
                           Messenger& m) {
  const std::size_t row = vocab * floats_in(o.dtype);
  const std::size_t from = o.process_of(o.share->ranks() - 1);
  Output logits{{batch, 1, vocab}, allocate_floats(batch * row)};
  for (std::size_t b = 0; b < batch; ++b) {
    receive_bytes(m, from, &logits.data[b * row], row * sizeof(float));
  }
  return logits;
}

/// Each rank selects tokens itself. Throws Error unless all have selected the same.
void check_same_kept(const std::vector<std::vector<std::uint64_t>>& kept, Messenger& messenger) {
  if (kept.empty()) return;
  std::string positions;
  for (const auto& sequence : kept) positions += fmt::format("[{}]", fmt::join(sequence, ","));
  const std::string problem = first_error(messenger, "", positions);
  if (!problem.empty()) throw Error("kept tokens: " + problem, Fault::Run);
}

}  // namespace

/// One pass: which tokens go in, and what came before them.
struct SessionRun::Pass {
  std::uint64_t prompt_len;  ///< value of the symbol
  std::uint64_t kv_len;
  std::vector<float> tokens;
  std::vector<float> positions;
  std::vector<float> kept = {};  ///< indices of the prompt's tokens whose cache is reused
};

SessionRun::SessionRun(const Session& session, const Request& request, std::size_t index)
    : recording_(session.recording()),
      options_(session.options()),
      model_(session.architecture()),
      request_(request),
      index_(index),
      batch_(request.tokens.size()),
      length_(request.tokens.front().size()),
      prompt_len_(length_),
      prefill_(recording_.prefill(), session.weights(), loops_of(options_), options_.dtype),
      decode_(recording_.decode(), session.weights(), loops_of(options_), options_.dtype),
      helpers_(recording_, session.weights(), loops_of(options_), options_.dtype),
      cache_(cache_dtype(options_)) {
  if (model_.encoder_decoder) {
    prompt_len_ =
        model_.num_mel_bins > 0 ? model_.max_source_positions : request.encoder_tokens[0].size();
    if (model_.num_mel_bins == 0) encoder_ids_ = flatten(request.encoder_tokens, 0, prompt_len_);
    encoder_positions_ = positions(model_.encoder, 0, prompt_len_);
  }
  if (options_.share) {
    part_begin_ = options_.share->first();
    part_end_ = options_.share->end();
    has_logits_ = options_.share->is_last();
    decodes_ = options_.share->decodes();
  } else {
    part_end_ = length_;
  }
  chunk_ = options_.chunk > 0 ? options_.chunk : part_end_ - part_begin_;
  next_row_ = part_begin_;

  made_.tokens.resize(batch_);
  stopped_.resize(batch_, false);
  const std::size_t helpers = recording_.helpers().size();
  made_.helper_steps.resize(helpers);
  made_.profile.helpers_s.resize(helpers);
  for (std::size_t i = 0; i < recording_.passes.size(); ++i) {
    const Graph& graph = recording_.passes[i].graph;
    work_.emplace_back(graph);
    seconds_of(i).resize(graph.nodes().size());
  }
  const std::uint64_t chunks =
      model_.encoder_decoder ? 1 : (part_end_ - part_begin_ + chunk_ - 1) / chunk_;
  passes_ = helpers_.passes(batch_, prompt_len_) + chunks + (decodes_ ? request.output_len - 1 : 0);
  reserve();
}

/// The cache has room for the whole request from the start.
void SessionRun::reserve() {
  for (std::size_t first = part_begin_; first < part_end_; first += chunk_) {
    prefill_.reserve(cache_, symbols(pass_len(first), std::min(part_end_, first + chunk_)));
  }
  helpers_.reserve(cache_, batch_, prompt_len_);
  if (decodes_) {
    decode_.reserve(cache_,
                    recording_.symbols.resolve_most(
                        {batch_, prompt_len_, slots() + request_.output_len}, found_.counts));
  }
  cache_.allocate();
}

bool SessionRun::step() {
  switch (next_) {
    case Next::Helpers: run_helpers(); return true;
    case Next::Prefill: run_chunk(); return true;
    case Next::Decode: run_decode_step(); return true;
    case Next::Nothing: return false;
  }
  KVCAST_ASSERT(false);
  return false;
}

SymbolValues SessionRun::symbols(std::uint64_t prompt, std::uint64_t kv_len) const {
  return recording_.symbols.resolve({batch_, prompt, kv_len}, found_.counts);
}

std::uint64_t SessionRun::slots() const {
  return recording_.prompt_slots.at(symbols(prompt_len_, length_));
}

std::uint64_t SessionRun::pass_len(std::size_t first) const {
  return model_.encoder_decoder ? prompt_len_ : std::min<std::uint64_t>(chunk_, part_end_ - first);
}

std::vector<double>& SessionRun::seconds_of(std::size_t pass) {
  const std::size_t helpers = recording_.helpers().size();
  if (pass < helpers) return made_.profile.helpers_s[pass];
  return pass == helpers ? made_.profile.prefill_s : made_.profile.decode_s;
}

Output SessionRun::run_graph(std::size_t pass, const Executor& executor, const SymbolValues& values,
                             const Inputs& inputs) {
  if (request_.on_pass) request_.on_pass(passes_done_++, passes_);
  const Graph& graph = recording_.passes[pass].graph;
  std::vector<double>& seconds = seconds_of(pass);
  const auto observe = [&](const NodeRun& node) {
    seconds[node.node] += node.seconds;
    made_.skipped += node.skipped;
    if (node.counted != nullptr) made_.counted += *node.counted;
    if (request_.on_node) request_.on_node(graph, node, node.call->symbols);
  };
  late_ = {&recording_.symbols, found_.counts, values};
  Output out = executor.run(values, inputs, cache_, arena_, observe, request_.messenger, &late_);
  made_.analytic_flops += work_[pass].flops.at(late_.values);
  made_.analytic_bytes += work_[pass].bytes.at(late_.values);
  return out;
}

Output SessionRun::run_own(std::size_t pass, const Executor& executor, const Pass& p) {
  const std::string prefix = model_.encoder_decoder ? "decoder." : "";
  const Inputs inputs{{prefix + "tokens", p.tokens},
                      {prefix + "positions", p.positions},
                      {"kept", p.kept},
                      {"encoder.tokens", encoder_ids_},
                      {"encoder.positions", encoder_positions_},
                      {"features", request_.features}};
  return run_graph(pass, executor, symbols(p.prompt_len, p.kv_len), inputs);
}

void SessionRun::run_helpers() {
  // Replicas may run different numbers of sequences one by one.
  const bool meets = !options_.place || index_ == request_.first_index;
  if (request_.messenger != nullptr && meets) meet(*request_.messenger);
  watch_ = Stopwatch();
  found_ = helpers_.run(request_.tokens, request_.stop_tokens, index_,
                        [this](std::size_t i, const Executor& executor, const SymbolValues& values,
                               const Inputs& inputs) {
                          ++made_.helper_steps[i];
                          return run_graph(i, executor, values, inputs);
                        });
  made_.importance = std::move(found_.importance);
  made_.kept = std::move(found_.kept);
  // Devices with sequences of their own have selected others.
  const bool have_same = !options_.place || options_.place->plan.dp == 1;
  if (request_.messenger != nullptr && have_same) check_same_kept(made_.kept, *request_.messenger);
  past_ = recording_.prompt_past.at(symbols(prompt_len_, length_));
  const bool reads_all_kept = !made_.kept.empty() && !options_.share;
  read_ = (reads_all_kept ? made_.kept[0].size() : part_end_ - part_begin_) - past_;
  const bool all_logits = options_.logits == Logits::All;
  rows_before_ = all_logits && found_.prompt_logits ? found_.prompt_logits->shape[1] : 0;
  rows_ = all_logits ? rows_before_ + read_ : has_logits_ ? 1 : 0;
  made_.logits_shape = {batch_, rows_, model_.vocab_size};
  if (rows_before_ > 0) copy_logits(*found_.prompt_logits, 0);
  found_.prompt_logits.reset();  // the logits of a whole prompt are large
  next_ = Next::Prefill;
}

void SessionRun::copy_logits(const Output& out, std::size_t first_row) {
  const std::size_t row = model_.vocab_size * floats_in(options_.dtype);
  if (!made_.logits_data) made_.logits_data = allocate_floats(batch_ * rows_ * row);
  const std::size_t n = out.shape[1];
  for (std::size_t i = 0; i < batch_ * n; ++i) {
    float* const to = &made_.logits_data[(i / n * rows_ + first_row + i % n) * row];
    copy_row(out, i, to, model_.vocab_size, options_.dtype);
  }
}

/// A prompt in one pass hands over its logits; those of chunks and of helper passes are joined.
void SessionRun::keep_logits(Output& out, std::size_t first_row) {
  if (rows_ == 0) return;  // hidden states
  const bool whole = part_end_ - part_begin_ <= chunk_ && rows_before_ == 0;
  if (!whole) {
    copy_logits(out, rows_before_ + first_row);
    return;
  }
  made_.logits_shape = out.shape;  // fewer rows where a pass drops tokens on its way
  made_.logits_data = std::move(out.data);
}

SessionRun::Pass SessionRun::chunk_of(std::size_t first, std::size_t tokens) const {
  Pass pass{pass_len(first), first + past_ + tokens, {}, {}, {}};
  if (made_.kept.empty()) {
    pass.tokens = flatten(request_.tokens, first + past_, tokens);
    const std::vector<float> places = positions(model_.decoder, first + past_, tokens);
    const std::size_t copies = recording_.given_positions ? batch_ : 1;
    for (std::size_t b = 0; b < copies; ++b) {
      pass.positions.insert(pass.positions.end(), places.begin(), places.end());
    }
    return pass;
  }
  for (std::size_t b = 0; b < batch_; ++b) {
    const auto own = std::span(made_.kept[b]).subspan(part_begin_);
    for (const std::uint64_t p : own.first(past_)) pass.kept.push_back(static_cast<float>(p));
    const auto read = own.subspan(past_, read_);
    for (const std::uint64_t p : read) {
      pass.tokens.push_back(static_cast<float>(request_.tokens[b][p]));
    }
    const std::vector<float> places = position_ids(model_.decoder, read);
    pass.positions.insert(pass.positions.end(), places.begin(), places.end());
  }
  return pass;
}

void SessionRun::run_chunk() {
  const std::size_t first = next_row_;
  const std::size_t n = std::min(chunk_, part_end_ - first) - past_;
  const bool last = first + past_ + n == part_end_;
  if (recording_.bound && recording_.bound->dropped) {
    found_.counts = {
        {*recording_.bound->dropped, last ? recording_.bound->too_many(part_end_) : 0}};
  }
  Output logits = run_own(recording_.helpers().size(), prefill_, chunk_of(first, n));
  if (last) hand_on(logits);
  if (rows_ > 1 || last) keep_logits(logits, rows_ > 1 ? first - part_begin_ : 0);
  next_row_ += chunk_;
  if (next_row_ >= part_end_) end_prefill();
}

/// Reads the first token from the last chunk's logits, on the rank that decodes.
void SessionRun::hand_on(const Output& logits) {
  if (has_logits_ && !decodes_) {
    send_last_logits(logits, options_, *request_.messenger);
  }
  if (!decodes_) return;
  Output received;
  if (!has_logits_) {
    received = receive_last_logits(batch_, model_.vocab_size, options_, *request_.messenger);
  }
  const Output& first_logits = has_logits_ ? logits : received;
  tokens_ = greedy(first_logits, options_.dtype);
  if (request_.on_logits) request_.on_logits(first_logits);
  if (!has_logits_ && rows_ == 0) {
    made_.logits_shape = received.shape;
    made_.logits_data = std::move(received.data);
  }
}

void SessionRun::end_prefill() {
  made_.set_logits(options_.dtype, made_.logits_shape, std::move(made_.logits_data));
  made_.ttft_s = watch_.seconds();
  next_ = Next::Nothing;
  if (!decodes_) return;
  first_revived_ = found_.counts.size();
  for (const RevivedTokens& r : recording_.revived) found_.counts.push_back({r.before, 0});
  watch_ = Stopwatch();
  accept();
}

void SessionRun::accept() {
  for (std::size_t b = 0; b < batch_; ++b) {
    if (stopped_[b]) continue;
    made_.tokens[b].push_back(tokens_[b]);
    const auto& stops = request_.stop_tokens;
    stopped_[b] = request_.continuation.empty() &&
                  std::find(stops.begin(), stops.end(), tokens_[b]) != stops.end();
  }
  if (request_.on_token) request_.on_token(tokens_);
  bool going = std::find(stopped_.begin(), stopped_.end(), false) != stopped_.end();
  // Devices that move tokens to each other's experts run as many passes.
  const bool together = options_.place && options_.place->plan.dp > 1 &&
                        options_.place->plan.ep > 1 && !request_.stop_tokens.empty();
  if (together) going = any_of_ranks(*request_.messenger, going);
  if (going && made_.decode_steps + 1 < request_.output_len) {
    next_ = Next::Decode;
  } else {
    end_decode();
  }
}

void SessionRun::run_decode_step() {
  const std::uint64_t step = made_.decode_steps + 1;
  std::vector<float> ids = request_.continuation.empty()
                               ? std::vector<float>(tokens_.begin(), tokens_.end())
                               : column(request_.continuation, step - 1);
  std::vector<float> places = positions(model_.decoder, length_ + step - 1, 1);
  if (recording_.given_positions) places.resize(batch_, places[0]);
  const Output logits =
      run_own(recording_.helpers().size() + 1, decode_,
              {prompt_len_, slots() + step, std::move(ids), std::move(places), {}});
  tokens_ = greedy(logits, options_.dtype);
  for (std::size_t i = 0; i < recording_.revived.size(); ++i) {
    if (i == 0) made_.revived.emplace_back();
    made_.revived.back().push_back(late_.values[recording_.revived[i].now.id]);
    found_.counts[first_revived_ + i].value += made_.revived.back().back();
  }
  if (request_.on_logits) request_.on_logits(logits);
  ++made_.decode_steps;
  accept();
}

void SessionRun::end_decode() {
  next_ = Next::Nothing;
  if (made_.decode_steps > 0) {
    made_.tpot_s = watch_.seconds() / static_cast<double>(made_.decode_steps);
  }
  for (const RevivedTokens& r : recording_.revived) found_.counts.push_back({r.now, 0});
  made_.kv_cache_bytes =
      recording_.kv_cache_bytes.at(symbols(prompt_len_, slots() + request_.output_len));
  made_.found = std::move(found_.counts);
}

Generation Session::run(const Request& request) const {
  KVCAST_ASSERT(!options_.steps);
  if (have_different_lengths(request.tokens)) {
    check_apart(request);
  } else {
    check(request);
  }
  const auto run_all = [this](const Request& r, std::size_t index) {
    SessionRun run(*this, r, index);
    while (run.step()) continue;
    return run.take();
  };
  if (!runs_one_by_one(*this, request)) return run_all(request, request.first_index);
  Generation all;
  for (std::size_t b = 0; b < request.tokens.size(); ++b) {
    Generation g = run_all(only_sequence(request, b), request.first_index + b);
    if (b == 0) {
      all = std::move(g);
    } else {
      append(all, g, request.tokens.size());
    }
  }
  return all;
}

}  // namespace kvcast::execute
