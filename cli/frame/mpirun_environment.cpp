#include "cli/frame/mpirun_environment.h"

#include <algorithm>
#include <cstdlib>

#include "cli/frame/capture.h"

namespace kvcast::cli {
namespace {

int number(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? fallback : std::atoi(text);
}

}  // namespace

bool launched_by_mpirun() {
  if (Capture::current() != nullptr) return false;  // MPI starts once in a process, calls are many
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size != nullptr && *size != '\0';
}

int ranks_of_mpirun() { return std::max(1, number("OMPI_COMM_WORLD_SIZE", 1)); }

int rank_of_mpirun() { return number("OMPI_COMM_WORLD_RANK", 0); }

int ranks_on_this_machine() { return std::max(1, number("OMPI_COMM_WORLD_LOCAL_SIZE", 1)); }

}  // namespace kvcast::cli
