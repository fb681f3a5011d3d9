/// Chooses among measured rows: "prompt_len<=1024,method=plain", "every=2".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "measure/validation.h"

namespace kvcast::measure {

/// Conditions that all must hold. KEY is id, model, hardware, method, attention, weight_dtype,
/// metric (=, !=) or batch, prompt_len, output_len (also <, <=, >, >=); every=N takes the first of
/// each N cases.
class RowFilter {
 public:
  /// Throws Error starting with `place`.
  RowFilter(std::string_view text, std::string_view place);

  /// True for the `index`-th case.
  bool takes(const ValidationCase& c, std::size_t index) const;

 private:
  struct Condition {
    std::string key;
    std::string comparison;
    std::string word;
    std::uint64_t number = 0;
  };
  std::vector<Condition> conditions_;
};

}  // namespace kvcast::measure
