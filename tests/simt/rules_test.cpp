// The harness finds forbidden actions of kernels, in every order of threads.
#include "tests/simt/both_orders.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::ESPALIER_GPU::rules_test {
namespace {

using simt::Violation;
using ::testing::ThrowsMessage;

constexpr unsigned kAll = 0xffffffffU;

class Rules : public BothOrders {};
ESPALIER_BOTH_ORDERS(Rules);

/// Runs one block of 64 threads; returns the reported violation.
template <class Kernel>
void expect_violation(Stream& stream, Kernel kernel, const std::string& what) {
  launch(kernel, {.name = "wrong", .block = 64}, stream);
  EXPECT_THAT([&] { stream.synchronize(); }, ThrowsMessage<Violation>(HasSubstr(what)));
  EXPECT_THROW(
      {
        launch(kernel, {.name = "wrong", .block = 64}, stream);
        stream.synchronize();
      },
      Violation);
}

__global__ void nothing() {}
__global__ void some_leave() {
  if (threadIdx.x < 40) {
    __syncthreads();
  }
}
__global__ void absent_lane() {
  if (threadIdx.x % 32 != 5) {
    __shfl_down_sync(kAll, 1, 1U);
  }
}
__global__ void not_myself() { __ballot_sync(0xfffffffeU, 1); }
__global__ void outside_mask() {
  if (threadIdx.x % 32 < 16) {
    __shfl_xor_sync(0xffffU, 1, 16);
  }
}
__global__ void different_masks() { __shfl_sync(threadIdx.x % 32 == 3 ? 0x7fffffffU : kAll, 1, 0); }
__global__ void different_places() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else if (threadIdx.x != 50) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

TEST_P(Rules, broken_rules_are_found) {
  expect_violation(stream_, some_leave, "__syncthreads");
  expect_violation(stream_, absent_lane, "lane");
  expect_violation(stream_, not_myself, "is not named by its own mask");
  expect_violation(stream_, outside_mask, "which the mask 0xffff does not name");
  expect_violation(stream_, different_masks, "mask");
  expect_violation(stream_, different_places, "wait");
  expect_violation(stream_, some_leave, "kernel wrong, block (0, 0, 0), thread (");
}

TEST_P(Rules, a_warp_of_few_threads_has_no_more_lanes) {
  launch(absent_lane, {.name = "few", .block = 4}, stream_);
  EXPECT_THROW(stream_.synchronize(), Violation);
}

TEST_P(Rules, extents_that_no_device_has) {
  for (const Launch& shape :
       {Launch{.name = "wide", .block = 1025}, Launch{.name = "high", .grid = dim3(1, 65536)},
        Launch{.name = "deep", .grid = dim3(1, 1, 65536)},
        Launch{.name = "shared", .shared_bytes = 200000}}) {
    launch(nothing, shape, stream_);
    EXPECT_THROW(stream_.synchronize(), Bug) << shape.name;
  }
}

}  // namespace
}  // namespace espalier::kernels::ESPALIER_GPU::rules_test
