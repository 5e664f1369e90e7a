#pragma once
// NCCL, loaded on first use: libnccl.so.2 as the system's loader finds it, or the file named by the
// environment variable ESPALIER_NCCL_LIBRARY. It stays loaded.
#include <string>

#include "parallel/transport/device/nccl_api.h"

namespace espalier::parallel::nccl {

struct Library {
  std::string name;     ///< of the file
  std::string version;  ///< "2.28.9"
  Functions call;
};

/// Throws Failure if there is no library, or if it is older than 2.14 or newer than 2.x.
const Library& library();

/// Human-readable version and file; "not found" without a library.
std::string description();

}  // namespace espalier::parallel::nccl
