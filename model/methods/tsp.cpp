#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// Every rank gets the rows of all tokens by a ring: at each of ranks - 1 steps it sends the part
/// that it got last (first its own) to the next rank.
CacheExchange exchange(const RankShare& share) {
  std::vector<std::uint64_t> first;  // row of each rank's part
  std::uint64_t all_rows = 0;
  for (const std::uint64_t tokens : share.partition) {
    first.push_back(all_rows);
    all_rows += tokens;
  }
  CacheExchange e;
  e.open = [](Recorder& r, const std::string& name, const std::vector<Count>& shape, DType dtype) {
    return r.state(name, shape, dtype);  // with room for the rows before the rank's own
  };
  e.share = [=](Recorder& r, std::span<SharedCache> caches) {
    const std::size_t ranks = share.ranks();
    const std::size_t next = (share.rank + 1) % ranks;
    const std::size_t previous = (share.rank + ranks - 1) % ranks;
    std::size_t block = share.rank;  // that is sent on
    Count rows = symbol::prompt_len;
    Count row = r.info(caches.front().state).shape[1] - rows;
    for (std::size_t step = 1; step < ranks; ++step) {
      for (const SharedCache& c : caches) {
        r.send(c.state, next, row, rows, "send_" + std::string(cache_part(c.label)));
      }
      block = (block + ranks - 1) % ranks;
      row = first[block];
      rows = share.partition[block];
      for (SharedCache& c : caches) {
        const std::string label = "receive_" + std::string(cache_part(c.label));
        c.state = r.receive(c.state, previous, row, rows, all_rows, label);
      }
    }
  };
  e.later = all_rows - share.end();
  return e;
}

}  // namespace

/// Tensor and sequence parallel inference with the sequence split evenly: every rank gathers the
/// keys and values of all tokens, layer by layer, before its attention.
/// Source: the baseline of Cho, Rastegari and Naik 2024 (arXiv:2405.05329), section 3.1, figure 4;
/// after Korthikanti et al. 2022 (arXiv:2205.05198).
Method tsp() {
  return {
      "tsp",
      MethodKind::Placement,
      "p=P: P ranks with equal parts; every layer all-gathers keys and values (tensor and "
      "sequence parallel)",
      {"p"},
      [](const MethodSpec& spec, Plan& plan) {
        plan.placement = parse_placement(spec);
        plan.placement->exchange = exchange;
        plan.placement->first_decodes = true;
      },
      "tsp:p=2",
      {needs_no_states("which are made token after token, where the ranks read their parts of "
                       "the prompt at the same time; expected kvr, whose ranks pass states on")}};
}

}  // namespace kvcast
