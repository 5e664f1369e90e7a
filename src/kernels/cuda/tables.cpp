#include "src/kernels/cuda/tables.h"

#include <cuda_runtime_api.h>

#include "src/kernels/cuda/table.h"

namespace espalier::kernels::cuda {
namespace {

/// Compute capability 8.0: bf16, and what our kernels are compiled for.
constexpr int kOldestMajor = 8;

bool any_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  for (int device = 0; device < count; ++device) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        major >= kOldestMajor) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<const Kernels*> tables() {
  static const bool present = any_device();
  if (!present) {
    return {};
  }
  return {&table()};
}

}  // namespace espalier::kernels::cuda
