// Every kernel case on the table "cuda-simt", against the reference: values, the same bits in both
// orders of threads, NaN, large inputs; and no call reads a result on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/kernels/cuda/table.h"
#include "tests/kernels/all_kernel_cases.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {
namespace {

using simt::Order;

const Cases& cases() {
  static const Cases all = all_cases();
  return all;
}

/// True if no operand has more elements: large products are slow with fibers.
bool up_to(const Case& one, int64_t elements) {
  return std::ranges::all_of(
      one.operands, [=](const Operand& operand) { return operand.shape.count() <= elements; });
}

/// Runs one case; `before` checks the memory after the call has returned and before any wait.
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
  }
}

size_t workspace_of(const Case& one, const Kernels& table, const Memories& memories, bool dry) {
  Arena here;
  Arena plans(here, nullptr);  // of a device, without memory
  Arena& arena = dry ? plans : here;
  simt::Queue queue;
  Stream stream(arena, 1, dry ? nullptr : &queue);
  one.run(table, stream, memories.tensors());
  stream.synchronize();
  return arena.use(Memory::scratch).peak;
}

/// A plan needs no device, touches no memory, and counts the workspace of the call.
TEST(SimtKernels, plan_for_the_workspace_that_they_take) {
  const Kernels* plan = cuda_simt::table().plan;
  ASSERT_NE(plan, nullptr);
  size_t most = 0;
  for (const Case& one : cases()) {
    if (!up_to(one, 8000)) {
      continue;
    }
    const Memories memories(one);
    const std::string start = memories.bytes();
    dry_count() = {};
    const size_t planned = workspace_of(one, *plan, memories, true);
    EXPECT_TRUE(memories.bytes() == start) << one.name;
    EXPECT_TRUE(dry_count().bytes > 0 || one.operands.front().shape.count() == 0) << one.name;
    EXPECT_EQ(workspace_of(one, cuda_simt::table(), memories, false), planned) << one.name;
    most = std::max(most, planned);
  }
  EXPECT_GT(most, 0U);
}

TEST(SimtKernels, do_not_depend_on_the_order_of_threads) {
  for (const Case& one : cases()) {
    if (up_to(one, 20000)) {
      const Memories first(one), second(one);
      run_simt(one, first, Order::ascending);
      run_simt(one, second, Order::descending);
      EXPECT_TRUE(first.bytes() == second.bytes()) << one.name;
    }
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
    for (size_t i = 0; i < one.operands.size() && one.passes_nan && up_to(one, 8000); ++i) {
      const Operand& operand = one.operands[i];
      if (!operand.input || !is_number(operand.dtype)) {
        continue;
      }
      const Memories memories(one);
      write(memories.tensors()[i], operand.nan_at, std::numeric_limits<double>::quiet_NaN());
      run_simt(one, memories);
      EXPECT_TRUE(any_nan(one, memories.tensors())) << one.name << " operand " << i;
    }
  }
}

/// For products of codes and of bf16.
TEST(SimtKernels, infinity_in_an_operand_of_8_bits_leaves_no_number) {
  for (const int64_t n : {32, 31}) {
    const Case one = fp8_case({.m = 16, .n = n, .k = 48, .in = kBf16, .out = kBf16});
    for (const size_t operand : {0, 1}) {
      const Memories memories(one);
      write(memories.tensors()[operand], 5, -std::numeric_limits<double>::infinity());
      run_simt(one, memories);
      for (int64_t i = 0; i < memories.tensors()[2].count(); ++i) {
        ASSERT_TRUE(std::isnan(read(memories.tensors()[2], i))) << n << " " << i;
      }
    }
  }
}

/// A large activation, score or slope may overflow inside a formula; where the result itself is
/// finite, it must not be NaN.
TEST(SimtKernels, large_inputs_make_no_nan) {
  constexpr double kFactor = 100;
  for (Case one : cases()) {
    if (!one.any_inputs || !up_to(one, 8000)) {
      continue;
    }
    std::vector<Values> want;
    for (Operand& operand : one.operands) {
      for (double& value : operand.values) {
        const bool scaled = operand.input && is_number(operand.dtype);
        value = scaled ? rounded(operand.dtype, kFactor * value) : value;
      }
      want.push_back(operand.values);
    }
    one.reference(want);
    const Memories memories(one);
    run_simt(one, memories);
    int64_t broken = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const bool made = one.operands[i].output && is_number(one.operands[i].dtype);
      for (int64_t j = 0; made && j < memories.tensors()[i].count(); ++j) {
        const bool expected = std::isfinite(want[i][static_cast<size_t>(j)]);
        broken += expected && std::isnan(read(memories.tensors()[i], j)) ? 1 : 0;
      }
    }
    EXPECT_EQ(broken, 0) << one.name;
  }
}

}  // namespace
}  // namespace espalier::kernels
