#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {

/// Rank i waits for the rows of all tokens before its own, puts its own after them and sends all
/// of them on at once, before the attention. Where a layer has a window or chunk, only those rows
/// move that later tokens see. A state space's state moves the same way: a rank waits for what the
/// tokens before its own have left, and sends on what its scan and convolution leave.
CacheExchange chain_exchange(const RankShare& share) {
  CacheExchange e;
  e.open = [=](Recorder& r, const std::string& name, const std::vector<Count>& shape, DType dtype) {
    const Count before = shape[1];
    const Value empty = r.state(name, {shape[0], 0, shape[2]}, dtype);
    if (share.rank == 0) return empty;
    return r.receive(empty, share.rank - 1, 0, before, before,
                     "receive_" + std::string(cache_part(name)));
  };
  e.share = [=](Recorder& r, std::span<SharedCache> caches) {
    if (share.is_last()) return;
    for (const SharedCache& c : caches) {
      const Count first = r.info(c.state).shape[1] - c.seen;
      r.send(c.state, share.rank + 1, first, c.seen, "send_" + std::string(cache_part(c.label)));
    }
  };
  e.bounds_caches = true;
  return e;
}

/// KV-Runahead: a chain of ranks, each with the keys and values of the tokens before its own.
/// Source: Cho, Rastegari and Naik 2024 (arXiv:2405.05329), section 4.1 and table 5 (appendix B).
Method kvr() {
  return {"kvr",
          MethodKind::Placement,
          "p=P[,partition=even|search|A/B/...]: P ranks in a chain; each sends its KV cache "
          "to the next (KV-Runahead)",
          {"p", "partition"},
          [](const MethodSpec& spec, Plan& plan) {
            plan.placement = parse_placement(spec);
            plan.placement->exchange = chain_exchange;
          },
          "kvr:p=2"};
}

}  // namespace kvcast
