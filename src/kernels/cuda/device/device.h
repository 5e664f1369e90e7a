#pragma once
// A GPU as the device of a rank: cudaMalloc for what kernels use, cudaMallocHost for what the host
// shares with it, one stream for kernels, and others beside it. Memory is zeroed in the first
// stream's order, before whatever others are asked for later, and given back when all streams are
// empty.
#include "src/core/device.h"
#include "src/kernels/cuda/device/queue.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Compute capability 8.0: bf16, and what our kernels are compiled for.
bool is_new_enough(int device);

class CudaMemory final : public MemorySource {
 public:
  explicit CudaMemory(CudaQueue& queue) : queue_(queue) {}
  void* allocate(size_t bytes) override;
  void free(void* data, size_t bytes) noexcept override;
  /// A rank's even share of what the driver has free, where ranks share the device.
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
