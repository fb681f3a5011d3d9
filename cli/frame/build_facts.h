/// What this program was built from and with.
#pragma once

#include <string>

namespace kvcast::cli {

/// "kvcast 0.1.0" and a line each for commit, compiler, build type, MPI and oneDNN.
std::string build_facts();

}  // namespace kvcast::cli
