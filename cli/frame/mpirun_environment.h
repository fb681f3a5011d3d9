/// What Open MPI's mpirun tells its processes through the environment, known before MPI starts.
#pragma once

namespace kvcast::cli {

/// Only then MPI is started.
bool launched_by_mpirun();
/// 1 without mpirun.
int ranks_of_mpirun();
/// 0 without mpirun.
int rank_of_mpirun();
/// How many of its processes run on this machine; 1 without mpirun.
int ranks_on_this_machine();

}  // namespace kvcast::cli
