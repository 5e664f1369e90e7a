// Codec powersgd from device to device: sums have the bits, and send the bytes, of the reduction on
// the CPU; whole runs have the CPU's bits, go on from its checkpoints, and hold what is planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "io/checkpoint.h"
#include "parallel/codec.h"
#include "parallel/device/buckets.h"
#include "parallel/device/low_rank.h"
#include "parallel/reduction/by_name.h"
#include "parallel/reduction/low_rank.h"
#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "src/kernels/cuda/table.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/grid.h"
#include "tests/low_rank_array.h"
#include "tests/rank_gradients.h"
#include "tests/simt/device.h"
#include "tests/ways.h"

namespace espalier {
namespace {

using namespace parallel;
using testing::Outcome;
using testing::TempDir;

struct Sum {
  int ranks = 2;
  DType dtype = DType::fp32;
  std::string codec = "fp32";  ///< of what is beside the matrices
  bool feedback = false;       ///< of that
  Phases phases = Phases::both;
  uint64_t key = 0;
  bool leaves = false;    ///< a matrix travels as it is in the last step
  double bad = 0;         ///< what the last rank has in a matrix in the second step
  bool inactive = false;  ///< in the first step all travel as they are
  int64_t panel = kDevicePanel;
};

/// Of a rank.
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

/// What a matrix of `mixed` and the rest are in this step.
void set_step(const Sum& sum, int step, const Mixed& mixed, LowRank& low_rank, Wire& wire) {
  std::vector<LowRankMatrix> matrices = mixed.matrices;
  std::vector<WireSegment> segments = segments_of(mixed, format_of(io::parse_codec(sum.codec)));
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
    } else {  // the rest has no meaning
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
  for (const int ranks : {2, 3}) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const Phases phases : {Phases::both, Phases::scatter}) {
        expect_equal({.ranks = ranks, .dtype = dtype, .phases = phases});
        expect_equal({.ranks = ranks,
                      .dtype = dtype,
                      .codec = "maxmin:4",
                      .feedback = true,
                      .phases = phases,
                      .key = 5});
      }
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

/// Sums of 16 bits are made some rows at a time, or one; panels are no part of the bits.
TEST(DeviceLowRankSums, BySomeRows) {
  for (const int64_t panel : {1, 300, 1000}) {
    expect_equal({.ranks = 2, .dtype = DType::bf16, .panel = panel});
  }
}

/// Loud in the step, on all ranks alike, and forgotten afterwards.
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

/// By the kernels of table cuda: near, and the same on all ranks and each time.
TEST(DeviceLowRankSums, ByKernelsOfCuda) {
  const testing::FakeNccl fake;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Sum sum{.ranks = 2, .dtype = dtype, .codec = "maxmin:4", .feedback = true};
    std::vector<std::vector<float>> of_rank(2);
    run_ranks(2, [&](Communicator& comm) {
      const Result want = on_cpu(sum, comm);
      const Result got = on_device(sum, comm, kernels::cuda_simt::table());
      const Result again = on_device(sum, comm, kernels::cuda_simt::table());
      EXPECT_EQ(got.bytes, want.bytes);
      EXPECT_TRUE(same_bits(got.data, again.data) && same_bits(got.error, again.error));
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

/// Ranks with NCCL between their devices, which go on while their hosts wait.
struct Linked {
  testing::FakeNccl nccl;
  Linked() {
    nccl.connect(true);
    testing::while_ranks_wait() = simt::drive_queues;
  }
  ~Linked() { testing::while_ranks_wait() = {}; }
};

struct RanksWay {
  int ranks = 2;
  testing::Way way;
};

void factor(io::Config& config) {
  config.parallel.codec.fallback = "powersgd:2";
  config.parallel.codec_min_size = 64;
  config.parallel.powersgd_warmup = 2;
}

void pipe(io::Config& config, const std::string& schedule) {
  factor(config);
  config.model.tie_embeddings = schedule != "async";
  config.parallel.pipeline = 2;
  config.parallel.partition = {2, 2};
  config.parallel.schedule = schedule;
  config.train.micro_batch = 3;
}

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {2, {"powersgd", factor}},
      {3,
       {"from the first step on, not overlapped",
        [](io::Config& config) {
          factor(config);
          config.parallel.powersgd_warmup = 0;
          config.parallel.overlap = false;
        }}},
      {3,
       {"zero",
        [](io::Config& config) {
          factor(config);
          config.parallel.zero = 1;
        }}},
      {2,
       {"beside codes with kept errors",
        [](io::Config& config) {
          factor(config);
          config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}, {"*.bias", "sign"}};
          config.parallel.error_feedback = true;
          config.parallel.rounding = "stochastic";
        }}},
      {2,
       {"beside codes, zero, one bucket",
        [](io::Config& config) {
          factor(config);
          config.parallel.codec.patterns = {{"*.mlp.*", "topk:0.1"}};
          config.parallel.zero = 1;
          config.parallel.bucket_mb = 100;
        }}},
      {2,
       {"pruned amid the run",
        [](io::Config& config) {
          factor(config);
          testing::prune(config);
          config.pruning.at_step = 6;
          config.pruning.exclude = {"*.attention.*"};
        }}},
      {2,
       {"pruned amid the run, one bucket, from the first step on",
        [](io::Config& config) {
          factor(config);
          testing::prune(config);
          config.pruning.sparsity = 0.3;
          config.pruning.exclude = {"*.attention.*"};
          config.parallel.powersgd_warmup = 0;
          config.parallel.bucket_mb = 100;
        }}},
      {2,
       {"pruned gradually, zero",
        [](io::Config& config) {
          factor(config);
          testing::prune_gradually(config);
          config.parallel.zero = 1;
          config.pruning.exclude = {"*.attention.*"};
        }}},
      {4, {"grid", [](io::Config& config) { pipe(config, "1f1b"); }}},
      {4,
       {"asynchronous grid",
        [](io::Config& config) {
          pipe(config, "async");
          config.parallel.drain_every = 4;
        }}},
      {1, {"alone", factor}},
      {2, {"pipeline of one replica", [](io::Config& config) { pipe(config, "gpipe"); }}},
  };
  return all;
}

train::TrainerOptions late_options() {
  train::TrainerOptions options;
  options.kernels = &testing::late_table();
  return options;
}

class LateLowRank : public ::testing::TestWithParam<std::string> {};

/// Bytes that each rank sent in each step, and the outcome.
struct Counted {
  Outcome outcome;
  std::vector<std::vector<int64_t>> bytes;
  std::string notes;
};

Counted run_counted(const io::Config& config, int ranks, train::TrainerOptions options = {}) {
  Counted run{.outcome = {}, .bytes = {}, .notes = {}};
  run.bytes.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  options.resume = "none";
  run_ranks(ranks,
            [&](Communicator& comm) {
              train::TrainerOptions mine = options;
              mine.on_step = [&](const train::StepReport& report) {
                run.bytes[comm.rank()].push_back(report.allreduce_bytes);
              };
              mine.on_note = [&](const std::string& note) {
                const std::scoped_lock lock(mutex);
                run.notes += note + "\n";
              };
              train::Trainer trainer(config, comm, mine);
              trainer.run();
              const Outcome mine_at_end = testing::outcome_of(trainer);
              const std::scoped_lock lock(mutex);
              run.outcome.values.insert(mine_at_end.values.begin(), mine_at_end.values.end());
              run.outcome.moments.insert(mine_at_end.moments.begin(), mine_at_end.moments.end());
            },
            {.timeout = 60, .while_waiting = testing::while_ranks_wait()});
  return run;
}

TEST_P(LateLowRank, HasTheBitsAndTheBytesOfTheCpu) {
  const Linked linked;
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    const Counted want = run_counted(config, ranks);
    const Counted got = run_counted(config, ranks, late_options());
    EXPECT_TRUE(got.outcome == want.outcome);
    EXPECT_EQ(got.bytes, want.bytes);
    if (ranks > config.parallel.pipeline) {
      EXPECT_THAT(got.notes, ::testing::HasSubstr("from GPU to GPU by NCCL"));
    }
  }
}

/// Whoever begins, and whoever goes on: on the CPU, by NCCL, or through the host.
TEST_P(LateLowRank, ResumesWhereverItBegan) {
  const Linked linked;
  for (const int64_t warmup : {2, 8}) {  // before the checkpoint, and behind it
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    factor(config);
    config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}};
    config.parallel.error_feedback = true;
    config.parallel.powersgd_warmup = warmup;
    config.train.checkpoint_every = 5;
    const Outcome whole = testing::run(config, 2);
    const std::vector<std::string> links{"", "nccl", "host"};  // the first: on the CPU
    for (const std::string& begins : links) {
      for (const std::string& goes_on : links) {
        if (begins != "nccl" && goes_on != "nccl") {
          continue;
        }
        SCOPED_TRACE(fmt::format("{}: {} {}", warmup, begins, goes_on));
        config.run.out = (dir / ("from-" + begins + "-to-" + goes_on)).string();
        const auto part = [&](const std::string& link, const std::string& resume, int64_t stop) {
          config.parallel.device_link = link.empty() ? "auto" : link;
          train::TrainerOptions options = link.empty() ? train::TrainerOptions() : late_options();
          options.resume = resume;
          options.stop_after = stop;
          return testing::run(config, 2, options);
        };
        part(begins, "none", 5);
        const Outcome last = part(goes_on, "auto", 0);
        EXPECT_TRUE(last.values == whole.values);
        EXPECT_TRUE(last.moments == whole.moments);
      }
    }
  }
}

TEST_P(LateLowRank, HoldsWhatWasPlanned) {
  const Linked linked;
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    if (config.parallel.pipeline > 1) {
      continue;  // whose plan is that of another stage
    }
    run_ranks(ranks,
              [&](Communicator& comm) {
                train::TrainerOptions options = late_options();
                options.resume = "none";
                train::Trainer trainer(config, comm, options);
                trainer.run();
                constexpr auto kMessages = static_cast<size_t>(Memory::communication);
                const train::MemoryPlan& plan = trainer.fit().plan;
                const MemoryUse used = trainer.arena().use(Memory::communication);
                EXPECT_LE(trainer.arena().total().peak, train::sum_of(plan.peak));
                if (config.pruning.method == "none") {
                  EXPECT_EQ(used.peak, plan.peak.at(kMessages));
                }
                // What is kept of each parameter of new masks is an estimate.
                const auto last = static_cast<double>(plan.last.at(kMessages));
                EXPECT_NEAR(static_cast<double>(used.now), last,
                            config.pruning.method == "none" ? 0 : 0.01 * last);
              },
              {.while_waiting = testing::while_ranks_wait()});
  }
}

/// The run ends with the parameter's name, as on the CPU.
TEST_P(LateLowRank, SaysWhatIsNotFinite) {
  const Linked linked;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = GetParam();
  factor(config);
  config.optimizer.lr = 1e30;
  config.optimizer.warmup_steps = 0;
  const auto message_of = [&](const train::TrainerOptions& options) {
    try {
      testing::run(config, 2, options);
    } catch (const Failure& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  const std::string want = message_of({});
  EXPECT_THAT(want, ::testing::HasSubstr("step"));
  EXPECT_EQ(message_of(late_options()), want);
}

INSTANTIATE_TEST_SUITE_P(DTypes, LateLowRank, ::testing::Values("fp32", "bf16"));

}  // namespace
}  // namespace espalier
