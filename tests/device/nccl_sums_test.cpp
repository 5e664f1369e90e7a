// Sums between devices have the bits, and send the bytes, of sums between ranks on the CPU:
// uncompressed and in every code, whole and in halves, with the CPU's delayed kernels and with
// those of table cuda.
#include <cmath>

#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/sra.h"
#include "parallel/transport/device/nccl_link.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/wire_codec.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/simt/queue.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::nccl_sums_test {
namespace {

constexpr PieceOptions kPieces{.piece_bytes = 4096, .staging_bytes = size_t{1} << 18U};

/// An array to sum, and its encoding.
struct Sum {
  std::string codec;  ///< empty: without a wire
  int ranks = 2;
  DType dtype = DType::fp32;
  int64_t count = 8'000;
  Phases phases = Phases::both;
  std::vector<int64_t> edges = {};
  bool feedback = false;
  uint64_t key = 0;
  bool changes = false;  ///< sums changes: replicas move towards the owner's values
  float factor = 1;      ///< of the changes
};

/// Two parameters in this code, padding, and one uncompressed parameter.
std::vector<WireSegment> segments_of(const Sum& sum) {
  const kernels::WireFormat format = format_of(parallel::parse_codec(sum.codec));
  const int64_t third = sum.count / 3;
  return {{.first = 0, .count = third, .format = format},
          {.first = third, .count = third - 5, .format = format},
          {.first = 2 * third, .count = sum.count - 2 * third, .format = plain_format(sum.dtype)}};
}

/// The slice of each rank in this code; only the owner has the target values.
std::vector<WireSegment> changes_of(const Sum& sum, const Tensor& targets, int me) {
  const std::vector<int64_t> edges = edges_of({.data = targets, .edges = sum.edges}, sum.ranks);
  std::vector<WireSegment> segments;
  for (int rank = 0; rank < sum.ranks; ++rank) {
    const int64_t count = edges[rank + 1] - edges[rank];
    segments.push_back({.first = edges[rank],
                        .count = count,
                        .format = format_of(parallel::parse_codec(sum.codec)),
                        .sends_difference = true,
                        .target = rank == me ? targets.elements(edges[rank], count) : Tensor()});
  }
  return segments;
}

/// Results of a rank.
struct Result {
  std::vector<float> data, feedback;
  int64_t bytes = 0;  ///< sent
  bool operator==(const Result&) const = default;
};

std::vector<float> floats(Stream& stream, const Tensor& tensor) {
  const Mirror mirror(stream, tensor);
  const Tensor& host = mirror.read().host();
  std::vector<float> all;
  with_number(host.dtype, [&]<class Number>(Number) {
    for (const Number one : host.span<Number>()) {
      all.push_back(to_float(one));
    }
  });
  return all;
}

/// An array in the memory of `stream` with the values of this rank.
Buffer filled(Stream& stream, const Sum& sum, int rank, int step, DType dtype) {
  Buffer made = stream.arena().allocate(Memory::gradient, "x", dtype, Shape{sum.count});
  const Mirror mirror(stream, made.tensor());
  for (int64_t i = 0; i < sum.count; ++i) {
    const float x = value(rank, step, i);
    with_number(dtype, [&]<class Number>(Number) {
      mirror.host().get<Number>()[i] = from_float<Number>(x);
    });
  }
  mirror.write();
  return made;
}

/// Two sums, so that kept errors are sent; `reduce(job)` runs one.
template <class Reduce>
Result results(const Sum& sum, Communicator& comm, Stream& stream, Wire& wire,
               const Reduce& reduce) {
  if (!sum.codec.empty()) {
    wire.set_segments(segments_of(sum));
  }
  Buffer targets;
  const Mirror factor =
      Mirror::of_host(stream, Tensor(const_cast<float*>(&sum.factor), DType::fp32, Shape{1}));
  if (sum.changes) {
    targets = filled(stream, sum, 0, 7, DType::fp32);
    wire.set_segments(changes_of(sum, targets.tensor(), comm.rank()));
    factor.write();
    wire.set_factor(factor.device());
  }
  Result result;
  const int64_t before = comm.sent(Traffic::allreduce).bytes;
  Buffer feedback;
  if (sum.feedback) {
    feedback = filled(stream, sum, comm.rank(), 7, DType::fp32);
    wire.set_feedback(feedback.tensor());
  }
  for (int step = 0; step < 2; ++step) {
    const Buffer data = filled(stream, sum, sum.changes ? 0 : comm.rank(), step, sum.dtype);
    wire.set_key(sum.key == 0 ? 0 : sum.key + static_cast<uint64_t>(comm.rank()));
    reduce(SliceJob{.data = data.tensor(),
                    .phases = sum.phases,
                    .edges = sum.edges,
                    .wire = sum.codec.empty() ? nullptr : &wire});
    std::vector<float> now = floats(stream, data.tensor());
    if (sum.phases == Phases::scatter) {  // the other elements are undefined
      const std::vector<int64_t> edges =
          edges_of({.data = data.tensor(), .edges = sum.edges}, comm.size());
      now = {now.begin() + edges[comm.rank()], now.begin() + edges[comm.rank() + 1]};
    }
    result.data.insert(result.data.end(), now.begin(), now.end());
  }
  if (sum.feedback) {
    result.feedback = floats(stream, feedback.tensor());
  }
  result.bytes = comm.sent(Traffic::allreduce).bytes - before;
  return result;
}

/// Initial values of all ranks in `sum`, of both steps.
std::vector<float> unchanged(const Sum& sum) {
  Arena arena;
  Stream stream(arena, 1);
  std::vector<float> all;
  for (int step = 0; step < 2; ++step) {
    const std::vector<float> one = floats(stream, filled(stream, sum, 0, step, sum.dtype).tensor());
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

Result on_cpu(const Sum& sum, Communicator& comm) {
  Arena arena;
  Stream stream(arena, 1);
  Wire wire(kernels::by_name("cpu"), stream);
  SraReduction reduction(comm, arena, kPieces);
  return results(sum, comm, stream, wire, [&](const SliceJob& job) {
    reduction.start(job);
    reduction.wait();
  });
}

Result on_device(const Sum& sum, Communicator& comm, const kernels::Kernels& table) {
  kernels::Backend backend(table, 1);
  NcclLink link(comm, backend.stream());
  Wire wire(table, link.stream());
  DeviceReduction reduction(link, table, DeviceReduction::Order::by_rank, kPieces);
  return results(sum, comm, backend.stream(), wire, [&](const SliceJob& job) {
    reduction.run(job, "summing");
    link.lead_compute();
  });
}

void expect_equal(const Sum& sum, const kernels::Kernels& table) {
  SCOPED_TRACE(fmt::format("{} ranks, {}, codec {}, phases {}, feedback {}, key {}, factor {}",
                           sum.ranks, name_of(sum.dtype), sum.codec, static_cast<int>(sum.phases),
                           sum.feedback, sum.key, sum.factor));
  const testing::FakeNccl fake;
  run_ranks(sum.ranks, [&](Communicator& comm) {
    const Result want = on_cpu(sum, comm);
    const Result got = on_device(sum, comm, table);
    EXPECT_TRUE(same_bits(got.data, want.data));
    EXPECT_TRUE(same_bits(got.feedback, want.feedback));
    EXPECT_EQ(got.bytes, want.bytes);
    EXPECT_FALSE(want.data.empty() && sum.edges.empty());
    if (sum.changes) {
      EXPECT_NE(same_bits(want.data, unchanged(sum)), std::isfinite(sum.factor));
    }
  });
}

TEST(DeviceSums, AsTheyAre) {
  for (const int ranks : {2, 3, 4}) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const Phases phases : {Phases::both, Phases::scatter, Phases::gather}) {
        expect_equal({.ranks = ranks, .dtype = dtype, .phases = phases}, testing::late_table());
      }
    }
  }
}

TEST(DeviceSums, OfSlicesOfAnySize) {
  for (const std::vector<int64_t>& edges :
       {std::vector<int64_t>{0, 777, 777, 1000}, {0, 0, 0, 1000}, {0, 1, 3, 1000}}) {
    for (const Phases phases : {Phases::both, Phases::scatter, Phases::gather}) {
      for (const char* codec : {"", "maxmin:4"}) {
        expect_equal({.codec = codec, .ranks = 3, .count = 1000, .phases = phases, .edges = edges},
                     testing::late_table());
      }
    }
  }
}

TEST(DeviceSums, InEveryCode) {
  for (const kernels::WireCodec* codec : kernels::wire_codecs()) {
    expect_equal({.codec = std::string(codec->name), .ranks = 3}, testing::late_table());
  }
  for (const Phases phases : {Phases::scatter, Phases::gather}) {
    expect_equal({.codec = "maxmin:4", .ranks = 2, .dtype = DType::bf16, .phases = phases},
                 testing::late_table());
  }
}

TEST(DeviceSums, WithKeptErrorsAndRandomRounding) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    expect_equal({.codec = "maxmin:2", .ranks = 3, .dtype = dtype, .feedback = true},
                 testing::late_table());
    expect_equal({.codec = "fp32", .ranks = 2, .dtype = dtype, .feedback = true},
                 testing::late_table());
  }
  expect_equal({.codec = "maxmin:2", .ranks = 3, .feedback = true, .key = 5},
               testing::late_table());
}

/// All replicas change towards the owner's values, unless the factor is not finite.
void changes_are_equal(Sum sum, const kernels::Kernels& table) {
  sum.phases = Phases::gather;
  sum.changes = true;
  for (const float factor : {0.25F, std::nanf("")}) {
    sum.factor = factor;
    expect_equal(sum, table);
  }
}

TEST(DeviceSums, OfChanges) {
  for (const kernels::WireCodec* codec : kernels::wire_codecs()) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      changes_are_equal({.codec = std::string(codec->name),
                         .ranks = 3,
                         .dtype = dtype,
                         .count = 1000,
                         .edges = {0, 700, 700, 1000}},
                        testing::late_table());
    }
  }
}

/// The kernels of table cuda in the harness.
TEST(DeviceSums, ByKernelsOfCuda) {
  const kernels::Kernels& table = kernels::cuda_simt::table();
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    expect_equal({.ranks = 3, .dtype = dtype, .count = 3000}, table);
    expect_equal({.codec = "maxmin:4", .ranks = 2, .dtype = dtype, .count = 3000, .feedback = true},
                 table);
  }
  expect_equal({.codec = "table:2:512", .ranks = 2, .count = 3000}, table);
  expect_equal({.codec = "fp8-e5m2", .ranks = 2, .count = 3000, .key = 9}, table);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    changes_are_equal({.codec = "linear8", .ranks = 2, .dtype = dtype, .count = 3000}, table);
  }
}

/// Another order than ours, but the same bits on all ranks.
TEST(DeviceSums, ByNccl) {
  const testing::FakeNccl fake;
  const Sum sum{.ranks = 3, .count = 1000};
  const std::vector<float> want = expected_sum(3, 0, sum.count);
  std::vector<std::vector<float>> whole(3), halves(3);
  run_ranks(3, [&](Communicator& comm) {
    kernels::Backend backend(testing::late_table(), 1);
    NcclLink link(comm, backend.stream());
    DeviceReduction reduction(link, backend.kernels(), DeviceReduction::Order::by_nccl);
    const auto all_at_once = filled(backend.stream(), sum, comm.rank(), 0, DType::fp32);
    reduction.run({.data = all_at_once.tensor()}, "summing");
    const auto in_halves = filled(backend.stream(), sum, comm.rank(), 0, DType::fp32);
    const std::vector<int64_t> edges{0, 10, 10, 1000};
    for (const Phases phases : {Phases::scatter, Phases::gather}) {
      reduction.run({.data = in_halves.tensor(), .phases = phases, .edges = edges}, "summing");
    }
    link.lead_compute();
    whole[comm.rank()] = floats(backend.stream(), all_at_once.tensor());
    halves[comm.rank()] = floats(backend.stream(), in_halves.tensor());
  });
  EXPECT_THAT(whole[0], ::testing::Pointwise(::testing::FloatNear(16), want));
  EXPECT_FALSE(same_bits(whole[0], want)) << "the order is NCCL's";
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(same_bits(whole[r], whole[0]));
    EXPECT_TRUE(same_bits(halves[r], whole[0]));
  }
}

/// Buckets start when their kernels are enqueued, and the host does not wait. Both ways give the
/// CPU's sums.
TEST(DeviceSums, OfBuckets) {
  const testing::FakeNccl fake;
  constexpr int64_t kCount = 5000;
  const std::vector<int64_t> ends{700, 1400, 2000, 4000, kCount};
  for (const bool overlap : {true, false}) {
    run_ranks(3, [&](Communicator& comm) {
      kernels::Backend backend(testing::late_table(), 1);
      Stream& stream = backend.stream();
      NcclLink link(comm, stream);
      DeviceReduction reduction(link, backend.kernels(), DeviceReduction::Order::by_rank);
      DeviceBuckets buckets(link, reduction, {.overlap = overlap}, kGradientText);
      const Sum sum{.count = kCount};
      const Buffer source = filled(stream, sum, comm.rank(), 0, DType::fp32);
      const Buffer flat =
          stream.arena().allocate(Memory::gradient, "flat", DType::fp32, Shape{kCount});
      auto& queue = dynamic_cast<simt::Queue&>(*stream.queue());
      int64_t waits = 0;
      for (int step = 0; step < 3; ++step) {
        if (step == 1) {  // in the first step memory grows, and growing waits
          waits = queue.synchronized() + queue.waited();
        }
        buckets.begin(all_reduce_step(flat.tensor(), ends, 600 * 4, {}));
        int64_t from = 0;
        for (const int64_t end : ends) {  // backward
          backend.kernels().cast(stream, {.x = source.tensor().elements(from, end - from),
                                          .y = flat.tensor().elements(from, end - from)});
          buckets.ready(from = end);
        }
        buckets.finish();
      }
      EXPECT_EQ(queue.synchronized() + queue.waited(), waits);
      EXPECT_TRUE(same_bits(floats(stream, flat.tensor()), expected_sum(3, 0, kCount)));
    });
  }
}

}  // namespace
}  // namespace espalier::parallel::nccl_sums_test
