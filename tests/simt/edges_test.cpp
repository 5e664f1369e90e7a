// Shapes outside the case table: rows wider than a block holds in registers or shared memory,
// tokens with many rows, runs cut out of larger arrays, ids outside their table. The same call on
// the CPU gives the expected result.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/core/exact_sum.h"
#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/simt/queue.h"

namespace espalier::kernels::edges_test {
namespace {

using simt::Order;

/// Operands in separate memory, for a call on the CPU and one on the harness.
class Twice {
 public:
  Tensors& on(bool device) { return device ? device_ : host_; }
  void add(const Operand& operand) {
    for (const bool device : {false, true}) {
      memory_.emplace_back(static_cast<size_t>(operand.shape.count()) * size_of(operand.dtype));
      on(device).emplace_back(memory_.back().data(), operand.dtype, operand.shape);
      write_all(operand, on(device).back());
    }
  }
  /// body(kernels, stream, tensors) on both.
  template <class Body>
  void run(const Body& body) {
    Arena arena;
    Stream plain(arena, 1);
    body(*computing_tables().back(), plain, host_);
    simt::Queue queue;
    Stream stream(arena, 1, &queue);
    body(cuda_simt::table(), stream, device_);
    stream.synchronize();
  }
  void expect_near(size_t which, double tolerance) {
    for (int64_t i = 0; i < host_[which].count(); ++i) {
      const double want = read(host_[which], i);
      ASSERT_NEAR(read(device_[which], i), want, tolerance * (1 + std::fabs(want)))
          << "operand " << which << " element " << i;
    }
  }

 private:
  std::vector<Guarded> memory_;
  Tensors host_, device_;
};

TEST(SimtEdges, rows_wider_than_a_block_holds) {
  for (const int64_t cols : {int64_t{12500}, int64_t{17003}}) {
    Twice t;
    for (const Operand& one : {input(DType::fp32, {3, cols}), input(DType::fp32, {cols}),
                               input(DType::fp32, {cols}), output(DType::fp32, {3, cols}, {}),
                               output(DType::fp32, {3}, {}), output(DType::fp32, {3}, {}),
                               input(DType::bf16, {3, cols}), in_out(DType::fp32, {3, cols}, {}),
                               output(DType::fp32, {cols}, {}), output(DType::bf16, {cols}, {})}) {
      t.add(one);
    }
    t.run([](const Kernels& kernels, Stream& stream, const Tensors& x) {
      kernels.norm(stream, {x[0], x[1], x[2], x[3], x[4], x[5]});
      kernels.norm_backward(stream, {x[6], x[0], x[1], x[4], x[5], x[7], x[8], x[9]});
    });
    t.expect_near(3, 1e-5);
    t.expect_near(7, 1e-5);
    t.expect_near(8, 1e-5);
    t.expect_near(9, 0x1p-8);
  }
}

TEST(SimtEdges, many_rows_are_summed_in_parts) {
  for (const int64_t rows : {int64_t{700}, int64_t{1025}}) {
    Twice t;
    for (const Operand& one :
         {input(DType::fp32, {rows, 9}), input(DType::fp32, {9}), input(DType::bf16, {rows, 9}),
          input(DType::fp32, {rows}, -0.1, 0.1), input(DType::fp32, {rows}, 1, 2),
          in_out(DType::fp32, {rows, 9}, {}), in_out(DType::fp32, {9}, {}),
          in_out(DType::fp32, {9}, {}), in_out(DType::fp32, {9}, {})}) {
      t.add(one);
    }
    t.run([](const Kernels& kernels, Stream& stream, const Tensors& x) {
      kernels.norm_backward(stream, {.dy = x[2],
                                     .x = x[0],
                                     .weight = x[1],
                                     .mean = x[3],
                                     .rstd = x[4],
                                     .dx = x[5],
                                     .dweight = x[6],
                                     .dbias = x[7],
                                     .accumulate = true});
      kernels.column_sum(stream, {.x = x[0], .out = x[8], .accumulate = true});
    });
    for (const size_t which : {5, 6, 7, 8}) {
      t.expect_near(which, 5e-5);
    }
  }
}

/// Most rows have one of three tokens; some tokens have one row, and some exactly 64 or 65.
TEST(SimtEdges, tokens_with_many_rows) {
  constexpr int64_t kRows = 2500;
  constexpr int64_t kColumns = 133;
  Operand tokens = ids({4, kRows / 4}, 3);
  for (int64_t i = 0; i < 64; ++i) {
    tokens.values[17 * i] = 300;
    tokens.values[13 * i + 1] = 7000;
  }
  tokens.values[0] = 7000;
  tokens.values[4] = 65;
  tokens.values[2499] = 66000;
  for (const DType out : {DType::fp32, DType::bf16}) {
    Twice t;
    t.add(tokens);
    t.add(input(DType::fp32, {4, kRows / 4, kColumns}));
    t.add(in_out(out, {66001, kColumns}, {}));
    t.add(in_out(out, {kRows / 4, kColumns}, {}));
    t.run([](const Kernels& kernels, Stream& stream, const Tensors& x) {
      kernels.embedding_backward(stream, {x[0], x[1], x[2], x[3]});
    });
    t.expect_near(2, out == DType::bf16 ? 0x1p-7 : 5e-5);
    t.expect_near(3, out == DType::bf16 ? 0x1p-7 : 1e-6);
  }
}

/// A run cut out of a larger array: its list counts from the start of the larger array; its bitmap
/// and ranks continue with the next run's.
TEST(SimtEdges, runs_cut_out_of_larger_positions) {
  constexpr int64_t kSize = 9000;
  constexpr int64_t kFirst = 1024;
  constexpr int64_t kLength = 5120;
  for (const double density : {0.02, 0.5, 1.0}) {
    const Kept kept(Form::bitmap, kSize, density);
    const auto begin = std::ranges::lower_bound(kept.list, int32_t{kFirst});
    const auto end = std::ranges::lower_bound(kept.list, int32_t{kFirst + kLength});
    const int64_t count = end - begin;
    const Positions by_list{.size = kLength, .count = count, .list = &*begin, .first = kFirst};
    const Positions by_bitmap{.size = kLength,
                              .count = count,
                              .bitmap = kept.bitmap.data() + kFirst / 64,
                              .prefix_counts = kept.prefix_counts.data() + kFirst / 512};
    for (const Positions& positions : {by_list, by_bitmap}) {
      Twice t;
      t.add(input(DType::bf16, {kLength}));
      t.add(in_out(DType::fp32, {count}, {}));
      t.add(output(DType::bf16, {kLength}, {}));
      t.run([&](const Kernels& kernels, Stream& stream, const Tensors& x) {
        kernels.gather(stream, {x[0], x[1], positions, true});
        kernels.scatter(stream, {x[1], x[2], positions});
      });
      t.expect_near(1, 0);
      t.expect_near(2, 0);
    }
  }
}

/// Incomplete tiles of 2,048 elements, packed runs longer than one load of a warp, arrays that
/// begin at any address, and a bitmap followed by bits of another array (the CPU's ends there).
TEST(SimtEdges, bitmaps_of_any_size_and_address) {
  for (const int64_t size : {1, 63, 511, 512, 513, 1023, 2047, 2048, 2049, 6200}) {
    for (const double density : {0.0, 0.1, 0.4, 1.0}) {
      const int64_t shift = size % 4;
      SCOPED_TRACE(fmt::format("size {} density {}", size, density));
      const Kept kept(Form::bitmap, size + 70, density);
      const int64_t count =
          std::ranges::lower_bound(kept.list, static_cast<int32_t>(size)) - kept.list.begin();
      std::vector<uint64_t> ends = kept.bitmap;
      if (size % 64 != 0) {
        ends[size / 64] &= (uint64_t{1} << size % 64) - 1;
      }
      Twice t;
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        t.add(input(dtype, {size + shift}));
        t.add(in_out(dtype, {count + shift}, {}));
        t.add(in_out(DType::bf16, {size + shift}, {}));
        t.add(in_out(DType::fp32, {size + 4}, {}));
      }
      t.run([&](const Kernels& kernels, Stream& stream, const Tensors& x) {
        const bool device = &kernels == &cuda_simt::table();
        const Positions positions{.size = size,
                                  .count = count,
                                  .bitmap = device ? kept.bitmap.data() : ends.data(),
                                  .prefix_counts = kept.prefix_counts.data()};
        for (const size_t first : {size_t{0}, size_t{4}}) {
          const Tensor packed = x[first + 1].elements(shift, count);
          kernels.gather(stream,
                         {x[first].elements(shift, size), packed, positions, size % 2 == 1});
          kernels.scatter(stream, {packed, x[first + 2].elements(shift, size), positions});
          kernels.scatter(stream, {packed, x[first + 3].elements(4, size), positions});
        }
      });
      for (size_t which = 0; which < 8; ++which) {
        t.expect_near(which, 0);
      }
    }
  }
}

/// Digits of a sum have the CPU's bits: for the smallest and the largest numbers, for values that
/// are not finite, and for more elements than a grid processes at once.
TEST(SimtEdges, squares_are_summed_to_the_last_bit) {
  constexpr int64_t kMany = (int64_t{2048} * 8 + 3) * kSumBlock + 17;
  for (const auto& [count, scale] :
       {std::pair(int64_t{3000}, 1e-45), std::pair(int64_t{3000}, 3e38), std::pair(kMany, 1.0)}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (count == kMany && dtype == DType::bf16) {
        continue;
      }
      Operand x = input(dtype, {count}, -scale, scale);
      Operand counts = in_out(DType::uint64, {ExactSum::kWords}, {});
      counts.values.assign(ExactSum::kWords, 0);
      Twice t;
      t.add(x);
      t.add(counts);
      t.run([](const Kernels& kernels, Stream& stream, const Tensors& at) {
        kernels.sum_squares(stream, SumSquaresArgs{at[0], at[1]});
        kernels.sum_squares(stream, SumSquaresArgs{at[0].elements(7, 300), at[1]});
      });
      t.expect_near(1, 0);
    }
  }
  for (const double strange : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    Operand x = input(DType::fp32, {700});
    x.values[299] = strange;
    Operand counts = in_out(DType::uint64, {ExactSum::kWords}, {});
    counts.values.assign(ExactSum::kWords, 0);
    const Case one{.operands = {x, counts}};
    const Memories memories(one);
    Arena arena;
    simt::Queue queue;
    Stream stream(arena, 1, &queue);
    cuda_simt::table().sum_squares(stream,
                                   SumSquaresArgs{memories.tensors()[0], memories.tensors()[1]});
    stream.synchronize();
    const auto words = memories.tensors()[1].span<uint64_t>();
    const double sum = ExactSum::of(words.first<ExactSum::kWords>()).value();
    EXPECT_TRUE(std::isnan(strange) ? std::isnan(sum) : sum == HUGE_VAL) << strange;
  }
}

TEST(SimtEdges, nothing_kept_by_no_form_is_zeros) {
  Twice t;
  t.add(input(DType::fp32, {0}));
  t.add(output(DType::fp32, {100}, {}));
  t.run([](const Kernels& kernels, Stream& stream, const Tensors& x) {
    kernels.scatter(stream, {x[0], x[1], {.size = 100}});
  });
  t.expect_near(1, 0);
}

/// The host cannot check ids in device memory: an id outside its table selects NaN and adds
/// nothing.
TEST(SimtEdges, ids_outside_the_table_are_nan) {
  for (const double wrong : {-1.0, 5.0, 1e9}) {
    Operand tokens = ids({1, 4}, 5);
    tokens.values[2] = wrong;
    const Case one{.operands = {tokens, input(DType::fp32, {5, 6}), input(DType::fp32, {4, 6}),
                                output(DType::fp32, {1, 4, 6}, {}), output(DType::fp32, {4, 5}, {}),
                                output(DType::fp32, {4}, {}), in_out(DType::fp32, {5, 6}, {})}};
    const Memories memories(one);
    const Tensors& t = memories.tensors();
    const std::string before(static_cast<const char*>(t[6].data), t[6].bytes());
    Arena arena;
    simt::Queue queue;
    Stream stream(arena, 1, &queue);
    const Kernels& kernels = cuda_simt::table();
    kernels.fill(stream, {t[3], 1});
    kernels.fill(stream, {t[4], 1});
    kernels.embedding_backward(stream, {t[0], t[3], t[6], t[2]});
    kernels.embedding(stream, {t[0], t[1], t[2], t[3]});
    kernels.cross_entropy(stream, {t[4], t[0].reshaped({4}), t[5], t[4]});
    stream.synchronize();
    for (int64_t i = 0; i < 24; ++i) {
      EXPECT_EQ(std::isnan(read(t[3], i)), i / 6 == 2) << i;
      EXPECT_EQ(i < 20 && std::isnan(read(t[4], i)), i / 5 == 2) << i;
    }
    EXPECT_TRUE(std::isnan(read(t[5], 2)));
    EXPECT_FALSE(std::isnan(read(t[5], 1)));
    double added = 0;
    for (int64_t i = 0; i < 30; ++i) {
      float old = 0;
      std::memcpy(&old, before.data() + 4 * i, sizeof old);
      added += read(t[6], i) - old;
    }
    EXPECT_NEAR(added, 18, 1e-5);  // three rows of six ones
  }
}

TEST(SimtEdges, heads_that_are_too_wide_are_refused) {
  Arena arena;
  simt::Queue queue;
  Stream stream(arena, 1, &queue);
  const Buffer qkv = arena.allocate(Memory::scratch, "qkv", DType::fp32, {1, 2, 3 * 260});
  const Buffer out = arena.allocate(Memory::scratch, "out", DType::fp32, {1, 2, 260});
  const Buffer lse = arena.allocate(Memory::scratch, "lse", DType::fp32, {1, 1, 2});
  EXPECT_THROW(cuda_simt::table().attention(stream, {qkv.tensor(), out.tensor(), lse.tensor(), 1}),
               Failure);
}

}  // namespace
}  // namespace espalier::kernels::edges_test
