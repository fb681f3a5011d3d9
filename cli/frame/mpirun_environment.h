/// What Open MPI's mpirun tells each process that it starts, before any of them starts MPI.
#pragma once

namespace kvcast::cli {

/// MPI is not even started where it is false.
bool launched_by_mpirun();
/// 1 without mpirun.
int ranks_of_mpirun();
/// 0 without mpirun.
int rank_of_mpirun();
/// Processes of the mpirun on this machine; 1 without it.
int ranks_on_this_machine();

}  // namespace kvcast::cli
