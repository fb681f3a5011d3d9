/// What a peer, which is a program of its own, prints.
#pragma once

#include <cstdio>
#include <string>

#include "model/base/error.h"

namespace kvcast {

/// The standard output of a shell command. Throws Error when it fails.
inline std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error(command + ": cannot be started");
  std::string text;
  char piece[4096];
  for (std::size_t n = 0; (n = fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, n);
  if (pclose(pipe) != 0) throw Error(command + ": failed");
  return text;
}

}  // namespace kvcast
