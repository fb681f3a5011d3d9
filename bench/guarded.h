/// Where the mains of the benchmarks catch.
#pragma once

#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>

#include "model/base/error.h"

namespace kvcast {

/// The exit status of `work`: 0; 2 for a wrong request and 1 for any other failure, which are told
/// in one line with the program's name, `argv0`.
inline int run_guarded(const char* argv0, const std::function<void()>& work) {
  const auto say = [argv0](const std::exception& e) {
    const std::string program = std::filesystem::path(argv0).filename().string();
    std::fprintf(stderr, "%s: %s\n", program.c_str(), e.what());
  };
  try {
    work();
    return 0;
  } catch (const Error& e) {
    say(e);
    return e.fault() == Fault::Request ? 2 : 1;
  } catch (const std::exception& e) {
    say(e);
    return 1;
  }
}

}  // namespace kvcast
