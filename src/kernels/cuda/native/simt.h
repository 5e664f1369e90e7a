#pragma once
// The language of kernels as CUDA has it. Tests have another file of this name
// (tests/simt/include/simt.h) with the same things for the host.
#include <cuda_runtime.h>

#include "src/kernels/cuda/queue.h"

namespace espalier::kernels::ESPALIER_GPU {

using DeviceQueue = CudaQueue;

#ifdef __CUDACC__
/// The launch's `shared_bytes`, 16-byte aligned.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ float4 espalier_dynamic_shared[];
  return reinterpret_cast<T*>(espalier_dynamic_shared);
}
#endif

}  // namespace espalier::kernels::ESPALIER_GPU
