#pragma once
// A GPU as the device of a rank: cudaMalloc for kernel memory, cudaMallocHost for memory shared
// with the host, a first stream for kernels, and further streams beside it.
//
// - Memory is zeroed in the order of the first stream. Work enqueued later on other streams follows
//   the zeroing.
// - Memory is freed when all streams have finished.
#include "src/core/device.h"
#include "src/kernels/cuda/device/queue.h"

namespace espalier::kernels::ESPALIER_GPU {

/// True from compute capability 8.0 on, which bf16 and our compiled kernels need.
bool is_new_enough(int device);

class CudaMemory final : public MemorySource {
 public:
  explicit CudaMemory(CudaQueue& queue) : queue_(queue) {}
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;
  /// The rank's equal share of the driver's free bytes, if ranks share the device.
  size_t available() override;

 private:
  CudaQueue& queue_;
};

class PinnedMemory final : public MemorySource {
 public:
  explicit PinnedMemory(CudaQueue& queue) : queue_(queue) {}
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;

 private:
  CudaQueue& queue_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : queue_(number), memory_(queue_), pinned_(queue_) {}
  MemorySource& memory() override { return memory_; }
  MemorySource& pinned() override { return pinned_; }
  Queue& queue() override { return queue_; }

 private:
  CudaQueue queue_;
  CudaMemory memory_;
  PinnedMemory pinned_;
};

}  // namespace espalier::kernels::ESPALIER_GPU
