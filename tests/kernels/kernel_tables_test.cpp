// The kernel tables: existing rows, selection, refused arguments, edge cases of softmax.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/kernels/backend.h"
#include "src/kernels/cpu/tables.h"
#include "src/kernels/cuda/tables.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::kernel_tables_test {
namespace {

using ::testing::ThrowsMessage;

std::vector<std::string> null_rows(const Kernels& k) {
  const std::pair<const char*, bool> rows[] = {
#define ESPALIER_OPERATION(row, Args, on_cpu) {#row, k.row},
#include "src/kernels/operations.def"
  };
  std::vector<std::string> missing;
  for (const auto& [name, present] : rows) {
    if (!present) {
      missing.emplace_back(name);
    }
  }
  return missing;
}

TEST(Tables, rows_are_null_only_on_devices) {
  for (const Kernels* table : available()) {
    const std::vector<std::string> rows =
        table->open == nullptr
            ? std::vector<std::string>{}
            : std::vector<std::string>{"few_rows", "sparse_few_rows", "sparse_convolution",
                                       "sparse_convolution_input", "sparse_convolution_weight"};
    EXPECT_EQ(null_rows(*table), rows) << table->name;
    EXPECT_EQ(null_rows(*planning(*table).kernels), rows) << table->name;
  }
}

/// cpu-portable; a build for one instruction set has only that (ESPALIER_CPU_TABLES=native).
std::string last_cpu_table() {
  const auto tables = cpu::tables();
  const std::string name(tables.back()->name);
  EXPECT_TRUE(tables.size() == 1 || name == "cpu-portable") << name;
  return name;
}

TEST(Tables, dry_is_last_and_portable_before_it) {
  const auto tables = available();
  ASSERT_GE(tables.size(), 2U);
  EXPECT_EQ(tables.back()->name, "dry");
  EXPECT_EQ(tables[tables.size() - 2]->name, last_cpu_table());
}

TEST(Tables, are_found_by_name) {
  unsetenv("ESPALIER_KERNELS");
  EXPECT_EQ(by_name("auto").name, available().front()->name);
  EXPECT_EQ(by_name("cpu").name, computing_tables().front()->name);
  EXPECT_EQ(by_name(last_cpu_table()).name, last_cpu_table());
  if (cuda::tables().empty()) {
    EXPECT_THAT([] { by_name("cuda"); }, ThrowsMessage<Failure>(HasSubstr(cuda::absence())));
  }
  EXPECT_THAT([] { by_name("gpu9"); },
              ThrowsMessage<Failure>(HasSubstr(last_cpu_table() + ", dry")));
}

TEST(Tables, environment_overrides_auto_only) {
  const std::string last = last_cpu_table();
  setenv("ESPALIER_KERNELS", last.c_str(), 1);
  EXPECT_EQ(by_name("auto").name, last);
  EXPECT_EQ(by_name("cpu").name, last);
  EXPECT_EQ(by_name("dry").name, "dry");
  setenv("ESPALIER_KERNELS", "nonsense", 1);
  EXPECT_THAT([] { by_name("auto"); }, ThrowsMessage<Failure>(HasSubstr("ESPALIER_KERNELS")));
  unsetenv("ESPALIER_KERNELS");
}

TEST(Tables, wrong_arguments_are_bugs_in_every_table) {
  Arena arena;
  Stream stream(arena, 1);
  const Buffer a = arena.allocate(Memory::scratch, "a", DType::fp32, {4, 6});
  const Buffer b = arena.allocate(Memory::scratch, "b", DType::fp32, {4, 5});
  const Buffer c = arena.allocate(Memory::scratch, "c", DType::bf16, {4, 6});
  for (const Kernels* table : available()) {
    EXPECT_THROW(table->activation(stream, {.x = a.tensor(), .y = b.tensor()}), Bug);
    EXPECT_THROW(table->activation(stream, {.x = a.tensor(), .y = c.tensor()}), Bug);
    EXPECT_THROW(table->gemm(stream, {.a = a.tensor(), .b = b.tensor(), .c = b.tensor()}), Bug);
    EXPECT_THROW(table->column_sum(stream, {.x = a.tensor(), .out = b.tensor()}), Bug);
    EXPECT_THROW(table->gather(stream, {.dense = a.tensor().reshaped({24}),
                                        .packed = b.tensor().reshaped({20}),
                                        .positions = {.size = 24, .count = 24}}),
                 Bug);
    EXPECT_THROW(table->sum_squares(stream, SumSquaresArgs{.x = a.tensor()}), Bug);
  }
}

TEST(Tables, ids_outside_the_table_are_bugs) {
  Arena arena;
  Stream stream(arena, 1);
  const Buffer logits = arena.allocate(Memory::scratch, "logits", DType::fp32, {2, 3});
  const Buffer losses = arena.allocate(Memory::scratch, "losses", DType::fp32, {2});
  const Buffer targets = arena.allocate(Memory::scratch, "targets", DType::int32, {2});
  for (const int32_t wrong : {-1, 3}) {
    targets.tensor().get<int32_t>()[1] = wrong;
    for (const Kernels* table : computing_tables()) {
      EXPECT_THROW(table->cross_entropy(
                       stream, {logits.tensor(), targets.tensor(), losses.tensor(), Tensor{}, 1}),
                   Bug);
    }
  }
}

TEST(CrossEntropy, minus_infinity_is_probability_zero) {
  Arena arena;
  Stream stream(arena, 1);
  const int64_t cols = 3000;  // the first part of the row is all minus infinity
  const Buffer logits = arena.allocate(Memory::scratch, "logits", DType::fp32, {1, cols});
  const Buffer losses = arena.allocate(Memory::scratch, "losses", DType::fp32, {1});
  const Buffer targets = arena.allocate(Memory::scratch, "targets", DType::int32, {1});
  for (const Kernels* table : computing_tables()) {
    auto x = logits.tensor().span<float>();
    std::fill(x.begin(), x.end(), -std::numeric_limits<float>::infinity());
    x[2998] = 100;
    x[2999] = 100;
    targets.tensor().get<int32_t>()[0] = 2999;
    table->cross_entropy(stream,
                         {logits.tensor(), targets.tensor(), losses.tensor(), logits.tensor(), 1});
    EXPECT_NEAR(losses.tensor().get<float>()[0], std::log(2.0), 1e-6) << table->name;
    EXPECT_EQ(x[0], 0) << table->name;
    EXPECT_NEAR(x[2998], 0.5, 1e-6) << table->name;
    EXPECT_NEAR(x[2999], -0.5, 1e-6) << table->name;
  }
}

TEST(CrossEntropy, a_nan_is_before_every_logit) {
  Arena arena;
  Stream stream(arena, 1);
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const Buffer logits = arena.allocate(Memory::scratch, "logits", DType::fp32, {3, 4});
  const Buffer losses = arena.allocate(Memory::scratch, "losses", DType::fp32, {3});
  const Buffer ranks = arena.allocate(Memory::scratch, "ranks", DType::fp32, {3});
  const Buffer targets = arena.allocate(Memory::scratch, "targets", DType::int32, {3});
  std::ranges::copy(
      std::array{2.0F, kNan, 1.0F, 0.0F, 0.0F, kNan, 1.0F, 2.0F, 5.0F, 7.0F, 7.0F, 7.0F},
      logits.tensor().get<float>());
  std::ranges::copy(std::array{0, 1, 2}, targets.tensor().get<int32_t>());
  for (const Kernels* table : computing_tables()) {
    table->cross_entropy(stream, {.logits = logits.tensor(),
                                  .targets = targets.tensor(),
                                  .losses = losses.tensor(),
                                  .dlogits = {},
                                  .target_ranks = ranks.tensor()});
    EXPECT_EQ(ranks.tensor().get<float>()[0], 1) << table->name;  // the NaN alone
    EXPECT_EQ(ranks.tensor().get<float>()[1], 4) << table->name;  // all classes
    EXPECT_EQ(ranks.tensor().get<float>()[2], 1) << table->name;  // an equal one, of a lower class
  }
}

TEST(Rows, may_be_strided) {
  Arena arena;
  Stream stream(arena, 2);
  const Buffer wide = arena.allocate(Memory::scratch, "wide", DType::fp32, {5, 9});
  const Buffer sums = arena.allocate(Memory::scratch, "sums", DType::fp32, {4});
  const Tensor part = wide.tensor().column_range(3, 4);
  for (const Kernels* table : computing_tables()) {
    table->fill(stream, {wide.tensor(), 7});
    table->fill(stream, {part, 2});
    table->column_sum(stream, {.x = part, .out = sums.tensor()});
    for (int64_t i = 0; i < 45; ++i) {
      EXPECT_EQ(wide.tensor().get<float>()[i], i % 9 >= 3 && i % 9 < 7 ? 2 : 7) << i;
    }
    EXPECT_EQ(sums.tensor().get<float>()[3], 10);
  }
}

TEST(Dry, counts_by_formula) {
  Arena arena(true);
  Stream stream(arena, 1);
  const Buffer a = arena.allocate(Memory::scratch, "a", DType::bf16, {8, 3});
  const Buffer b = arena.allocate(Memory::scratch, "b", DType::bf16, {3, 5});
  const Buffer c = arena.allocate(Memory::scratch, "c", DType::fp32, {8, 5});
  dry_count() = {};
  by_name("dry").gemm(stream,
                      {.a = a.tensor(), .b = b.tensor(), .c = c.tensor(), .accumulate = true});
  EXPECT_EQ(dry_count().flops, 2 * 8 * 5 * 3);
  EXPECT_EQ(dry_count().bytes, 2 * (24 + 15) + 2 * 4 * 40);
  // Operations fused with a product count as passes of their own.
  const Buffer relu = arena.allocate(Memory::scratch, "relu", DType::fp32, {8, 5});
  dry_count() = {};
  by_name("dry").gemm(stream, {.a = a.tensor(),
                               .b = b.tensor(),
                               .c = c.tensor(),
                               .activation = Activation::relu,
                               .activated = relu.tensor()});
  EXPECT_EQ(dry_count().flops, 2 * 8 * 5 * 3 + 40);
  EXPECT_EQ(dry_count().bytes, 2 * (24 + 15) + 3 * 4 * 40);
}

}  // namespace
}  // namespace espalier::kernels::kernel_tables_test
