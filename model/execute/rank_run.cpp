#include "model/execute/rank_run.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <type_traits>

#include "model/graph/work.h"
#include "model/record/rank_recording.h"

namespace kvcast::execute {
namespace {

/// What the generation says of the rank.
void complete(RankReport& report, const Session& session, const Generation& g) {
  const auto nodes = session.recording().prefill().nodes();
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!is_message(nodes[n].op)) report.compute_s += g.profile.prefill_s[n];
  }
  for (const std::vector<double>& helper : g.profile.helpers_s) {
    report.compute_s += std::accumulate(helper.begin(), helper.end(), 0.0);
  }
  report.wait_s = std::max(0.0, g.ttft_s - report.compute_s);
  report.analytic_flops = g.analytic_flops;
  report.analytic_bytes = g.analytic_bytes;
  report.counted = g.counted;
}

/// Numbers of one rank's logits, as bytes.
std::size_t logit_bytes(const Generation& g) {
  return g.logits.size_bytes() + g.logits64.size_bytes();
}

/// Puts the logits of all positions together on the rank that decodes.
void gather_logits(Generation& g, DType dtype, const RankShare& share, Messenger& m) {
  if (!share.decodes()) {
    return send_bytes(m, share.decoder(), g.logits_data.get(), logit_bytes(g));
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
      receive_bytes(m, from.rank, received.get(), batch * part * sizeof(float));
    }
    const float* rows = is_own ? g.logits_data.get() : received.get();
    for (std::size_t b = 0; b < batch; ++b) {
      std::copy_n(rows + b * part, part, &all[(b * length + from.first()) * row]);
    }
  }
  g.set_logits(dtype, {batch, length, vocab}, std::move(all));
}

/// The rank that decodes tells the others that it goes on, token by token, so that each waits for
/// the next sign no longer than its limit.
void give_sign(Messenger& m, bool ends) {
  for (std::size_t r = 0; r < m.ranks(); ++r) {
    if (r != m.rank()) send_bytes(m, r, &ends, sizeof ends);
  }
}

void wait_for_end(const RankShare& share, Messenger& m) {
  for (bool ends = false; !ends;) receive_bytes(m, share.decoder(), &ends, sizeof ends);
}

}  // namespace

RankRun run_rank(const Session& session, Request request, Messenger& messenger) {
  const SessionOptions& options = session.options();
  KVCAST_ASSERT(options.share && options.share->ranks() == messenger.ranks() &&
                options.share->rank == messenger.rank());
  const RankShare& share = *options.share;
  RankReport report;
  report.tokens = share.tokens();
  const auto inner = request.on_node;
  request.on_node = [&](const Graph& graph, const NodeRun& node,
                        std::span<const std::uint64_t> symbols) {
    if (std::holds_alternative<Send>(graph.nodes()[node.node].op)) {
      const Operand& message = node.call->output;
      ++report.messages;
      report.message_bytes +=
          message.shape.elements() * floats_in(message.info->dtype) * sizeof(float);
    }
    messenger.progress();
    if (inner) inner(graph, node, symbols);
  };
  const auto inner_token = request.on_token;
  request.on_token = [&](std::span<const TokenId> next) {
    give_sign(messenger, false);
    if (inner_token) inner_token(next);
  };
  request.messenger = &messenger;

  RankRun run{session.run(request), {}};
  Generation& g = run.generation;
  complete(report, session, g);
  static_assert(std::is_trivially_copyable_v<RankReport>);
  if (!share.decodes()) {
    wait_for_end(share, messenger);
    send_bytes(messenger, share.decoder(), &report, sizeof report);
  } else {
    give_sign(messenger, true);
    run.ranks.resize(share.ranks());
    for (std::size_t r = 0; r < share.ranks(); ++r) {
      if (r == share.rank) continue;
      RankReport& other = run.ranks[r];
      receive_bytes(messenger, r, &other, sizeof other);
      g.analytic_flops += other.analytic_flops;
      g.analytic_bytes += other.analytic_bytes;
      g.counted += other.counted;
    }
    run.ranks[share.rank] = report;
  }
  if (options.logits == Logits::All) gather_logits(g, options.dtype, share, messenger);
  return run;
}

RankRun run_ranks(const Checkpoint& checkpoint, const SessionOptions& options,
                  const std::vector<std::uint64_t>& partition,
                  const std::function<Request(std::size_t rank)>& request_of, double limit_s) {
  Mailboxes mailboxes(partition.size(), limit_s);
  const std::optional<Placement> placement = find_placement(options.methods);
  RankRun of_decoder;
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < partition.size(); ++rank) {
    threads.emplace_back([&, rank, request = request_of(rank)] {
      try {
        SessionOptions o = options;
        o.share = RankShare{partition, rank, placement && placement->first_decodes};
        const auto messenger = mailboxes.messenger(rank);
        RankRun run = run_rank(Session(checkpoint, o), request, *messenger);
        if (o.share->decodes()) of_decoder = std::move(run);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        mailboxes.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  return of_decoder;
}

}  // namespace kvcast::execute
