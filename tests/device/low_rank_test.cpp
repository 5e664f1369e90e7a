// Codec powersgd from device to device, as sums: the same bits and the same bytes sent as the
// reduction on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/powersgd/device.h"
#include "parallel/reduction/powersgd/reduction.h"
#include "parallel/reduction/registry.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "src/kernels/cuda/table.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/parallel/low_rank_array.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/simt/device.h"

namespace espalier::low_rank_test {
namespace {

using namespace parallel;

struct Sum {
  int ranks = 2;
  DType dtype = DType::fp32;
  std::string codec = "fp32";  ///< of the elements outside the matrices
  bool feedback = false;       ///< error feedback of these
  Phases phases = Phases::both;
  uint64_t key = 0;
  bool leaves = false;    ///< a matrix is sent uncompressed in the last step
  double bad = 0;         ///< value of the last rank in a matrix in the second step
  bool inactive = false;  ///< in the first step all matrices are sent uncompressed
  int64_t panel = kDevicePanel;
};

/// Result of one rank.
struct Result {
  std::vector<float> data, error, factors;
  int64_t bytes = 0;  ///< sent
};

void add(std::vector<float>& to, Stream& stream, const Tensor& from) {
  const Mirror mirror(stream, from);
  const Tensor& host = mirror.read().host();
  with_number(host.dtype, [&]<class Number>(Number) {
    for (const Number one : host.span<Number>()) {
      to.push_back(to_float(one));
    }
  });
}

void write(Stream& stream, const Tensor& to, std::span<const float> values) {
  const Mirror mirror(stream, to);
  with_number(to.dtype, [&]<class Number>(Number) {
    std::ranges::transform(values, mirror.host().get<Number>(),
                           [](float x) { return from_float<Number>(x); });
  });
  mirror.write();
}

std::vector<float> gradient(const Sum& sum, int rank, int step, const Mixed& mixed) {
  std::vector<float> x = values(rank, step, mixed.count);
  for (float& one : x) {
    one *= 0x1p-20F;
  }
  if (sum.bad != 0 && step == 1 && rank == sum.ranks - 1) {
    const LowRankMatrix& matrix = mixed.matrices.front();
    x[static_cast<size_t>(matrix.first + matrix.cols + 3)] = static_cast<float>(sum.bad);
  }
  return x;
}

/// Sets which matrices of `mixed` are sent as factors in this step, and the segments of the rest.
void set_step(const Sum& sum, int step, const Mixed& mixed, LowRank& low_rank, Wire& wire) {
  std::vector<LowRankMatrix> matrices = mixed.matrices;
  std::vector<WireSegment> segments =
      segments_of(mixed, format_of(parallel::parse_codec(sum.codec)));
  const auto as_it_is = [&](const LowRankMatrix& matrix) {
    segments.push_back(
        {.first = matrix.first, .count = matrix.count(), .format = plain_format(sum.dtype)});
  };
  low_rank.set_active(!sum.inactive || step > 0);
  if (sum.inactive && step == 0) {
    std::ranges::for_each(matrices, as_it_is);
  }
  if (sum.leaves && step == 2) {
    const LowRankMatrix& matrix = matrices[2];
    as_it_is(matrix);
    low_rank.set_released({{.first = matrix.first, .count = matrix.count()}});
    matrices.erase(matrices.begin() + 2);
  }
  std::ranges::sort(segments, {}, &WireSegment::first);
  low_rank.set_matrices(matrices);
  wire.set_segments(std::move(segments));
  wire.set_key(sum.key == 0 ? 0 : mix(sum.key, static_cast<uint64_t>(step)));
}

/// Three steps; `reduce(job)` does one.
template <class Reduce>
Result results(const Sum& sum, Communicator& comm, Stream& stream, LowRank& low_rank, Wire& wire,
               const Reduce& reduce) {
  const Mixed mixed = mixed_array();
  const Buffer data = stream.arena().allocate(Memory::gradient, "x", sum.dtype, Shape{mixed.count});
  const Buffer error =
      stream.arena().allocate(Memory::communication, "e", DType::fp32, Shape{mixed.count});
  std::vector<int64_t> edges{0};
  for (int rank = 1; rank < sum.ranks; ++rank) {
    edges.push_back(mixed.count * rank / sum.ranks + 11);
  }
  edges.push_back(mixed.count);
  low_rank.set_feedback(error.tensor());
  if (sum.feedback) {
    wire.set_feedback(error.tensor());
  }
  Result result;
  const int64_t before = comm.sent(Traffic::allreduce).bytes;
  for (int step = 0; step < 3; ++step) {
    write(stream, data.tensor(), gradient(sum, comm.rank(), step, mixed));
    set_step(sum, step, mixed, low_rank, wire);
    reduce(SliceJob{.data = data.tensor(),
                    .phases = sum.phases,
                    .edges = sum.phases == Phases::both ? std::span<const int64_t>() : edges,
                    .wire = &wire});
    if (sum.phases == Phases::both) {
      add(result.data, stream, data.tensor());
    } else {  // the other elements are undefined
      const int64_t first = edges[comm.rank()];
      add(result.data, stream, data.tensor().elements(first, edges[comm.rank() + 1] - first));
      for (const LowRankMatrix& matrix : low_rank.matrices()) {
        if (low_rank.holds(matrix.first)) {
          add(result.data, stream, data.tensor().elements(matrix.first, matrix.count()));
        }
      }
    }
    add(result.error, stream, error.tensor());
  }
  result.bytes = comm.sent(Traffic::allreduce).bytes - before;
  for (const LowRankMatrix& matrix : low_rank.matrices()) {
    add(result.factors, low_rank.stream(), low_rank.factor(matrix));
  }
  return result;
}

Result on_cpu(const Sum& sum, Communicator& comm) {
  Arena arena;
  Stream stream(arena, 1);
  const kernels::Kernels& table = kernels::by_name("cpu");
  LowRank low_rank(table, stream);
  Wire wire(table, stream);
  LowRankReduction reduction(comm, arena, low_rank, make_reduction("sra", comm, arena));
  return results(sum, comm, stream, low_rank, wire, [&](const SliceJob& job) {
    reduction.start(job);
    reduction.wait(comm);
  });
}

Result on_device(const Sum& sum, Communicator& comm, const kernels::Kernels& table,
                 DeviceReduction::Order order = DeviceReduction::Order::by_rank) {
  kernels::Backend backend(table, 1);
  NcclLink link(comm, backend.stream());
  LowRank low_rank(table, link.stream(), sum.panel);
  Wire wire(table, link.stream());
  DeviceReduction rest(link, table, order);
  DeviceLowRankReduction reduction(link, low_rank, rest);
  return results(sum, comm, backend.stream(), low_rank, wire, [&](const SliceJob& job) {
    reduction.run(job, "summing");
    link.lead_compute();
  });
}

std::string text_of(const Sum& sum) {
  return fmt::format("{} ranks, {}, codec {}, feedback {}, phases {}, key {}, leaves {}, bad {}",
                     sum.ranks, name_of(sum.dtype), sum.codec, sum.feedback,
                     static_cast<int>(sum.phases), sum.key, sum.leaves, sum.bad);
}

void expect_equal(const Sum& sum) {
  SCOPED_TRACE(text_of(sum));
  const testing::FakeNccl fake;
  run_ranks(sum.ranks, [&](Communicator& comm) {
    const Result want = on_cpu(sum, comm);
    const Result got = on_device(sum, comm, testing::late_table());
    EXPECT_TRUE(same_bits(got.data, want.data));
    EXPECT_TRUE(same_bits(got.error, want.error));
    EXPECT_TRUE(same_bits(got.factors, want.factors));
    EXPECT_EQ(got.bytes, want.bytes);
  });
}

TEST(DeviceLowRankSums, HaveTheBitsAndTheBytesOfTheCpu) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const Phases phases : {Phases::both, Phases::scatter}) {
      expect_equal({.ranks = 2, .dtype = dtype, .phases = phases});
      expect_equal({.ranks = 3,
                    .dtype = dtype,
                    .codec = "maxmin:4",
                    .feedback = true,
                    .phases = phases,
                    .key = 5});
    }
  }
}

TEST(DeviceLowRankSums, BeginAndLeave) {
  expect_equal({.ranks = 3, .inactive = true});
  expect_equal({.ranks = 2,
                .dtype = DType::bf16,
                .codec = "sign",
                .feedback = true,
                .leaves = true,
                .inactive = true});
  expect_equal({.ranks = 2, .phases = Phases::scatter, .leaves = true});
}

/// Sums of 16 bits are computed in panels of some rows, or one; bits do not depend on the panels.
/// Without AVX-512 oneDNN multiplies few rows in another order: there panels have seven or more.
TEST(DeviceLowRankSums, BySomeRows) {
  const bool few = __builtin_cpu_supports("avx512f") != 0;
  for (const int64_t panel : {few ? 1 : 700, few ? 300 : 2000}) {
    expect_equal({.ranks = 2, .dtype = DType::bf16, .panel = panel});
  }
}

/// The step reports the error on all ranks alike; later steps are not affected.
TEST(DeviceLowRankSums, OfWhatIsNotFinite) {
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    const Sum sum{.ranks = 2, .bad = bad};
    expect_equal(sum);
    const testing::FakeNccl fake;
    run_ranks(sum.ranks, [&](Communicator& comm) {
      const Mixed mixed = mixed_array();
      const Result got = on_device(sum, comm, testing::late_table());
      const LowRankMatrix& matrix = mixed.matrices.front();
      for (int step = 0; step < 3; ++step) {
        const auto first = static_cast<size_t>(step * mixed.count + matrix.first);
        const auto n = static_cast<size_t>(matrix.count());
        const auto is_nan = [](float x) { return std::isnan(x); };
        const auto is_zero = [](float x) { return x == 0; };
        const auto sums = std::span(got.data).subspan(first, n);
        const auto errors = std::span(got.error).subspan(first, n);
        EXPECT_EQ(std::ranges::count_if(sums, is_nan), step == 1 ? matrix.count() : 0);
        EXPECT_EQ(std::ranges::all_of(errors, is_zero), step == 1);
      }
    });
  }
}

/// Kernels of table cuda: close to the CPU's, and the same bits on all ranks and in all runs.
TEST(DeviceLowRankSums, ByKernelsOfCuda) {
  const testing::FakeNccl fake;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Sum sum{.ranks = 2, .dtype = dtype, .codec = "maxmin:4", .feedback = true};
    std::vector<std::vector<float>> of_rank(2);
    run_ranks(2, [&](Communicator& comm) {
      const Result want = on_cpu(sum, comm);
      const Result got = on_device(sum, comm, kernels::cuda_simt::table());
      EXPECT_EQ(got.bytes, want.bytes);
      if (dtype == DType::bf16) {
        const Result again = on_device(sum, comm, kernels::cuda_simt::table());
        EXPECT_TRUE(same_bits(got.data, again.data) && same_bits(got.error, again.error));
      }
      double worst = 0;
      for (size_t i = 0; i < want.data.size(); ++i) {
        worst = std::max(worst, std::abs(double{got.data[i]} - double{want.data[i]}));
      }
      EXPECT_LT(worst, dtype == DType::bf16 ? 0.3 : 1e-3);
      of_rank[comm.rank()] = got.data;
    });
    EXPECT_TRUE(same_bits(of_rank[0], of_rank[1]));
  }
}

}  // namespace
}  // namespace espalier::low_rank_test
