#pragma once
// Ranks as MPI processes (mpirun, srun). This header exposes no MPI type.
//
//   if (launched_by_mpi()) { MpiScope mpi; run(mpi.world()); } else { run(*self_communicator()); }
//
// MPI runs with MPI_THREAD_SERIALIZED: one thread at a time communicates, the thread that made the
// scope or one that shows life for it (busy.h). A wait polls MPI_Test and yields the core; after
// about a millisecond it sleeps between polls. Messages beyond 1 GiB are sent in parts.
#include <memory>

#include "parallel/transport/communicator.h"
#include "parallel/transport/launcher.h"

namespace espalier::parallel {

struct MpiOptions {
  double timeout = 120;                  ///< seconds
  size_t part_bytes = size_t{1} << 30U;  ///< longer messages are sent in parts of this size
  /// Called, on any thread, if a rank does not join the start (start_watch.h), the creation of a
  /// communicator or the end in time; should end the process. Empty: these wait for ever.
  std::function<void(const std::string&)> on_hang{};
};

/// MPI from construction to destruction; at most one scope per process.
class MpiScope {
 public:
  explicit MpiScope(const MpiOptions& options = {});
  /// Finalizes MPI (collective), except while an exception is in flight or after a lost peer:
  /// finalizing could then hang. The process should then end with `abort` or a non-zero exit code;
  /// the launcher then ends the other ranks.
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
/// Whether MPI accepts GPU addresses: "yes", "no" or "unknown".
std::string mpi_cuda_support();

}  // namespace espalier::parallel
