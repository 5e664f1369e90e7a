// The harness itself: work runs only on a wait, and another order of threads gives other results
// where a barrier is missing. Tests of the kernels show that it computes correctly.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/simt/both_orders.h"

namespace espalier::kernels::ESPALIER_GPU::harness_test {
namespace {

using simt::Event;
using simt::Order;

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
