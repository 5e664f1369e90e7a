// Convolutions through the cuDNN layer, on the host's replacement for cuDNN: layouts, plans by
// shape, excluded engines, workspace; and the calls that products with patches compute.
#include <limits>

#include "tests/kernels/cudnn_way.h"
#include "tests/kernels/kernel_cases_window.h"
#include "tests/kernels/kernel_checks.h"
#include "tests/simt/cudnn_cases.h"
#include "tests/support/failure.h"

namespace espalier::kernels::convolution_test {
namespace {

using simt::cudnn_host;
using testing::ConvolutionWay;

constexpr std::array kParts{Convolved::forward, Convolved::input, Convolved::weight};

/// Windows of 3 x 3 over 2 images of 5 x 4 with 8 channels.
WindowCase small_shape(int64_t channels = 8) {
  return {.window = {.height = 5, .width = 4, .extent = 3, .padding = 1},
          .images = 2,
          .channels = channels};
}

/// Calls body(shape, out, part, dtype) for the shapes of the table and some with channels that are
/// multiples of 8; an odd `out` has a bias.
template <class Body>
void for_convolutions(const Body& body) {
  for (const DType dtype : {kFp32, kBf16, kFp16}) {
    for (const Convolved part : kParts) {
      for (const WindowCase& shape : window_shapes()) {
        if (shape.others == 0) {
          body(shape, 1 + shape.channels % 7 + 16 * (shape.images % 2), part, dtype);
        }
      }
      body(small_shape(), 16, part, dtype);
      WindowCase strided = small_shape(24);
      strided.window.stride = 2;
      strided.window.extent = 1;
      strided.window.padding = 0;
      body(strided, 8, part, dtype);
    }
  }
}

class Convolutions : public CudnnCases {
 protected:
  /// Each part of the shape is correct, in one cuDNN run or in none.
  void expect_runs(int64_t channels, int64_t out, DType dtype, int64_t runs) {
    for (const Convolved part : kParts) {
      expect_right(convolution_case(small_shape(channels), out, part, dtype));
      EXPECT_EQ(runs_, runs) << static_cast<int>(part);
    }
    buffers_.clear();
  }
};

/// cuDNN refuses only gradients of weights in 16 bits whose channels are not multiples of 8.
TEST_F(Convolutions, are_those_of_the_table) {
  int64_t refused = 0;
  for_convolutions([&](const WindowCase& shape, int64_t out, Convolved part, DType dtype) {
    expect_right(convolution_case(shape, out, part, dtype));
    const bool supported =
        part != Convolved::weight || dtype == kFp32 || (shape.channels % 8 == 0 && out % 8 == 0);
    EXPECT_EQ(runs_, supported ? 1 : 0) << shape.text();
    refused += 1 - runs_;
    buffers_.clear();
  });
  EXPECT_EQ(refused, 2 * std::ssize(window_shapes()) - 2);
  EXPECT_EQ(cudnn_host().tf32_runs, 0);
}

/// Products with patches have all properties of a kernel, too.
TEST_F(Convolutions, are_ours_on_request) {
  const ConvolutionWay way("own");
  for_convolutions([](const WindowCase& shape, int64_t out, Convolved part, DType dtype) {
    const Case one = convolution_case(shape, out, part, dtype);
    expect_reference(one, tested_tables().front(), expected(one),
                     tested_tables().front().most_elements);
  });
  EXPECT_EQ(cudnn_host().runs, 0);
  EXPECT_EQ(cudnn_host().plans, 0);
}

TEST_F(Convolutions, keep_a_plan_for_each_shape_and_type) {
  for (int again = 0; again < 2; ++again) {
    expect_runs(8, 16, kFp32, 1);
    expect_runs(8, 16, kBf16, 1);
    expect_runs(8, 24, kBf16, 1);
    expect_runs(16, 24, kBf16, 1);
  }
  EXPECT_EQ(cudnn_host().plans, 12);
  stream_.allow_tf32(true);
  expect_runs(8, 16, kBf16, 1);
  EXPECT_EQ(cudnn_host().plans, 12);
}

TEST_F(Convolutions, are_enqueued) {
  expect_enqueued(convolution_case(small_shape(), 16, Convolved::forward, kBf16), 2);
}

/// The first engines of the replacement vary in bits, round operands or partial sums, or transform
/// them; it refuses to run them.
TEST_F(Convolutions, round_fp32_operands_only_where_allowed) {
  for (const Convolved part : kParts) {
    Case one = convolution_case(small_shape(), 16, part, kFp32);
    expect_right(one);
    EXPECT_EQ(cudnn_host().tf32_runs, 0);
    stream_.allow_tf32(true);
    const std::vector<Values> want = expected(one);
    const Tensors rounded = run(one);
    EXPECT_NE(mismatch(one, rounded, want), "") << "rounded to TF32";
    for (Operand& operand : one.operands) {
      operand.tolerance.absolute = operand.tolerance.relative = 1e-2;
    }
    EXPECT_EQ(mismatch(one, rounded, want), "");
    EXPECT_EQ(std::exchange(cudnn_host().tf32_runs, 0), 1);
    stream_.allow_tf32(false);
  }
}

TEST_F(Convolutions, that_it_refuses_are_ours) {
  cudnn_host().refused_width = 24;
  expect_runs(24, 16, kBf16, 0);
  expect_runs(24, 16, kFp32, 0);
  EXPECT_EQ(cudnn_host().plans, 0);
  cudnn_host().broken_width = 16;
  expect_runs(16, 16, kBf16, 0);
  EXPECT_EQ(cudnn_host().plans, 3);
  expect_runs(16, 16, kBf16, 0);
  EXPECT_EQ(cudnn_host().plans, 3) << "a plan is tried once";
  cudnn_host().more_workspace = size_t{1} << 20;
  expect_runs(32, 16, kFp32, 0);
}

TEST_F(Convolutions, with_a_bias_that_it_refuses_are_ours) {
  cudnn_host().refuses_bias = true;
  for (const int64_t out : {17, 16}) {
    expect_right(convolution_case(small_shape(), out, Convolved::forward, kBf16));
    EXPECT_EQ(runs_, out == 17 ? 0 : 1);
  }
}

TEST_F(Convolutions, of_operands_that_are_not_aligned_are_ours) {
  expect_refused_unaligned(convolution_case(small_shape(), 16, Convolved::forward, kBf16));
}

TEST_F(Convolutions, without_the_library_are_ours) {
  cudnn_host().version = 0;
  expect_runs(8, 16, kBf16, 0);
}

TEST_F(Convolutions, of_no_images_compute_nothing) {
  WindowCase none = small_shape();
  none.images = 0;
  const Tensor x(nullptr, kBf16, {0, 8});
  const Tensor y(nullptr, kBf16, {0, 16});
  const Case one = convolution_case(small_shape(), 16, Convolved::forward, kBf16);
  const Tensor weight = memory(one)[1];
  cuda_simt::convolution(stream_,
                         {.window = none.window, .x = x, .weight = weight, .bias = {}, .y = y});
  EXPECT_EQ(cudnn_host().runs, 0);
}

TEST_F(Convolutions, say_why_where_the_library_is_demanded) {
  const ConvolutionWay cudnn("cudnn");
  expect_runs(8, 16, kBf16, 1);
  cudnn_host().broken_width = 16;
  EXPECT_EQ(
      failure_of([&] { run(convolution_case(small_shape(16), 24, Convolved::input, kBf16)); }),
      "ESPALIER_CONVOLUTION is cudnn, which does not support the gradient of a convolution's "
      "input of 2 images of 5 x 4 x 16 to 24 channels, window 3, stride 1, padding 1: cuDNN, "
      "run of engine 5: not supported (a width that is broken); set "
      "ESPALIER_CONVOLUTION=auto");
  cudnn_host().refused_width = 32;
  EXPECT_EQ(
      failure_of([&] { run(convolution_case(small_shape(32), 24, Convolved::weight, kFp32)); }),
      "ESPALIER_CONVOLUTION is cudnn, which does not support the gradient of a convolution's "
      "weight of 2 images of 5 x 4 x 32 to 24 channels, window 3, stride 1, padding 1: cuDNN "
      "has no plan for this graph (a width that is broken); set ESPALIER_CONVOLUTION=auto");
  const ConvolutionWay other("winograd");
  EXPECT_EQ(
      failure_of([&] { run(convolution_case(small_shape(), 16, Convolved::forward, kBf16)); }),
      "ESPALIER_CONVOLUTION is \"winograd\": set it to auto, own or cudnn");
}

/// A run requests the workspace of its plan, with cuDNN and with our own kernels.
TEST_F(Convolutions, have_the_workspace_of_plans) {
  for (const int64_t refused : {0, 8}) {
    cudnn_host().refused_width = refused;
    for (const Convolved part : kParts) {
      const Case one = convolution_case(small_shape(), 16, part, kBf16);
      expect_reference(one, tested_tables().front(), expected(one),
                       std::numeric_limits<int64_t>::max());
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::convolution_test
