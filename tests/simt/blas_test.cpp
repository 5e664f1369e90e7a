// Dense products through cuBLASLt: fused operations, separate operations after it, bits of results,
// and one algorithm query per product.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "src/kernels/cuda/dense/blas_cublaslt.h"
#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_case.h"
#include "tests/kernels/kernel_reference.h"
#include "tests/simt/queue.h"

namespace espalier::kernels::blas_test {
namespace {

constexpr DType kFp32 = DType::fp32;
constexpr DType kBf16 = DType::bf16;

class Products : public ::testing::Test {
 protected:
  Tensor make(DType dtype, const Shape& shape, double low = -1, double high = 1) {
    buffers_.push_back(arena_.allocate(Memory::scratch, "operand", dtype, shape));
    write_all(operand(dtype, shape, low, high), buffers_.back().tensor());
    return buffers_.back().tensor();
  }
  /// Kernels and library products that the call enqueues.
  int64_t run(const GemmArgs& args) {
    const int64_t before = queue_.enqueued();
    cuda_simt::table().gemm(stream_, args);
    const int64_t enqueued = queue_.enqueued() - before;
    stream_.synchronize();
    return enqueued;
  }

  Arena arena_;
  std::vector<Buffer> buffers_;
  simt::Queue queue_;
  Stream stream_{arena_, 1, &queue_};
};

/// The largest error of c against a b f'(x), relative to the correct value.
double error(const GemmArgs& args) {
  double worst = 0;
  for (int64_t i = 0; i < args.c.rows(); ++i) {
    for (int64_t j = 0; j < args.c.cols(); ++j) {
      double sum = 0;
      for (int64_t l = 0; l < args.a.cols(); ++l) {
        sum += read(args.a, i * args.a.cols() + l) * read(args.b, l * args.b.cols() + j);
      }
      const int64_t at = i * args.c.cols() + j;
      const double right =
          sum * reference::activation_slope(args.activation, read(args.preactivation, at));
      worst = std::max(worst, std::fabs(read(args.c, at) - right) / (std::fabs(right) + 1e-3));
    }
  }
  return worst;
}

TEST_F(Products, take_the_slope_of_gelu_along_and_round_once) {
  GemmArgs args{.a = make(kBf16, {64, 32}),
                .b = make(kBf16, {32, 48}),
                .c = make(kBf16, {64, 48}),
                .activation = Activation::gelu,
                .preactivation = make(kBf16, {64, 48}, -3, 3)};
  EXPECT_EQ(run(args), 1);
  const double once = error(args);
  EXPECT_LE(once, 0x1p-8 * 1.01);
  // An address that the library rejects: product first, rounded, and then the slope.
  const Tensor longer = make(kBf16, {64 * 48 + 1}, -3, 3);
  args.preactivation = longer.elements(1, 64 * 48).reshaped({64, 48});
  EXPECT_EQ(run(args), 2);
  EXPECT_GT(error(args), 1.2 * once);
  // Our own kernels compute other functions and types.
  args.activation = Activation::relu;
  args.preactivation = make(kBf16, {64, 48}, -3, 3);
  EXPECT_EQ(run(args), 2);
  EXPECT_EQ(run({.a = make(kFp32, {64, 32}),
                 .b = make(kFp32, {32, 48}),
                 .c = make(kFp32, {64, 48}),
                 .activation = Activation::gelu,
                 .preactivation = make(kFp32, {64, 48}, -3, 3)}),
            2);
}

TEST_F(Products, activate_what_they_stored) {
  const GemmArgs args{.a = make(kBf16, {64, 32}),
                      .b = make(kBf16, {48, 32}),
                      .c = make(kBf16, {64, 48}),
                      .bias = make(kFp32, {48}),
                      .transpose_b = true,
                      .activation = Activation::gelu,
                      .activated = make(kBf16, {64, 48})};
  EXPECT_EQ(run(args), 3);  // the bias in bf16, the product, the activation
  const Tensor again = make(kBf16, {64, 48});
  cuda_simt::table().activation(stream_, {.kind = Activation::gelu, .x = args.c, .y = again});
  stream_.synchronize();
  for (int64_t i = 0; i < again.count(); ++i) {
    ASSERT_EQ(read(again, i), read(args.activated, i)) << i;
  }
}

TEST_F(Products, bring_the_gradient_of_a_bias) {
  GemmArgs args{.a = make(kBf16, {64, 32}),
                .b = make(kBf16, {64, 48}),
                .c = make(kBf16, {32, 48}),
                .transpose_a = true,
                .row_sums = make(kBf16, {32})};
  EXPECT_EQ(run(args), 1);
  args.accumulate_sums = true;
  EXPECT_EQ(run(args), 2);  // from the workspace
  args.row_sums = make(kFp32, {32});
  EXPECT_GT(run(args), 1);  // not rounded to bf16 on the way
  args.c = make(kFp32, {32, 48});
  args.row_sums = make(kBf16, {32});
  EXPECT_EQ(run(args), 2);
  // The library cannot fuse the sums into this product.
  args.a = make(kBf16, {63, 32});
  args.b = make(kBf16, {63, 48});
  EXPECT_GT(run(args), 1);
}

TEST_F(Products, read_the_residual_stream_and_write_beside_it) {
  const Tensor x = make(kFp32, {32, 48});
  const GemmArgs args{.a = make(kBf16, {32, 64}),
                      .b = make(kBf16, {48, 64}),
                      .c = make(kFp32, {32, 48}),
                      .addend = x,
                      .bias = make(kFp32, {48}),
                      .transpose_b = true};
  EXPECT_EQ(run(args), 1) << "no copy of x, no pass for the bias";
  GemmArgs onto = args;  // the same sum, accumulated onto a copy
  onto.addend = {};
  onto.accumulate = true;
  onto.c = make(kFp32, {32, 48});
  std::memcpy(onto.c.data, x.data, static_cast<size_t>(x.count()) * sizeof(float));
  run(onto);
  for (int64_t i = 0; i < x.count(); ++i) {
    ASSERT_EQ(read(args.c, i), read(onto.c, i));
  }
}

TEST_F(Products, add_a_bias_that_the_library_refuses) {
  struct Extents {
    int64_t n, k;
  };
  for (const DType dtype : {kFp32, kBf16}) {
    // No algorithm exists: the library refuses the call, and it is not tried again.
    for (const Extents e : {Extents{1, 24}, Extents{48, 1}}) {
      const GemmArgs args{.a = make(dtype, {16, e.k}),
                          .b = make(dtype, {e.k, e.n}),
                          .c = make(dtype, {16, e.n}),
                          .bias = make(kFp32, {e.n})};
      for (int run_number = 0; run_number < 2; ++run_number) {
        EXPECT_EQ(run(args), dtype == kBf16 ? 3 : 2) << "the bias in bf16, product, bias";
        for (int64_t i = 0; i < args.c.count(); ++i) {
          double right = read(args.bias, i % e.n);
          for (int64_t l = 0; l < e.k; ++l) {
            right += read(args.a, i / e.n * e.k + l) * read(args.b, l * e.n + i % e.n);
          }
          const double rounding = dtype == kBf16 ? 0x1p-7 : 1e-5;
          ASSERT_NEAR(read(args.c, i), right, rounding * (std::fabs(right) + 1));
        }
      }
    }
  }
}

/// A product of a matrix with itself has the operands' rounding error, and only where TF32 is
/// allowed.
TEST_F(Products, round_operands_to_tf32_on_request) {
  const auto largest_error = [&](DType dtype, bool allowed) {
    const GemmArgs args{.a = make(dtype, {1, 48}, 0.5, 1),
                        .b = make(dtype, {48, 1}, 0.5, 1),
                        .c = make(kFp32, {1, 1})};
    stream_.allow_tf32(allowed);
    run(args);
    stream_.allow_tf32(false);
    double sum = 0;
    for (int64_t l = 0; l < 48; ++l) {
      sum += read(args.a, l) * read(args.b, l);
    }
    return std::fabs(read(args.c, 0) / sum - 1);
  };
  EXPECT_LT(largest_error(kFp32, false), 1e-6);
  EXPECT_GT(largest_error(kFp32, true), 1e-6);
  EXPECT_LT(largest_error(kFp32, true), 0x1p-10);
  EXPECT_LT(largest_error(kBf16, true), 1e-6);
}

TEST_F(Products, choose_an_algorithm_once) {
  const Context& library = *cuda_simt::blas_queue(stream_).blas.handle();
  const int64_t before = library.choices;
  GemmArgs args{.a = make(kBf16, {88, 56}), .b = make(kBf16, {56, 72}), .c = make(kBf16, {88, 72})};
  run(args);
  run(args);
  args.c = make(kBf16, {88, 72});
  run(args);
  EXPECT_EQ(library.choices, before + 1);
  args.accumulate = true;
  run(args);
  EXPECT_EQ(library.choices, before + 2);
}

class ProductsByTheClock : public Products {
 protected:
  /// Arguments of a product with c [24, n].
  GemmArgs product(int64_t n, bool accumulate = false) {
    return {.a = make(kFp32, {24, 16}),
            .b = make(kFp32, {16, n}),
            .c = make(kFp32, {24, n}),
            .accumulate = accumulate};
  }
  /// Time of the call on the library's clock; checks the result.
  double seconds(const GemmArgs& args) {
    std::vector<double> want;
    for (int64_t i = 0; i < args.c.count(); ++i) {
      double sum = args.accumulate ? read(args.c, i) : 0;
      for (int64_t l = 0; l < args.a.cols(); ++l) {
        sum += read(args.a, i / args.c.cols() * args.a.cols() + l) *
               read(args.b, l * args.c.cols() + i % args.c.cols());
      }
      want.push_back(sum);
    }
    const Context& library = *cuda_simt::blas_queue(stream_).blas.handle();
    const double before = library.seconds;
    run(args);
    for (int64_t i = 0; i < args.c.count(); ++i) {
      EXPECT_NEAR(read(args.c, i), want[i], 1e-5);
    }
    return library.seconds - before;
  }

  static constexpr double kFirst = 3e-6, kFastest = 1e-6, kTrials = 15e-6, kNear = 1e-9;
};

TEST_F(ProductsByTheClock, take_the_fastest_algorithm_on_request) {
  EXPECT_NEAR(seconds(product(40)), kFirst, kNear);
  ASSERT_EQ(setenv("ESPALIER_TUNE_PRODUCTS", "1", 1), 0);
  EXPECT_GT(seconds(product(48)), kTrials);
  ASSERT_EQ(unsetenv("ESPALIER_TUNE_PRODUCTS"), 0);
  EXPECT_NEAR(seconds(product(48)), kFastest, kNear);
  EXPECT_NEAR(seconds(product(40)), kFirst, kNear) << "what is chosen stays";
}

TEST_F(ProductsByTheClock, take_it_where_bits_need_not_repeat) {
  stream_.set_deterministic(false);
  EXPECT_GT(seconds(product(56)), kTrials);
  EXPECT_NEAR(seconds(product(56)), kFastest, kNear);
  stream_.set_deterministic(true);
  EXPECT_NEAR(seconds(product(56)), kFirst, kNear) << "in the same process";
  stream_.set_deterministic(false);
  EXPECT_NEAR(seconds(product(56)), kFastest, kNear);
  ASSERT_EQ(setenv("ESPALIER_TUNE_PRODUCTS", "0", 1), 0);
  EXPECT_NEAR(seconds(product(64)), kFirst, kNear);
  ASSERT_EQ(unsetenv("ESPALIER_TUNE_PRODUCTS"), 0);
}

/// A result that is accumulated has no second c for trials: nothing may be added twice.
TEST_F(ProductsByTheClock, do_not_try_what_is_added_to) {
  stream_.set_deterministic(false);
  EXPECT_NEAR(seconds(product(72, true)), kFirst, kNear);
  EXPECT_GT(seconds(product(80)), kTrials);
  EXPECT_NEAR(seconds(product(80, true)), kFastest, kNear) << "that of the first micro-batch";
}

/// The library uses the workspace for which algorithms were chosen, and no other memory.
TEST_F(ProductsByTheClock, need_no_memory) {
  const auto peak = [&](bool deterministic) {
    const GemmArgs args{
        .a = make(kBf16, {128, 32}), .b = make(kBf16, {32, 256}), .c = make(kFp32, {128, 256})};
    Arena arena;
    Stream stream(arena, 1, &queue_);
    stream.set_deterministic(deterministic);
    cuda_simt::gemm(stream, args);
    stream.synchronize();
    return arena.total().peak;
  };
  EXPECT_EQ(peak(false), peak(true));
}

}  // namespace
}  // namespace espalier::kernels::blas_test
