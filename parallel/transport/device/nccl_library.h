#pragma once
// NCCL, loaded when it is first asked for: libnccl.so.2 as the system's loader finds it, or the
// file that the environment variable ESPALIER_NCCL_LIBRARY names. It stays loaded.
#include <string>

#include "parallel/transport/device/nccl_api.h"

namespace espalier::parallel::nccl {

struct Library {
  std::string name;     ///< of the file
  std::string version;  ///< "2.28.9"
  Functions call;
};

/// Throws Failure: there is none, or one that is older than 2.14 or newer than 2.x.
const Library& library();

/// Version and file, for people; where there is none "not found".
std::string description();

}  // namespace espalier::parallel::nccl
