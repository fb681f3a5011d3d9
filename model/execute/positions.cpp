#include "model/execute/positions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "model/base/error.h"

namespace kvcast::execute {
namespace {

/// The nearest bf16 number, ties to even.
float round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return std::bit_cast<float>(rounded & 0xFFFF0000);
}

}  // namespace

const float masked_score = std::numeric_limits<float>::lowest();

bool reaches(std::uint64_t window, std::uint64_t chunk, std::size_t query, std::size_t token) {
  return (window == 0 || query - token < window) && (chunk == 0 || token / chunk == query / chunk);
}

KeyRange visible_range(const Mask& mask, std::size_t position, std::size_t keys) {
  if (!mask.causal) return {0, keys};
  const std::size_t end = std::min(keys, position + 1);
  std::size_t first =
      mask.window > 0 && position + 1 > mask.window ? position + 1 - mask.window : 0;
  if (mask.chunk > 0) first = std::max(first, position / mask.chunk * mask.chunk);
  return {first, end};
}

double rope_position(const RopeTable& table, std::size_t position) {
  return static_cast<double>(position) / table.position_scale;
}

template <typename N>
RopeAngleTable<N>::RopeAngleTable(const RopeTable& table, std::size_t positions, bool inverse)
    : positions_(positions), frequencies_(table.inverse_frequencies.size()) {
  cosines_.reserve(positions * frequencies_);
  sines_.reserve(positions * frequencies_);
  const auto gain = static_cast<N>(inverse ? 1 / table.gain : table.gain);
  const N direction = inverse ? -gain : gain;
  for (std::size_t position = 0; position < positions; ++position) {
    const auto turns = static_cast<N>(rope_position(table, position));
    for (const double frequency : table.inverse_frequencies) {
      const N angle = turns * static_cast<N>(frequency);
      cosines_.push_back(gain * std::cos(angle));
      sines_.push_back(direction * std::sin(angle));
    }
  }
}

template class RopeAngleTable<float>;
template class RopeAngleTable<double>;

template <typename N>
const RopeAngleTable<N>& rope_angles(const std::shared_ptr<const RopeTable>& table,
                                     std::size_t positions, bool inverse) {
  // By direction. Tables that have become too short stay: somebody may be reading them.
  using Known = std::array<std::vector<std::unique_ptr<RopeAngleTable<N>>>, 2>;
  static std::mutex mutex;
  static std::map<std::weak_ptr<const RopeTable>, Known, std::owner_less<>> tables;
  const std::lock_guard lock(mutex);
  if (!tables.contains(table)) {  // a new model: what only forgotten ones used goes
    std::erase_if(tables, [](const auto& entry) { return entry.first.expired(); });
  }
  auto& known = tables[table][inverse ? 1 : 0];
  if (known.empty() || known.back()->positions() < positions) {
    known.push_back(std::make_unique<RopeAngleTable<N>>(*table, std::bit_ceil(positions), inverse));
  }
  return *known.back();
}

template const RopeAngleTable<float>& rope_angles(const std::shared_ptr<const RopeTable>&,
                                                  std::size_t, bool);
template const RopeAngleTable<double>& rope_angles(const std::shared_ptr<const RopeTable>&,
                                                   std::size_t, bool);

std::shared_ptr<const RopeTable> table_of_pass(const std::shared_ptr<const RopeTable>& table,
                                               std::size_t end) {
  if (table->max_positions == 0 || end <= table->max_positions) return table;
  KVCAST_ASSERT(table->is_unbounded());
  // All layers of a pass ask for the same.
  struct Latest {
    std::size_t end = 0;
    std::shared_ptr<const RopeTable> table;
  };
  static std::mutex mutex;
  static std::map<std::weak_ptr<const RopeTable>, Latest, std::owner_less<>> latest;
  const std::lock_guard lock(mutex);
  std::erase_if(latest, [](const auto& entry) { return entry.first.expired(); });
  Latest& found = latest[table];
  const bool grows = table->length_factor > 0;
  if (found.table && (!grows || found.end == end)) return found.table;
  auto longer = std::make_shared<RopeTable>(*table);
  if (grows) {
    const auto dims = static_cast<double>(2 * table->inverse_frequencies.size());
    const double stretch = table->length_factor * static_cast<double>(end) /
                               static_cast<double>(table->max_positions) -
                           (table->length_factor - 1);
    const double base = table->base * std::pow(stretch, dims / (dims - 2));
    for (std::size_t j = 0; j < longer->inverse_frequencies.size(); ++j) {
      longer->inverse_frequencies[j] = std::pow(base, -2 * static_cast<double>(j) / dims);
    }
  } else {
    longer->inverse_frequencies = table->long_frequencies;
  }
  longer->max_positions = 0;
  found = {end, std::move(longer)};
  return found.table;
}

std::size_t relative_bucket(const RelativePositionBias& op, std::size_t query, std::size_t key) {
  std::size_t buckets = op.num_buckets;
  std::size_t offset = 0;
  std::size_t distance = key > query ? key - query : query - key;
  if (op.bidirectional) {
    buckets /= 2;
    if (key > query) offset = buckets;
  } else if (key > query) {
    distance = 0;
  }
  const std::size_t exact = buckets / 2;
  if (distance < exact) return offset + distance;
  const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(op.max_distance) /
                                                  static_cast<double>(exact)));
  const auto steps = static_cast<std::size_t>(ratio * static_cast<float>(buckets - exact));
  return offset + std::min(exact + steps, buckets - 1);
}

float alibi_slope(std::size_t head, std::size_t num_heads) {
  const std::size_t power = std::bit_floor(num_heads);
  const auto log2 = static_cast<double>(std::bit_width(power) - 1);
  const bool extra = head >= power;
  const double base = std::exp2(-std::exp2(-(log2 - (extra ? 2 : 3))));
  const double exponent =
      extra ? 2 * static_cast<double>(head - power) + 1 : static_cast<double>(head) + 1;
  return round_to_bf16(static_cast<float>(std::pow(base, exponent)));
}

float alibi_bias(float slope, std::size_t key) {
  return round_to_bf16(slope * round_to_bf16(static_cast<float>(key)));
}

void note_skipped(const Call& call, const SparseValues& op, const std::vector<bool>& kept,
                  const std::vector<bool>& wanted) {
  if (call.skipped == nullptr) return;
  const auto dropped = [](const std::vector<bool>& flags) {
    return static_cast<std::uint64_t>(std::count(flags.begin(), flags.end(), false));
  };
  const std::uint64_t half = op.unrotate ? op.unrotate->inverse_frequencies.size() : 0;
  const Operand& rows = call.inputs[1];
  Skipped s;
  s.pairs = dropped(kept);
  s.all_pairs = kept.size();
  s.flops = 2 * op.heads.head_dim * s.pairs + 6 * op.rope_heads * half * dropped(wanted);
  s.bytes = bytes_of(rows.shape[2], rows.info->dtype).constant() * dropped(wanted);
  *call.skipped += s;
}

template <typename N>
std::vector<std::size_t> kept_tokens(std::span<const N> sums, std::size_t kept) {
  KVCAST_ASSERT(kept > 0 && kept <= sums.size());
  const std::size_t last = sums.size() - 1;
  // No number is no reason to be kept, and nothing to sort by.
  std::vector<N> scores(sums.begin(), sums.end() - 1);
  std::replace_if(
      scores.begin(), scores.end(), [](N x) { return std::isnan(x); },
      std::numeric_limits<N>::lowest());
  const auto is_before = [&](std::size_t a, std::size_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  };
  std::vector<std::size_t> order(last);
  std::iota(order.begin(), order.end(), 0);
  const auto first_left = order.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(order.begin(), first_left, order.end(), is_before);
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < last; ++i) {
    if (first_left == order.end() || is_before(i, *first_left)) indices.push_back(i);
  }
  indices.push_back(last);
  return indices;
}

template std::vector<std::size_t> kept_tokens(std::span<const float>, std::size_t);
template std::vector<std::size_t> kept_tokens(std::span<const double>, std::size_t);

namespace {

/// The n items of the best scores, the best first; of equal ones the earlier.
std::vector<std::size_t> best(std::vector<std::size_t> items, std::size_t n, const auto& score_of) {
  std::stable_sort(items.begin(), items.end(),
                   [&](std::size_t a, std::size_t b) { return score_of(a) > score_of(b); });
  items.resize(n);
  return items;
}

std::vector<std::size_t> all(std::size_t first, std::size_t n) {
  std::vector<std::size_t> items(n);
  std::iota(items.begin(), items.end(), first);
  return items;
}

}  // namespace

template <typename N>
std::vector<std::size_t> kept_keys(std::span<const N> scores, std::size_t kept) {
  auto keys = best(all(0, scores.size()), std::min(kept, scores.size()),
                   [&](std::size_t key) { return scores[key]; });
  std::sort(keys.begin(), keys.end());
  return keys;
}
template std::vector<std::size_t> kept_keys(std::span<const float>, std::size_t);
template std::vector<std::size_t> kept_keys(std::span<const double>, std::size_t);

template <typename N>
std::vector<std::size_t> chosen_experts(std::span<const N> scores, const Routing& routing) {
  const auto score = [&](std::size_t expert) { return scores[expert]; };
  if (routing.groups == 1) {
    return best(all(0, scores.size()), routing.num_experts_per_tok, score);
  }
  const std::size_t size = scores.size() / routing.groups;
  const auto of_group = [&](std::size_t group) {
    const bool two = routing.group_score == Routing::GroupScore::TwoLargest;
    const auto first = best(all(group * size, size), two ? 2 : 1, score);
    return two ? scores[first[0]] + scores[first[1]] : scores[first[0]];
  };
  auto groups = best(all(0, routing.groups), routing.groups_kept, of_group);
  std::sort(groups.begin(), groups.end());
  std::vector<std::size_t> experts;
  for (const std::size_t group : groups) {
    const auto members = all(group * size, size);
    experts.insert(experts.end(), members.begin(), members.end());
  }
  return best(std::move(experts), routing.num_experts_per_tok, score);
}
template std::vector<std::size_t> chosen_experts(std::span<const float>, const Routing&);
template std::vector<std::size_t> chosen_experts(std::span<const double>, const Routing&);

double position_factor(const ScaleByPosition& op, std::size_t position) {
  const double stretches = std::floor((static_cast<double>(position) + op.offset) / op.floor_scale);
  return 1 + op.scale * std::log1p(stretches);
}

std::size_t bias_index(const Shape& bias, std::size_t head, std::size_t query, std::size_t key) {
  const std::size_t h = bias[0] > 1 ? head : 0;
  const std::size_t i = bias[1] > 1 ? query : 0;
  return (h * bias[1] + i) * bias[2] + key;
}

}  // namespace kvcast::execute
