#include "model/execute/rank_run.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <type_traits>

#include "model/execute/batch_order.h"
#include "model/graph/work.h"
#include "model/record/rank_recording.h"

namespace kvcast::execute {
namespace {

/// What the generation says of the rank.
void complete(RankReport& report, const Session& session, const Generation& g) {
  const auto nodes = session.recording().prefill().nodes();
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const bool waits = is_message(nodes[n].op) || group_of(nodes[n].op) != nullptr;
    if (!waits) report.compute_s += g.profile.prefill_s[n];
  }
  for (const std::vector<double>& helper : g.profile.helpers_s) {
    report.compute_s += std::accumulate(helper.begin(), helper.end(), 0.0);
  }
  report.wait_s = std::max(0.0, g.ttft_s - report.compute_s);
  report.ttft_s = g.ttft_s;
  report.tpot_s = g.tpot_s;
  report.weight_bytes = session.weight_bytes();
  report.kv_cache_bytes = g.kv_cache_bytes;
  report.analytic_flops = g.analytic_flops;
  report.analytic_bytes = g.analytic_bytes;
  report.counted = g.counted;
}

/// Numbers of one rank's logits, as bytes.
std::size_t logit_bytes(const Generation& g) {
  return g.logits.size_bytes() + g.logits64.size_bytes();
}

/// Puts the logits of all positions together on the rank that decodes.
void gather_logits(Generation& g, const SessionOptions& o, Messenger& m) {
  const RankShare& share = *o.share;
  const DType dtype = o.dtype;
  if (o.place && o.place->device > 0) return;  // which has them too
  if (!share.decodes()) {
    return send_bytes(m, o.process_of(share.decoder()), g.logits_data.get(), logit_bytes(g));
  }
  const std::size_t batch = g.logits_shape[0];
  const std::size_t vocab = g.logits_shape[2];
  const std::size_t row = vocab * floats_in(dtype);  // floats
  const std::size_t length = share.prompt_len();
  Floats all = allocate_floats(batch * length * row);
  for (RankShare from{share.partition, 0}; from.rank < share.ranks(); ++from.rank) {
    const std::size_t part = from.tokens() * row;
    Floats received;
    const bool is_own = from.rank == share.rank;
    if (!is_own) {
      received = allocate_floats(batch * part);
      receive_bytes(m, o.process_of(from.rank), received.get(), batch * part * sizeof(float));
    }
    const float* rows = is_own ? g.logits_data.get() : received.get();
    for (std::size_t b = 0; b < batch; ++b) {
      std::copy_n(rows + b * part, part, &all[(b * length + from.first()) * row]);
    }
  }
  g.set_logits(dtype, {batch, length, vocab}, std::move(all));
}

/// The first device of the rank that decodes tells the other ranks that it goes on, token by token,
/// so that each waits for the next sign no longer than its limit. `devices`: of each rank.
void give_sign(Messenger& m, std::size_t devices, bool ends) {
  for (std::size_t r = 0; r < m.ranks(); ++r) {
    if (r / devices != m.rank() / devices) send_bytes(m, r, &ends, sizeof ends);
  }
}

void wait_for_end(Messenger& m, std::size_t teller) {
  for (bool ends = false; !ends;) receive_bytes(m, teller, &ends, sizeof ends);
}

/// Counts what the rank's operators send, and lets messages move between them.
void watch_messages(Request& request, RankReport& report, Messenger& messenger) {
  request.messenger = &messenger;
  request.on_node = [&report, &messenger, inner = request.on_node](
                        const Graph& graph, const NodeRun& node,
                        std::span<const std::uint64_t> symbols) {
    report.messages += node.exchanged.messages;
    report.message_bytes += node.exchanged.sent_bytes;
    messenger.progress();
    if (inner) inner(graph, node, symbols);
  };
}

static_assert(std::is_trivially_copyable_v<RankReport>);

/// On the rank that has the results: the reports of all, whose work it adds to its own.
std::vector<RankReport> gather_reports(const RankReport& own, Generation& g, Messenger& m) {
  std::vector<RankReport> ranks(m.ranks());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == m.rank()) {
      ranks[r] = own;
      continue;
    }
    receive_bytes(m, r, &ranks[r], sizeof ranks[r]);
    g.analytic_flops += ranks[r].analytic_flops;
    g.analytic_bytes += ranks[r].analytic_bytes;
    g.counted += ranks[r].counted;
  }
  return ranks;
}

RankRun run_share(const Session& session, Request request, Messenger& messenger) {
  const SessionOptions& options = session.options();
  const RankShare& share = *options.share;
  const std::size_t devices = options.place ? options.place->plan.devices() : 1;
  KVCAST_ASSERT(share.ranks() * devices == messenger.ranks() &&
                options.process_of(share.rank) == messenger.rank());
  const std::size_t teller = share.decoder() * devices;
  const bool tells = messenger.rank() == teller;
  RankReport report;
  report.tokens = share.tokens();
  watch_messages(request, report, messenger);
  const auto inner_token = request.on_token;
  request.on_token = [&](std::span<const TokenId> next) {
    if (tells) give_sign(messenger, devices, false);
    if (inner_token) inner_token(next);
  };

  RankRun run{session.run(request), {}};
  Generation& g = run.generation;
  complete(report, session, g);
  if (!share.decodes()) wait_for_end(messenger, teller);
  if (tells) {
    give_sign(messenger, devices, true);
    run.ranks = gather_reports(report, g, messenger);
  } else {
    send_bytes(messenger, teller, &report, sizeof report);
  }
  if (options.logits == Logits::All) gather_logits(g, options, messenger);
  return run;
}

/// The sequences of the whole batch that a device runs, those that others run too left out.
struct OwnSequences {
  OwnSequences(std::size_t batch, const DevicePlace& place)
      : run((batch + place.plan.dp - 1) / place.plan.dp),
        first(place.device % place.plan.of_stage() / place.plan.tp * run),
        own(first < batch ? std::min(run, batch - first) : 0) {}
  std::size_t run;
  std::size_t first;
  std::size_t own;
};

template <typename T>
void send_list(Messenger& m, std::size_t to, std::span<const T> numbers) {
  const std::uint64_t n = numbers.size();
  send_bytes(m, to, &n, sizeof n);
  if (n > 0) send_bytes(m, to, numbers.data(), numbers.size_bytes());
}

template <typename T>
std::vector<T> receive_list(Messenger& m, std::size_t from) {
  std::uint64_t n = 0;
  receive_bytes(m, from, &n, sizeof n);
  std::vector<T> numbers(n);
  if (n > 0) receive_bytes(m, from, numbers.data(), n * sizeof(T));
  return numbers;
}

/// What each replica has made of its own sequences, put together on rank 0 in their order.
void gather_sequences(Generation& g, DType dtype, const DevicePlace& place, std::size_t batch,
                      Messenger& m) {
  const Parallelism& plan = place.plan;
  if (plan.dp == 1 || place.device % plan.tp != 0) return;
  const std::size_t row = g.logits_shape.sequence_elements() * floats_in(dtype);
  const OwnSequences own(batch, place);
  if (place.device > 0) {
    for (std::size_t b = 0; b < own.own; ++b) {
      send_list<TokenId>(m, 0, g.tokens[b]);
      send_list<float>(m, 0, {&g.logits_data[b * row], row});
      if (!g.kept.empty()) send_list<std::uint64_t>(m, 0, g.kept[b]);
      if (!g.importance.empty()) send_list<double>(m, 0, g.importance[b]);
    }
    return;
  }
  Floats all = allocate_floats(batch * row);
  std::copy_n(g.logits_data.get(), own.own * row, all.get());
  for (std::size_t replica = 1; replica < plan.dp; ++replica) {
    const std::size_t from = replica * plan.tp;
    const OwnSequences theirs(batch, {plan, from});
    for (std::size_t b = theirs.first; b < theirs.first + theirs.own; ++b) {
      g.tokens.push_back(receive_list<TokenId>(m, from));
      const std::vector<float> logits = receive_list<float>(m, from);
      KVCAST_ASSERT(logits.size() == row);
      std::copy_n(logits.data(), row, &all[b * row]);
      if (!g.kept.empty()) g.kept.push_back(receive_list<std::uint64_t>(m, from));
      if (!g.importance.empty()) g.importance.push_back(receive_list<double>(m, from));
    }
  }
  const Shape& shape = g.logits_shape;
  g.set_logits(dtype, {batch, shape[1], shape[2]}, std::move(all));
}

RankRun run_place(const Session& session, const Request& all, Messenger& messenger) {
  const SessionOptions& options = session.options();
  const DevicePlace& place = *options.place;
  KVCAST_ASSERT(place.plan.devices() == messenger.ranks() && place.device == messenger.rank());
  if (place.plan.dp > 1 && place.plan.ep > 1 && have_different_lengths(all.tokens)) {
    throw Error("replicas that share experts", "prompts of different lengths",
                "prompts of one length");
  }
  RankReport report;
  Request request = own_sequences(all, place);
  for (const auto& sequence : request.tokens) report.tokens += sequence.size();
  watch_messages(request, report, messenger);
  RankRun run{session.run(request), {}};
  Generation& g = run.generation;
  complete(report, session, g);
  if (place.device > 0) {
    send_bytes(messenger, 0, &report, sizeof report);
  } else {
    run.ranks = gather_reports(report, g, messenger);
    for (const RankReport& r : run.ranks) {
      g.ttft_s = std::max(g.ttft_s, r.ttft_s);
      g.tpot_s = std::max(g.tpot_s, r.tpot_s);
    }
  }
  gather_sequences(g, options.dtype, place, all.tokens.size(), messenger);
  return run;
}

/// Runs the ranks' sessions as threads; what `teller` has.
RankRun run_threads(const Checkpoint& checkpoint, std::size_t ranks, std::size_t teller,
                    const std::function<SessionOptions(std::size_t rank)>& options_of,
                    const std::function<Request(std::size_t rank)>& request_of, double limit_s) {
  Mailboxes mailboxes(ranks, limit_s);
  RankRun told;
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, request = request_of(rank)] {
      try {
        const auto messenger = mailboxes.messenger(rank);
        RankRun run = run_rank(Session(checkpoint, options_of(rank)), request, *messenger);
        if (rank == teller) told = std::move(run);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        mailboxes.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  return told;
}

}  // namespace

Request own_sequences(const Request& request, const DevicePlace& place) {
  const std::size_t batch = request.tokens.size();
  const OwnSequences sequences(batch, place);
  if (!request.encoder_tokens.empty()) check_encoder_sequences(request);
  Request own = request;
  own.tokens.clear();
  own.continuation.clear();
  own.encoder_tokens.clear();
  own.features.clear();
  own.first_index = request.first_index + sequences.first;
  const auto frames = static_cast<std::ptrdiff_t>(request.features.size() / batch);
  for (std::size_t i = 0; i < sequences.run; ++i) {
    const std::size_t b = std::min(sequences.first + i, batch - 1);
    own.tokens.push_back(request.tokens[b]);
    if (!request.continuation.empty()) own.continuation.push_back(request.continuation[b]);
    if (!request.encoder_tokens.empty()) own.encoder_tokens.push_back(request.encoder_tokens[b]);
    const auto first_frame = request.features.begin() + static_cast<std::ptrdiff_t>(b) * frames;
    own.features.insert(own.features.end(), first_frame, first_frame + frames);
  }
  return own;
}

RankRun run_rank(const Session& session, Request request, Messenger& messenger) {
  KVCAST_ASSERT(session.options().share || session.options().place);
  if (session.options().share) return run_share(session, std::move(request), messenger);
  return run_place(session, request, messenger);
}

RankRun run_ranks(const Checkpoint& checkpoint, const SessionOptions& options,
                  const std::vector<std::uint64_t>& partition,
                  const std::function<Request(std::size_t rank)>& request_of, double limit_s,
                  const Parallelism& plan) {
  const std::optional<Placement> placement = find_placement(options.methods);
  const bool first_decodes = placement && placement->first_decodes;
  const std::size_t devices = plan.devices();
  const auto options_of = [&](std::size_t process) {
    SessionOptions o = options;
    o.share = RankShare{partition, process / devices, first_decodes};
    if (!plan.is_one()) o.place = DevicePlace{plan, process % devices};
    return o;
  };
  const RankShare first{partition, 0, first_decodes};
  return run_threads(checkpoint, partition.size() * devices, first.decoder() * devices, options_of,
                     request_of, limit_s);
}

RankRun run_devices(const Checkpoint& checkpoint, const SessionOptions& options,
                    const Parallelism& plan,
                    const std::function<Request(std::size_t rank)>& request_of, double limit_s) {
  const auto options_of = [&](std::size_t rank) {
    SessionOptions o = options;
    o.place = DevicePlace{plan, rank};
    return o;
  };
  return run_threads(checkpoint, plan.devices(), 0, options_of, request_of, limit_s);
}

}  // namespace kvcast::execute
