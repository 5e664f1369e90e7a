// Every kernel case on the table "cuda-simt", against the reference: values, in both orders of
// threads and bit by bit the same; NaN; large inputs; and that no call looks at a result.
#include <gtest/gtest.h>

#include <limits>

#include "src/kernels/cuda/table.h"
#include "tests/all_kernel_cases.h"
#include "tests/kernel_memory.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {
namespace {

using simt::Order;

const Cases& cases() {
  static const Cases all = all_cases();
  return all;
}

/// Elements of the operands that tests of special values take.
constexpr int64_t kSmall = 20000;

/// Runs one case; `before` sees the memory when the call has returned and nothing was waited for.
template <class Before>
void run_deferred(const Case& one, const Memories& memories, Order order, const Before& before) {
  Arena arena;
  simt::Queue queue(order);
  Stream stream(arena, 1, &queue);
  one.run(cuda_simt::table(), stream, memories.tensors());
  before(stream);
  stream.synchronize();
}

void run_simt(const Case& one, const Memories& memories, Order order = Order::ascending) {
  run_deferred(one, memories, order, [](Stream&) {});
}

TEST(SimtKernels, agree_with_the_reference_and_wait_to_be_asked) {
  for (const Case& one : cases()) {
    std::vector<Values> want;
    for (const Operand& operand : one.operands) {
      want.push_back(operand.values);
    }
    one.reference(want);
    const Memories memories(one);
    const std::string start = memories.bytes();
    run_deferred(one, memories, Order::ascending, [&](Stream&) {
      EXPECT_TRUE(memories.bytes() == start) << one.name << " did not wait";
    });
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(mismatch(one.operands[i], memories.tensors()[i], want[i]), "")
          << one.name << " operand " << i;
    }
    const Memories again(one);
    run_simt(one, again, Order::descending);
    EXPECT_TRUE(memories.bytes() == again.bytes()) << one.name << ": the order of threads matters";
  }
}

bool any_nan(const Case& one, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t j = 0; one.operands[i].output && j < tensors[i].count(); ++j) {
      if (std::isnan(read(tensors[i], j))) {
        return true;
      }
    }
  }
  return false;
}

TEST(SimtKernels, nan_in_an_input_reaches_an_output) {
  for (const Case& one : cases()) {
    for (size_t i = 0; i < one.operands.size() && one.passes_nan; ++i) {
      const Operand& operand = one.operands[i];
      if (!operand.input || !is_number(operand.dtype) || operand.shape.count() > kSmall) {
        continue;
      }
      const Memories memories(one);
      write(memories.tensors()[i], operand.nan_at, std::numeric_limits<double>::quiet_NaN());
      run_simt(one, memories);
      EXPECT_TRUE(any_nan(one, memories.tensors())) << one.name << " operand " << i;
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
