// Kernels of the CPU on random shapes: the reference's values, and the same bits for each number of
// threads.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_memory.h"
#include "tests/kernels/random_kernel_cases.h"

namespace espalier::kernels {
namespace {

void expect_reference(const Case& one, const Kernels& table) {
  std::vector<Values> want;
  for (const Operand& operand : one.operands) {
    want.push_back(operand.values);
  }
  one.reference(want);
  const Memories memories(one);
  run(one, table, 2, memories);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(mismatch(one.operands[i], memories.tensors()[i], want[i]), "")
        << table.name << " " << one.name << " operand " << i;
  }
  if (one.any_thread_count) {
    const Memories serial(one);
    run(one, table, 1, serial);
    EXPECT_TRUE(serial.bytes() == memories.bytes()) << table.name << " " << one.name;
  }
}

TEST(RandomKernels, agree_with_the_reference) {
  const testing::Numbers numbers(1, 41);
  for (uint64_t number = numbers.from; number < numbers.to; ++number) {
    SCOPED_TRACE(number);
    for (const Case& one : random_cases(number)) {
      for (const Kernels* table : computing_tables()) {
        expect_reference(one, *table);
      }
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
