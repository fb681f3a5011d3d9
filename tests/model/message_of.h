/// What an action that must fail says.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"

namespace kvcast {

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "(no Error was thrown)";
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// One line that has all these parts.
inline void check_line(const std::string& line, const std::vector<std::string_view>& parts) {
  CAPTURE(line);
  CHECK_FALSE(has(line, "\n"));
  for (const std::string_view part : parts) {
    CAPTURE(part);
    CHECK(has(line, part));
  }
}

}  // namespace kvcast
