#include "src/kernels/cuda/device/device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kOldestMajor = 8;

/// Returns null if memory is exhausted; throws Failure for any other error.
void* found(cudaError_t status, void* data, const char* what) {
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // clears it; the next call would report it again
    return nullptr;
  }
  check_cuda(status, what);
  return data;
}

/// Ranks of a machine that share a GPU: ESPALIER_RANKS_PER_GPU, or 1 if unset.
int ranks_per_gpu() {
  const char* text = std::getenv("ESPALIER_RANKS_PER_GPU");
  if (text == nullptr) {
    return 1;
  }
  int ranks = 0;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, ranks);
  check(error == std::errc() && last == end && ranks >= 1,
        "ESPALIER_RANKS_PER_GPU is '{}': it must be a number of ranks, 1 or more", text);
  return ranks;
}

}  // namespace

bool is_new_enough(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= kOldestMajor;
}

void* CudaMemory::allocate(size_t bytes) {
  queue_.refuse_recording("memory of the device is taken");
  queue_.use_device();
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  data = found(status, data, "memory of the device");
  if (data != nullptr) {
    queue_.fill(data, 0, bytes);
    queue_.hold_others();
  }
  return data;
}

void CudaMemory::free(void* data, size_t) noexcept {
  if (queue_.recording()) {
    queue_.after_recording([data] { static_cast<void>(cudaFree(data)); });
    return;
  }
  queue_.finish_all();
  static_cast<void>(cudaFree(data));
}

size_t CudaMemory::available() {
  queue_.use_device();
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "free memory");
  return free / static_cast<size_t>(ranks_per_gpu());
}

void* PinnedMemory::allocate(size_t bytes) {
  queue_.refuse_recording("pinned memory is taken");
  queue_.use_device();
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, std::max<size_t>(bytes, 1));
  data = found(status, data, "pinned memory");
  return data == nullptr ? nullptr : std::memset(data, 0, bytes);
}

void PinnedMemory::free(void* data, size_t) noexcept {
  if (queue_.recording()) {
    queue_.after_recording([data] { static_cast<void>(cudaFreeHost(data)); });
    return;
  }
  queue_.finish_all();
  static_cast<void>(cudaFreeHost(data));
}

std::unique_ptr<Device> open_device(int local_rank) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "number of devices");
  const int device = local_rank / ranks_per_gpu();
  check(device < count,
        "run.backend = \"cuda\" gives each rank of a machine a GPU of its own, and there {} {} for "
        "rank {} (counted from 0): start fewer ranks here, or let n of them share a GPU, with "
        "ESPALIER_RANKS_PER_GPU=n",
        count == 1 ? "is" : "are", count, local_rank);
  check(is_new_enough(device),
        "GPU {} is older than compute capability 8.0: choose others with CUDA_VISIBLE_DEVICES",
        device);
  return std::make_unique<CudaDevice>(device);
}

}  // namespace espalier::kernels::ESPALIER_GPU
