#pragma once
// Where a rank computes: a table of operations with the memory and the stream that belong to it,
// the host's or those of a device (core/device.h). Everything is used by one thread at a time.
#include "src/kernels/kernels.h"

namespace espalier::kernels {

class Backend {
 public:
  /// Opens a device for a table that needs one; throws Failure when there is none for this rank.
  Backend(const Kernels& kernels, int threads, int local_rank = 0);

  const Kernels& kernels() const { return kernels_; }
  Arena& arena() { return stream_.arena(); }
  Stream& stream() { return stream_; }

 private:
  const Kernels& kernels_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Queue> side_;  ///< of a device
  Arena host_;                   ///< beside a device pinned memory
  std::unique_ptr<Arena> on_device_;
  Stream stream_;
};

/// Where a plan of a run is made: on a dry arena, of a device or not, with a table that computes
/// nothing and asks for the workspace of the kernels that will run.
struct Planning {
  const Kernels* kernels = nullptr;
  bool device = false;
};
Planning planning(const Kernels& kernels);
/// For run.backend = `name`: "cuda" also on machines without a GPU; a build without CUDA knows of
/// no workspace there.
Planning planning(std::string_view name);

/// The devices of this machine that this build can use, in words for people.
std::vector<std::string> devices();
/// Bytes that each of them has free.
std::vector<size_t> device_free_bytes();

/// Libraries that a device's kernels load when they are first needed: what was found, or why not.
std::vector<std::string> libraries();

/// The table for work on memory of the host beside `kernels`: itself, unless it needs a device.
const Kernels& beside(const Kernels& kernels);

}  // namespace espalier::kernels
