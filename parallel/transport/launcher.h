#pragma once
// The launcher that started this process as a rank, as its environment variables describe it: MPI
// may not have started yet, or may not know this launcher.
//
// Launchers: Open MPI's mpirun, Hydra (MPICH, Intel MPI) and others that speak PMI, those that
// speak PMIx, and steps of Slurm with more than one task.
#include <optional>
#include <string>
#include <string_view>

namespace espalier::parallel {

struct Launch {
  int rank = 0;
  int ranks = 0;        ///< 0: unknown
  int local_ranks = 0;  ///< of this machine; 0: unknown
  std::string job{};    ///< the same text on all ranks of a machine; empty: unknown
};

/// Empty: no launcher started this process.
std::optional<Launch> find_launch();

/// Whether a launcher started this process as one of its ranks. A program started alone does not
/// need to initialise MPI.
bool launched_by_mpi();

/// Throws if a launcher started several ranks, but `world`, the ranks that MPI knows, is 1: the
/// launcher belongs to another MPI library, and each rank would train alone. `library` is this
/// program's. Where launchers are nested, such as mpirun in a step of Slurm, one that started a
/// single rank is believed.
void check_joined(int world, std::string_view library);

/// For the user: torchrun and its like started several processes, which MPI does not join. Empty:
/// they did not.
std::string torch_launcher_note();

}  // namespace espalier::parallel
