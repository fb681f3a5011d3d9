/// What of `data/published/` no table holds against a number of ours, and why.
#pragma once

#include <string_view>
#include <vector>

namespace kvcast::reports {

/// A file, some of its numbers or one of its claims.
struct PublishedGap {
  std::string_view file;
  std::string_view claim;  ///< `claim_id` of a row; empty: columns or rows that `reason` names
  std::string_view reason;
  bool elsewhere = false;  ///< compared all the same, from another file
};

/// In order of files. Claims of the kind "setting" are inputs of the papers' experiments and of our
/// tables, and are not listed.
const std::vector<PublishedGap>& published_gaps();

/// Why no table compares a claim; empty if one does or nothing is known.
std::string_view claim_left_out(std::string_view claim);

}  // namespace kvcast::reports
