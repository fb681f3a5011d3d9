/// What an action that must fail says.
#pragma once

#include <functional>
#include <string>

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

}  // namespace kvcast
