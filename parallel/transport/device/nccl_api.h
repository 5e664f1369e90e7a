#pragma once
// The part of NCCL's C interface that is used here, as it has been since NCCL 2.14 (the first with
// communicators that do not block); later libraries keep it. Stated here so that every build has
// it: the library itself is loaded when it is needed (nccl_library.h). A test compares with nccl.h
// where there is one. Source: NVIDIA NCCL, "API", docs.nvidia.com/deeplearning/nccl.
#include <climits>
#include <cstddef>

namespace espalier::parallel::nccl {

struct Comm;  ///< opaque
using Status = int;
using Type = int;
using Operator = int;
using CudaStream = void*;

inline constexpr Status kSuccess = 0, kSystemError = 2, kRemoteError = 6, kInProgress = 7;
inline constexpr Type kInt8 = 0, kUint64 = 5, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
inline constexpr Operator kSum = 0, kMax = 2;

struct UniqueId {
  char bytes[128];
};

/// The first fields of ncclConfig_t; `size` and `version` tell a library that there are no others. An
/// older one takes those that it knows.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = INT_MIN;  ///< not set
  int cluster = INT_MIN;
  int least_blocks = INT_MIN, most_blocks = INT_MIN;  ///< of a kernel
  const char* network = nullptr;
};

struct Functions {
  Status (*GetVersion)(int*);
  Status (*GetUniqueId)(UniqueId*);
  Status (*CommInitRankConfig)(Comm**, int ranks, UniqueId, int rank, Config*);
  Status (*CommGetAsyncError)(Comm*, Status*);
  Status (*CommFinalize)(Comm*);
  Status (*CommDestroy)(Comm*);
  Status (*CommAbort)(Comm*);
  const char* (*GetErrorString)(Status);
  const char* (*GetLastError)(Comm*);
  Status (*GroupStart)();
  Status (*GroupEnd)();
  Status (*Send)(const void*, size_t count, Type, int peer, Comm*, CudaStream);
  Status (*Recv)(void*, size_t count, Type, int peer, Comm*, CudaStream);
  Status (*AllReduce)(const void*, void*, size_t count, Type, Operator, Comm*, CudaStream);
  Status (*Reduce)(const void*, void*, size_t count, Type, Operator, int root, Comm*, CudaStream);
};

}  // namespace espalier::parallel::nccl
