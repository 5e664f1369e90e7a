#pragma once
// Ranks as MPI processes (mpirun, srun). No MPI type is visible here.
//
//   if (launched_by_mpi()) { MpiScope mpi; run(mpi.world()); } else { run(*self_communicator()); }
//
// MPI runs with MPI_THREAD_FUNNELED: only the thread that made the scope may communicate. Waiting
// polls MPI_Test and yields the core; after about a millisecond it sleeps between polls. Messages
// beyond 1 GiB travel in parts.
#include <memory>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

/// Whether a launcher started this process as one of its ranks (Open MPI, PMI, PMIx, Slurm step).
/// A program started alone need not initialise MPI at all.
bool launched_by_mpi();

struct MpiOptions {
  double timeout = 120;                  ///< seconds
  size_t part_bytes = size_t{1} << 30U;  ///< longer messages are sent in parts of this
};

/// MPI from construction to destruction; at most one in the life of a process.
class MpiScope {
 public:
  explicit MpiScope(const MpiOptions& options = {});
  /// Finalizes MPI (collective), unless an exception is in flight or a peer was lost: then
  /// finalizing could hang, and the process should end with `abort` or a non-zero exit code, on
  /// which the launcher ends the other ranks.
  ~MpiScope();
  MpiScope(const MpiScope&) = delete;
  MpiScope& operator=(const MpiScope&) = delete;

  Communicator& world() { return *world_; }
  /// Ends all ranks of the job; the launcher returns `code`.
  [[noreturn]] void abort(int code) noexcept;

 private:
  std::unique_ptr<Communicator> world_;
  int exceptions_;
};

/// Version of the MPI library, for `espalier info`; needs no initialisation.
std::string mpi_library();
/// Whether MPI itself takes addresses of GPUs: "yes", "no" or "unknown".
std::string mpi_cuda_support();

}  // namespace espalier::parallel
