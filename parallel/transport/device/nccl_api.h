#pragma once
// The subset of NCCL's C interface that the links use, unchanged since NCCL 2.14 (the first version
// with non-blocking communicators). It is declared here so that every build compiles it; the
// library is loaded on first use (nccl_library.h). A test compares it with nccl.h if that header is
// installed. Source: NVIDIA NCCL, "API", docs.nvidia.com/deeplearning/nccl.
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

/// The first fields of ncclConfig_t; `size` and `version` declare to the library that there are no
/// others. An older library reads the fields that it knows.
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
