// Kernels on random shapes, on every table under test: the reference's values, the same bits in all
// variations, workspace as planned.
#include "tests/kernels/kernel_checks.h"
#include "tests/kernels/random_kernel_cases.h"

namespace espalier::kernels::random_kernels_test {
namespace {

TEST(RandomKernels, agree_with_the_reference) {
  for (const TestedTable& table : tested_tables()) {
    const testing::Numbers numbers(1, table.random_seeds + 1);
    for (uint64_t number = numbers.from; number < numbers.to; ++number) {
      SCOPED_TRACE(number);
      Cases cases = random_cases(number);
      drop_unsupported(cases);
      for (const Case& one : cases) {
        expect_reference(one, table, expected(one), std::numeric_limits<int64_t>::max());
      }
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::random_kernels_test
