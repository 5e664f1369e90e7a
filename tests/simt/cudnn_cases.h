#pragma once
// Kernel cases through the cuDNN layer, on the host's replacement for cuDNN (cudnn_host.h).
#include <gtest/gtest.h>

#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/simt/cudnn_host.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {

class CudnnCases : public ::testing::Test {
 protected:
  void SetUp() override { simt::restart_cudnn_host(); }

  /// Operands of a case at addresses aligned as on a device: to 64 bytes.
  Tensors memory(const Case& one) {
    Tensors made;
    for (const Operand& operand : one.operands) {
      buffers_.push_back(arena_.allocate(Memory::scratch, "operand", operand.dtype, operand.shape));
      made.push_back(buffers_.back().tensor());
      write_all(operand, made.back());
    }
    return made;
  }
  /// Results of a case; `runs_` becomes its number of cuDNN runs.
  Tensors run(const Case& one) {
    const Tensors tensors = memory(one);
    const int64_t before = simt::cudnn_host().runs;
    one.run(cuda_simt::table(), stream_, tensors);
    stream_.synchronize();
    runs_ = simt::cudnn_host().runs - before;
    return tensors;
  }
  void expect_right(const Case& one) {
    EXPECT_EQ(mismatch(one, run(one), expected(one)), "") << one.name;
  }
  /// Runs are enqueued on the queue, like all work of a device. `output` is an operand.
  void expect_enqueued(const Case& one, size_t output) {
    const Tensors tensors = memory(one);
    const double before = read(tensors[output], 0);
    const int64_t enqueued = queue_.enqueued();
    one.run(cuda_simt::table(), stream_, tensors);
    EXPECT_EQ(queue_.enqueued() - enqueued, 1);
    EXPECT_EQ(read(tensors[output], 0), before);
    stream_.synchronize();
    EXPECT_NE(read(tensors[output], 0), before);
  }
  /// cuDNN is not called for operands that do not begin at 16 bytes. The first is 16-bit here.
  void expect_refused_unaligned(const Case& one) {
    Tensors tensors = memory(one);
    std::vector<bf16> moved(static_cast<size_t>(tensors[0].count()) + 64);
    auto* first = moved.data();
    while (reinterpret_cast<uintptr_t>(first) % 16 != 2) {
      ++first;
    }
    tensors[0] = Tensor(first, kBf16, tensors[0].shape);
    one.run(cuda_simt::table(), stream_, tensors);
    stream_.synchronize();
    EXPECT_EQ(simt::cudnn_host().runs, 0);
  }

  Arena arena_;
  simt::Queue queue_;
  Stream stream_{arena_, 1, &queue_};
  std::vector<Buffer> buffers_;
  int64_t runs_ = 0;
};

}  // namespace espalier::kernels
