/// What the ranks of a group do together: an operator that each of them records.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcast {

/// Ranks first, first + stride, first + 2·stride, ... of a run.
struct RankGroup {
  std::uint64_t size = 1;
  std::uint64_t stride = 1;
  std::uint64_t first = 0;

  std::uint64_t member(std::uint64_t i) const { return first + i * stride; }
  auto operator<=>(const RankGroup&) const = default;
};

enum class CollectiveKind {
  AllReduce,      ///< the sum of all members' tensors, for each member
  ReduceScatter,  ///< a member's part of that sum
  AllGather,      ///< the parts of all members side by side, for each member
  AllToAll,       ///< a part of each member's tensor for each member
};
/// "all_reduce", "reduce_scatter", "all_gather", "all_to_all"
std::string_view name(CollectiveKind kind);

/// A member's part of `all` equal things in an AllReduce.
struct MemberPart {
  std::uint64_t first = 0;
  std::uint64_t size = 0;
};
constexpr MemberPart member_part(std::uint64_t all, std::uint64_t members, std::uint64_t member) {
  const std::uint64_t first = all * member / members;
  return {first, all * (member + 1) / members - first};
}

}  // namespace kvcast
