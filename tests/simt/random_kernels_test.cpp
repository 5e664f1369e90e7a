// Kernels of table "cuda-simt" on random shapes: the reference's values, the same bits in both
// orders of threads, and the workspace that plans count.
#include <gtest/gtest.h>

#include <cstring>

#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/kernels/random_kernel_cases.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {
namespace {

using simt::Order;

/// Returns the workspace that the call used; the contents of its first `spoiled` bytes must not
/// matter.
size_t run_simt(const Case& one, const Memories& memories, Order order, size_t spoiled = 0) {
  Arena arena;
  simt::Queue queue(order);
  Stream stream(arena, 1, &queue);
  if (spoiled > 0) {
    std::memset(stream.workspace(spoiled), 0xff, spoiled);
  }
  one.run(cuda_simt::table(), stream, memories.tensors());
  stream.synchronize();
  return arena.use(Memory::scratch).peak;
}

size_t planned(const Case& one, const Memories& memories) {
  Arena here;
  Arena device(here, nullptr);
  Stream stream(device, 1);
  one.run(*cuda_simt::table().plan, stream, memories.tensors());
  return device.use(Memory::scratch).peak;
}

void expect_reference(const Case& one) {
  std::vector<Values> want;
  for (const Operand& operand : one.operands) {
    want.push_back(operand.values);
  }
  one.reference(want);
  const Memories memories(one), backwards(one);
  const size_t plan = planned(one, memories);
  const size_t taken = run_simt(one, memories, Order::ascending);
  EXPECT_LE(taken, plan) << one.name;
  EXPECT_LE(plan, std::max<size_t>(taken, 1)) << one.name;  // cuSPARSE may use the planned bytes
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(mismatch(one.operands[i], memories.tensors()[i], want[i]), "")
        << one.name << " operand " << i;
  }
  run_simt(one, backwards, Order::descending, plan);
  EXPECT_TRUE(memories.bytes() == backwards.bytes()) << one.name;
}

TEST(SimtRandomKernels, agree_with_the_reference) {
  const testing::Numbers numbers(1, 13);
  for (uint64_t number = numbers.from; number < numbers.to; ++number) {
    SCOPED_TRACE(number);
    for (const Case& one : random_cases(number)) {
      expect_reference(one);
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
