// The harness itself: permitted actions of kernels work, and work runs only on a wait.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/simt/both_orders.h"

namespace espalier::kernels::ESPALIER_GPU::harness_test {
namespace {

using simt::Event;
using simt::Order;

constexpr unsigned kAll = 0xffffffffU;

class Harness : public BothOrders {};
ESPALIER_BOTH_ORDERS(Harness);

__global__ void add_one(int* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    x[i] += 1;
  }
}

TEST_P(Harness, nothing_happens_before_somebody_waits) {
  std::vector<int> x(1000, 5);
  launch(add_one, {.name = "add_one", .grid = 4}, stream_, x.data(), 1000);
  EXPECT_EQ(x[0], 5);
  EXPECT_EQ(queue_.waiting(), 1);
  stream_.synchronize();
  EXPECT_EQ(x, std::vector<int>(1000, 6));
  EXPECT_EQ(queue_.waiting(), 0);
  EXPECT_EQ(queue_.synchronized(), 1);
}

TEST_P(Harness, copies_and_fills_wait_and_read_late) {
  std::vector<int> x(10, 1), y(10, 2);
  queue_.copy(y.data(), x.data(), 40);
  queue_.fill(x.data(), 0, 20);
  x[9] = 7;
  EXPECT_EQ(y[0], 2);
  stream_.synchronize();
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[9], 7);
  EXPECT_EQ(x[0] + x[4], 0);
  EXPECT_EQ(x[5], 1);
}

/// Sum of a block by shuffles and shared memory.
__global__ void block_sum(const int* x, int n, int* sums) {
  __shared__ int parts[32];
  const unsigned t = threadIdx.x;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + t);
  int sum = i < n ? x[i] : 0;
  for (unsigned step = 16; step > 0; step /= 2) {
    sum += __shfl_down_sync(kAll, sum, step);
  }
  if (t % 32 == 0) {
    parts[t / 32] = sum;
  }
  __syncthreads();
  if (t == 0) {
    int total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) {
      total += parts[w];
    }
    sums[blockIdx.x] = total;
  }
}

TEST_P(Harness, blocks_reduce) {
  std::vector<int> x(1000), sums(4);
  std::iota(x.begin(), x.end(), 0);
  launch(block_sum, {.name = "block_sum", .grid = 4}, stream_, x.data(), 1000, sums.data());
  stream_.synchronize();
  EXPECT_EQ(sums, (std::vector<int>{32640, 98176, 163712, 204972}));
}

/// y = x reversed within a block, in dynamic shared memory.
template <bool kBarrier>
__global__ void turn_round(const int* x, int* y) {
  int* staged = dynamic_shared<int>();
  staged[threadIdx.x] = x[threadIdx.x];
  if constexpr (kBarrier) {
    __syncthreads();
  }
  y[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}

TEST_P(Harness, dynamic_shared_memory_and_a_missing_barrier) {
  std::vector<int> x(128), turned(128), right(128);
  std::iota(x.begin(), x.end(), 0);
  std::reverse_copy(x.begin(), x.end(), right.begin());
  const Launch shape{.name = "turn_round", .block = 128, .shared_bytes = 128 * sizeof(int)};
  launch(turn_round<true>, shape, stream_, x.data(), turned.data());
  stream_.synchronize();
  EXPECT_EQ(turned, right);
  launch(turn_round<false>, shape, stream_, x.data(), turned.data());
  stream_.synchronize();
  EXPECT_NE(turned, right);  // half of them were read before they were written: all bits set
  EXPECT_EQ(std::count(turned.begin(), turned.end(), -1), 64);
}

/// Each thread reads its neighbour's value: correct only if the neighbour runs later.
__global__ void shift_without_barrier(int* x) {
  __shared__ int staged[65];
  staged[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  const int next = threadIdx.x < 63 ? staged[threadIdx.x + 1] : 0;
  // Here one is missing.
  staged[threadIdx.x] = -1;
  x[threadIdx.x] = next;
}

TEST(Orders, one_of_them_finds_what_the_other_forgives) {
  std::vector<std::vector<int>> results;
  for (const Order order : {Order::ascending, Order::descending}) {
    Arena arena;
    DeviceQueue queue(order);
    Stream stream(arena, 1, &queue);
    std::vector<int> x(64);
    std::iota(x.begin(), x.end(), 0);
    launch(shift_without_barrier, {.name = "shift", .block = 64}, stream, x.data());
    stream.synchronize();
    results.push_back(x);
  }
  EXPECT_NE(results[0], results[1]);
}

__global__ void who_am_i(int* numbers) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  __syncthreads();
  numbers[block * threads + thread] += static_cast<int>(100 * block + thread);
}

TEST_P(Harness, grids_and_blocks_have_three_extents) {
  std::vector<int> numbers(2 * 3 * 4 * 30);
  launch(who_am_i, {.name = "who_am_i", .grid = dim3(2, 3, 4), .block = dim3(5, 3, 2)}, stream_,
         numbers.data());
  stream_.synchronize();
  for (int i = 0; i < 720; ++i) {
    EXPECT_EQ(numbers[static_cast<size_t>(i)], i / 30 * 100 + i % 30);
  }
}

__global__ void lanes(unsigned* out) {
  const unsigned t = threadIdx.x;
  out[t] = __shfl_sync(kAll, 10 * t, 3);
  out[32 + t] = __shfl_up_sync(kAll, 10 * t, 2U);
  out[64 + t] = __shfl_down_sync(kAll, 10 * t, 5U, 8);
  out[96 + t] = __shfl_xor_sync(kAll, 10 * t, 16);
  out[128 + t] = __ballot_sync(kAll, t % 3 == 0);
  out[160 + t] = __match_any_sync(kAll, t % 5);
  out[192 + t] = static_cast<unsigned>(__any_sync(kAll, t == 7)) +
                 2U * static_cast<unsigned>(__all_sync(kAll, t < 31));
  const double wide = __shfl_sync(kAll, 0.5 * t, 4, 16);
  out[224 + t] = static_cast<unsigned>(2 * wide);
}

TEST_P(Harness, lanes_exchange_values) {
  std::vector<unsigned> out(256);
  launch(lanes, {.name = "lanes", .block = 32}, stream_, out.data());
  stream_.synchronize();
  for (unsigned t = 0; t < 32; ++t) {
    EXPECT_EQ(out[t], 30U);
    EXPECT_EQ(out[32 + t], 10 * (t < 2 ? t : t - 2));
    EXPECT_EQ(out[64 + t], 10 * (t % 8 + 5 < 8 ? t + 5 : t));
    EXPECT_EQ(out[96 + t], 10 * (t ^ 16U));
    EXPECT_EQ(out[128 + t], 0x49249249U);
    EXPECT_EQ(out[160 + t] >> t & 1U, 1U);
    EXPECT_EQ(std::popcount(out[160 + t]), t % 5 < 2 ? 7 : 6);
    EXPECT_EQ(out[192 + t], 1U);
    EXPECT_EQ(out[224 + t], t / 16 * 16 + 4);
  }
}

__global__ void half_warps(unsigned* out) {
  const unsigned t = threadIdx.x;
  const unsigned mask = t < 16 ? 0xffffU : 0xffff0000U;
  out[t] = __shfl_xor_sync(mask, t, 1) + __ballot_sync(mask, t % 2 == 0);
}

TEST_P(Harness, parts_of_a_warp_meet_by_themselves) {
  std::vector<unsigned> out(32);
  launch(half_warps, {.name = "half_warps", .block = 32}, stream_, out.data());
  stream_.synchronize();
  EXPECT_EQ(out[2], 3U + 0x5555U);
  EXPECT_EQ(out[17], 16U + 0x55550000U);
}

__global__ void count(int* total, unsigned long long* most) {
  atomicAdd(total, 1);
  atomicMax(most, 1ULL * threadIdx.x);
}

TEST_P(Harness, atomics) {
  int total = 0;
  unsigned long long most = 0;
  launch(count, {.name = "count", .grid = 7, .block = 100}, stream_, &total, &most);
  stream_.synchronize();
  EXPECT_EQ(total, 700);
  EXPECT_EQ(most, 99U);
}

TEST_P(Harness, queues_are_ordered_by_events_alone) {
  Arena arena;
  DeviceQueue other(GetParam());
  Stream second(arena, 1, &other);
  std::vector<int> x(256, 1), y(256, 0), z(256, 0);
  launch(add_one, {.name = "add_one", .grid = 1}, stream_, x.data(), 256);
  other.copy(z.data(), x.data(), 1024);  // no wait: old values
  Event added;
  queue_.record(added);
  launch(add_one, {.name = "add_one", .grid = 1}, stream_, x.data(), 256);
  other.wait(added);
  other.copy(y.data(), x.data(), 1024);
  second.synchronize();
  EXPECT_EQ(z[0], 1);
  EXPECT_EQ(y[0], 2);  // work after the event has not run yet
  EXPECT_EQ(queue_.waiting(), 1);
  stream_.synchronize();
  EXPECT_EQ(x[0], 3);
  added.synchronize();
  Event never;
  never.synchronize();
}

TEST_P(Harness, a_growing_workspace_waits_for_its_users) {
  auto* x = reinterpret_cast<int*>(stream_.workspace(1024));
  launch(add_one, {.name = "add_one", .grid = 1}, stream_, x, 256);
  EXPECT_EQ(stream_.workspace(512), reinterpret_cast<std::byte*>(x));
  EXPECT_EQ(queue_.waiting(), 1);
  stream_.workspace(4096);
  EXPECT_EQ(queue_.waiting(), 0);
}

TEST_P(Harness, constants_are_copied_once) {
  const std::vector<int> table{1, 2, 3};
  const void* copy = queue_.constant(table.data(), 12);
  EXPECT_EQ(queue_.constant(table.data(), 12), copy);
  EXPECT_EQ(queue_.waiting(), 1);
  stream_.synchronize();
  EXPECT_EQ(static_cast<const int*>(copy)[2], 3);
}

TEST(Launch, needs_a_queue_of_this_device) {
  Arena arena;
  Stream plain(arena, 1);
  int x = 0;
  EXPECT_THROW(launch(add_one, {.name = "add_one"}, plain, &x, 1), Bug);
}

TEST_P(Harness, no_blocks_are_nothing) {
  launch(add_one, {.name = "add_one", .grid = 0}, stream_, nullptr, 0);
  EXPECT_EQ(queue_.enqueued(), 0);
}

}  // namespace
}  // namespace espalier::kernels::ESPALIER_GPU::harness_test
