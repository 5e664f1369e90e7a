// Rules of tensor cores and asynchronous copies that the harness enforces. Tests of products and
// attention against their references show that it computes correctly.
#include "src/kernels/cuda/simt/mma.h"

#include <algorithm>

#include "tests/simt/both_orders.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::ESPALIER_GPU::mma_test {
namespace {

using simt::Violation;
using ::testing::ThrowsMessage;

class TensorCore : public BothOrders {
 protected:
  template <class... Params, class... Arguments>
  void run(void (*kernel)(Params...), unsigned threads, const Arguments&... arguments) {
    launch(kernel, {.name = "tested", .block = threads, .shared_bytes = 4096}, stream_,
           arguments...);
    stream_.synchronize();
  }
  template <class Kernel>
  void expect_violation(Kernel kernel, const std::string& what, unsigned threads = 32) {
    alignas(16) uint16_t x[64] = {};
    EXPECT_THAT([&] { run(kernel, threads, static_cast<uint16_t*>(x)); },
                ThrowsMessage<Violation>(HasSubstr(what)));
  }
};
ESPALIER_BOTH_ORDERS(TensorCore);

/// Thread t reads what thread t + 1 has copied.
template <bool kWait, bool kBarrier>
__global__ void read_neighbour(const uint16_t* from, uint16_t* to) {
  auto* const shared = dynamic_shared<uint16_t>();
  copy_async(shared + 8 * threadIdx.x, from + 8 * threadIdx.x);
  commit_copies();
  if constexpr (kWait) {
    wait_copies<0>();
  }
  if constexpr (kBarrier) {
    __syncthreads();
  }
  to[threadIdx.x] = shared[8 * ((threadIdx.x + 1) % blockDim.x)];
  wait_copies<0>();
}

TEST_P(TensorCore, a_forgotten_wait_or_barrier_is_seen) {
  const std::vector<uint16_t> from(512, 5);
  std::vector<uint16_t> to(64);
  const auto right = [&](auto kernel) {
    run(kernel, 64, from.data(), to.data());
    return std::count(to.begin(), to.end(), 5);
  };
  EXPECT_EQ((right(read_neighbour<true, true>)), 64);
  EXPECT_LT((right(read_neighbour<false, true>)), 64);
  EXPECT_LT((right(read_neighbour<true, false>)), 64);
}

__global__ void change_source(uint16_t* x) {
  auto* const shared = dynamic_shared<uint16_t>();
  copy_async(shared, x);
  commit_copies();
  x[0] = 9;
  wait_copies<0>();
  x[1] = shared[0];
}

TEST_P(TensorCore, the_source_is_read_late) {
  alignas(16) uint16_t x[8] = {1};
  run(change_source, 1, static_cast<uint16_t*>(x));
  EXPECT_EQ(x[1], 9);
}

__global__ void lane_stays_away(uint16_t*) {
  float c[4] = {};
  if (threadIdx.x != 7) {
    multiply_add<DType::bf16>(c, {}, {});
  }
}
__global__ void lane_does_another_thing(uint16_t*) {
  float c[4] = {};
  uint32_t r[4];
  if (threadIdx.x != 7) {
    multiply_add<DType::bf16>(c, {}, {});
  } else {
    load_matrices(r, dynamic_shared<uint16_t>());
  }
}
__global__ void load_misaligned(uint16_t*) {
  uint32_t r[2];
  load_matrices(r, dynamic_shared<uint16_t>() + (threadIdx.x == 5 ? 4 : 0));
}
__global__ void ignored_lane_is_misaligned(uint16_t*) {
  uint32_t r[2];
  load_matrices(r, dynamic_shared<uint16_t>() + (threadIdx.x == 16 ? 4 : 0));
}
__global__ void copy_from_misaligned(uint16_t* x) { copy_async(dynamic_shared<uint16_t>(), x + 1); }
__global__ void copy_to_misaligned(uint16_t* x) { copy_async(dynamic_shared<uint16_t>() + 4, x); }
__global__ void copy_too_much(uint16_t* x) { copy_async(dynamic_shared<uint16_t>(), x, 17); }
__global__ void never_waits(uint16_t* x) {
  copy_async(dynamic_shared<uint16_t>(), x);
  commit_copies();
  wait_copies<1>();
}

TEST_P(TensorCore, broken_rules_are_found) {
  expect_violation(lane_stays_away, "lane");
  expect_violation(lane_stays_away, "names lanes 0xfffffff0 that left or never were", 4);
  expect_violation(lane_does_another_thing, "in another operation");
  expect_violation(load_misaligned, "lane 5 names a row that is not at 16 bytes");
  alignas(16) uint16_t x[64] = {};
  run(ignored_lane_is_misaligned, 32, static_cast<uint16_t*>(x));
  expect_violation(copy_from_misaligned, "between addresses at 16 bytes");
  expect_violation(copy_to_misaligned, "between addresses at 16 bytes");
  expect_violation(copy_too_much, "copies 17 bytes");
  expect_violation(never_waits, "leaves before its asynchronous copies have arrived");
}

}  // namespace
}  // namespace espalier::kernels::ESPALIER_GPU::mma_test
