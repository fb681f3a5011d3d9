#include "cli/frame/build_facts.h"

#include <kvcast_commit.h>  // made by cmake/kvcast_commit.cmake

#if KVCAST_HAS_MPI
#include <mpi.h>
#endif

namespace kvcast::cli {
namespace {

/// The version of the library that is loaded. It may be asked before MPI starts.
std::string mpi_version() {
#if KVCAST_HAS_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) == MPI_SUCCESS) {
    const std::string version(text, static_cast<std::size_t>(length));
    return version.substr(0, version.find_first_of(",\n"));
  }
  return "yes";
#else
  return "none";
#endif
}

}  // namespace

std::string build_facts() {
  return std::string("kvcast ") + KVCAST_VERSION + "\ncommit      " + KVCAST_COMMIT +
         "\ncompiler    " + KVCAST_COMPILER + "\nbuild type  " + KVCAST_BUILD_TYPE +
         "\nMPI         " + mpi_version() + "\noneDNN      " + KVCAST_ONEDNN_VERSION;
}

}  // namespace kvcast::cli
