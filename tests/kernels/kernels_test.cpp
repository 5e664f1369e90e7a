// Every case of the table against every backend: values, thread counts, NaN, memory bounds, dry
// runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/kernels/backend.h"
#include "tests/kernels/all_kernel_cases.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels {
namespace {

const Cases& cases() {
  static const Cases all = all_cases();
  return all;
}

/// True if no operand has more elements.
bool up_to(const Case& one, int64_t elements) {
  return std::ranges::all_of(
      one.operands, [=](const Operand& operand) { return operand.shape.count() <= elements; });
}

TEST(Kernels, every_table_agrees_with_the_reference) {
  for (const Case& one : cases()) {
    std::vector<Values> want;
    for (const Operand& operand : one.operands) {
      want.push_back(operand.values);
    }
    one.reference(want);
    for (const Kernels* table : computing_tables()) {
      const Memories memories(one);
      run(one, *table, 2, memories);
      for (size_t i = 0; i < want.size(); ++i) {
        // Inputs are compared too, exactly: they must not have changed.
        EXPECT_EQ(mismatch(one.operands[i], memories.tensors()[i], want[i]), "")
            << table->name << " " << one.name << " operand " << i;
      }
    }
  }
}

TEST(Kernels, results_do_not_depend_on_the_number_of_threads) {
  for (const Case& one : cases()) {
    if (!one.any_thread_count) {
      continue;
    }
    for (const Kernels* table : computing_tables()) {
      const Memories serial(one);
      run(one, *table, 1, serial);
      for (const int threads : {2, 3}) {
        const Memories parallel(one);
        run(one, *table, threads, parallel);
        EXPECT_TRUE(serial.bytes() == parallel.bytes()) << table->name << " " << one.name;
      }
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

TEST(Kernels, nan_in_an_input_reaches_an_output) {
  for (const Case& one : cases()) {
    for (size_t i = 0; i < one.operands.size() && one.passes_nan && up_to(one, 8000); ++i) {
      const Operand& operand = one.operands[i];
      if (!operand.input || !is_number(operand.dtype)) {
        continue;
      }
      for (const Kernels* table : computing_tables()) {
        const Memories memories(one);
        write(memories.tensors()[i], operand.nan_at, std::numeric_limits<double>::quiet_NaN());
        run(one, *table, 1, memories);
        EXPECT_TRUE(any_nan(one, memories.tensors()))
            << table->name << " " << one.name << " operand " << i;
      }
    }
  }
}

/// An operand that is not finite has no scale: no element of the result is a number.
TEST(Kernels, infinity_in_an_operand_of_8_bits_leaves_no_number) {
  const Case one = fp8_case({.m = 16, .n = 32, .k = 48, .in = kBf16, .out = kBf16});
  for (const Kernels* table : computing_tables()) {
    for (const size_t operand : {0, 1}) {
      const Memories memories(one);
      write(memories.tensors()[operand], 5, -std::numeric_limits<double>::infinity());
      run(one, *table, 1, memories);
      for (int64_t i = 0; i < memories.tensors()[2].count(); ++i) {
        ASSERT_TRUE(std::isnan(read(memories.tensors()[2], i))) << table->name << " " << i;
      }
    }
  }
}

/// A large activation, score or slope may overflow inside a formula; where the result itself is
/// finite, it must not be NaN.
TEST(Kernels, large_inputs_make_no_nan) {
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
    for (const Kernels* table : computing_tables()) {
      const Memories memories(one);
      run(one, *table, 2, memories);
      int64_t broken = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const bool made = one.operands[i].output && is_number(one.operands[i].dtype);
        for (int64_t j = 0; made && j < memories.tensors()[i].count(); ++j) {
          const bool expected = std::isfinite(want[i][static_cast<size_t>(j)]);
          broken += expected && std::isnan(read(memories.tensors()[i], j)) ? 1 : 0;
        }
      }
      EXPECT_EQ(broken, 0) << table->name << " " << one.name;
    }
  }
}

TEST(Kernels, dry_counts_and_touches_nothing) {
  const Kernels& dry = by_name("dry");
  for (const Case& one : cases()) {
    const Memories memories(one);
    const std::string before = memories.bytes();
    dry_count() = {};
    run(one, dry, 2, memories);
    EXPECT_TRUE(memories.bytes() == before) << one.name;
    const bool has_work = one.operands.front().shape.count() > 0;
    EXPECT_TRUE(dry_count().bytes > 0 || !has_work) << one.name;
    EXPECT_GE(dry_count().flops, 0) << one.name;
  }
}

/// Bytes of workspace that one call allocates.
size_t workspace_of(const Case& one, const Kernels& table, const Memories& memories, bool dry) {
  Arena arena(dry);
  Stream stream(arena, 2);
  one.run(table, stream, memories.tensors());
  return arena.use(Memory::scratch).peak;
}

TEST(Kernels, plans_have_at_least_the_workspace) {
  for (const Case& one : cases()) {
    const Memories memories(one);
    for (const Kernels* table : computing_tables()) {
      EXPECT_LE(workspace_of(one, *table, memories, false),
                workspace_of(one, *planning(*table).kernels, memories, true))
          << table->name << " " << one.name;
    }
  }
}

/// Operands and sums of products in 8 bits are in the workspace.
TEST(Kernels, plans_have_rounded_operands) {
  for (const Fp8Shape shape : {Fp8Shape{.m = 1024, .n = 1024, .k = 16},
                               Fp8Shape{.m = 16, .n = 16, .k = 50'000, .in = kBf16}}) {
    const Case one = fp8_case(shape);
    const Memories memories(one);
    const auto needed = static_cast<size_t>(2 * (shape.m + shape.n) * shape.k);
    for (const Kernels* table : computing_tables()) {
      const size_t taken = workspace_of(one, *table, memories, false);
      EXPECT_LE(taken, workspace_of(one, *planning(*table).kernels, memories, true)) << table->name;
      EXPECT_GE(taken, needed) << table->name;
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
