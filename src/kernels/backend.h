#pragma once
// The backend of a rank: a table of operations with its memory and stream, on the host or on a
// device (core/device.h). Used by one thread at a time.
#include "src/kernels/kernels.h"

namespace espalier::kernels {

/// The number of threads that kernels get of `threads`. Sets OpenMP up for this thread: kernels
/// divide work by the number that they request, and a smaller team (OMP_DYNAMIC, OMP_THREAD_LIMIT)
/// would leave some undone.
int usable_threads(int threads);

class Backend {
 public:
  /// Opens a device if the table needs one; throws Failure if there is none for this rank.
  Backend(const Kernels& kernels, int threads, int local_rank = 0);

  const Kernels& kernels() const { return kernels_; }
  Arena& arena() { return stream_.arena(); }
  Stream& stream() { return stream_; }

 private:
  const Kernels& kernels_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Queue> side_;  ///< of a device; null on the CPU
  Arena host_;                   ///< host memory; pinned if there is a device
  std::unique_ptr<Arena> on_device_;
  Stream stream_;
};

/// The table and kind of arena for the plan of a run. The arena is dry; the table computes nothing
/// and requests the same workspace as the kernels of the run.
struct Planning {
  const Kernels* kernels = nullptr;
  bool device = false;
};
Planning planning(const Kernels& kernels);
/// For run.backend = `name`. "cuda" works also without a GPU; a build without CUDA does not know
/// the workspace of its kernels.
Planning planning(std::string_view name);

/// The devices of this machine that this build can use, as text for users.
std::vector<std::string> devices();
/// Free bytes of each device.
std::vector<size_t> device_free_bytes();

/// Libraries that device kernels load on first use: the version found, or the reason of failure.
std::vector<std::string> libraries();

/// The table for host memory next to `kernels`: itself, unless it needs a device.
const Kernels& beside(const Kernels& kernels);

}  // namespace espalier::kernels
