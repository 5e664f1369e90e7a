// Defects found by reading torch_cgx (fa9116c), each as a test that our code passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "parallel/reduction/buckets.h"
#include "parallel/reduction/registry.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "tests/parallel/rank_gradients.h"

namespace espalier::parallel::cgx_defects_test {
namespace {

kernels::WireFormat format(const std::string& codec) {
  return format_of(parallel::parse_codec(codec));
}

std::vector<std::byte> encoded(const std::vector<float>& x, const kernels::WireFormat& code,
                               uint64_t key) {
  Arena arena;
  Stream stream(arena, 1);
  std::vector<float> copy = x;
  std::vector<std::byte> out(kernels::wire_bytes(code, static_cast<int64_t>(x.size())));
  kernels::by_name("cpu").encode(stream,
                                 {.x = flat_of(copy), .wire = out, .format = code, .key = key});
  return out;
}

/// 1. The last fused group was never sent, nor anything after a layer larger than the fusion
/// buffer.
TEST(CgxDefects, LayersAfterAnOversizeOneAndTheLastGroupAreReduced) {
  run_ranks(3, [](Communicator& comm) {
    const std::vector<int64_t> ends{100, 50'000, 50'010, 50'200, 50'205};
    Arena arena;
    Stream stream(arena, 1);
    Wire wire(kernels::by_name("cpu"), stream);
    std::vector<WireSegment> segments;
    for (int64_t first = 0; const int64_t end : ends) {
      segments.push_back({.first = first, .count = end - first, .format = format("fp16")});
      first = end;
    }
    wire.set_segments(segments);
    HostBuckets buckets(comm, arena);
    std::vector<float> x(static_cast<size_t>(ends.back()), 1.0F + static_cast<float>(comm.rank()));
    buckets.begin(all_reduce_step(flat_of(x), ends, 1024, {.wire = &wire}));
    buckets.finish();
    EXPECT_EQ(std::ranges::count(x, 6.0F), ends.back());
  });
}

/// 2. The leader of a machine kept its unquantised values, while the others got quantised ones:
/// reduction_mpi_test.cpp compares the bits of all ranks in every reduction.

/// 3. The build with random rounding wrote its states outside their buffer and seeded them by the
/// clock, so ranks could share their noise.
TEST(CgxDefects, RandomRoundingIsAPureFunctionOfItsKeyAndWritesItsMessageOnly) {
  const std::vector<float> x = values(0, 1, 3'001);
  const kernels::WireFormat code = format("maxmin:4");
  EXPECT_EQ(encoded(x, code, 5), encoded(x, code, 5));
  EXPECT_NE(encoded(x, code, 5), encoded(x, code, 6));
  constexpr size_t kGuard = 64;
  constexpr auto kMark = std::byte{0xA5};
  const size_t bytes = kernels::wire_bytes(code, 3'001);
  std::vector<std::byte> buffer(bytes + 2 * kGuard, kMark);
  Arena arena;
  Stream stream(arena, 1);
  std::vector<float> copy = x;
  kernels::by_name("cpu").encode(stream, {.x = flat_of(copy),
                                          .wire = std::span(buffer).subspan(kGuard, bytes),
                                          .format = code,
                                          .key = 7});
  EXPECT_EQ(std::ranges::count(std::span(buffer).first(kGuard), kMark), kGuard);
  EXPECT_EQ(std::ranges::count(std::span(buffer).last(kGuard), kMark), kGuard);
}

/// 4. Setting the bucket size also set the bits.
TEST(CgxDefects, BitsAndBucketsAreSetApart) {
  const kernels::WireFormat both = format("maxmin:3:64");
  EXPECT_EQ(both.bits, 3);
  EXPECT_EQ(both.bucket, 64);
  EXPECT_EQ(format_of({.name = "maxmin", .bucket = 64}).bits, format("maxmin").bits);
  EXPECT_EQ(format_of({.name = "maxmin", .bits = 3}).bucket, format("maxmin").bucket);
}

/// 5. Names of shared memory did not contain the job's number: two jobs on one machine collided.
TEST(CgxDefects, TwoJobsAtOnceDoNotMeet) {
  const auto job = [](float mine) {
    run_ranks(2, [mine](Communicator& comm) {
      Arena arena;
      const auto reduction = make_reduction("sra", comm, arena);
      for (int step = 0; step < 50; ++step) {
        std::vector<float> x(5'000, mine);
        reduction->start({.data = flat_of(x), .number = step});
        reduction->wait(comm);
        ASSERT_EQ(std::ranges::count(x, 2 * mine), 5'000);
      }
    });
  };
  std::jthread other([&] { job(3); });
  job(1);
}

/// 6. A counter counted every all-reduce of the program as a gradient bucket.
TEST(CgxDefects, OtherSumsBetweenBucketsChangeNothing) {
  run_ranks(2, [](Communicator& comm) {
    Arena arena;
    HostBuckets buckets(comm, arena);
    const std::vector<int64_t> ends{1'000, 2'000, 3'000};
    std::vector<float> x = values(comm.rank(), 4, 3'000);
    buckets.begin(all_reduce_step(flat_of(x), ends, 4'000));
    for (const int64_t end : ends) {
      buckets.ready(end);
      double one = 1;
      all_reduce_small(comm, {&one, 1}, Combine::sum);
      EXPECT_EQ(one, 2);
      const auto reduction = make_reduction("sra", comm, arena);
      std::vector<float> more(777, 1.0F);
      reduction->start({.data = flat_of(more), .number = 500 + static_cast<int>(end)});
      reduction->wait(comm);
      EXPECT_EQ(std::ranges::count(more, 2.0F), 777);
    }
    buckets.finish();
    EXPECT_TRUE(same_bits(x, expected_sum(2, 4, 3'000)));
  });
}

}  // namespace
}  // namespace espalier::parallel::cgx_defects_test
