// Runs of several ranks, each with its own device: replicas, shared optimizers, codecs and
// pipelines have the bits of ranks on the CPU, whether gradients go through the host or from device
// to device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using testing::run;
using testing::TempDir;

/// Ranks whose devices advance while their hosts wait for messages.
struct Driven {
  Driven() { testing::while_ranks_wait() = simt::drive_queues; }
  ~Driven() { testing::while_ranks_wait() = {}; }
};

/// Ranks with NCCL between their devices.
struct Linked {
  testing::FakeNccl nccl;
  Driven driven;
  Linked() { nccl.connect(true); }
};

struct RanksWay {
  int ranks = 2;
  testing::Way way;
};

void code(io::Config& config, const std::string& codec) {
  config.parallel.codec.fallback = codec;
  config.parallel.codec_min_size = 64;
}

/// Settings whose sums or codes run on the host.
const std::vector<RanksWay>& host_ways() {
  static const std::vector<RanksWay> all{
      {2,
       {"asynchronous, offloaded",
        [](io::Config& config) {
          testing::in_two_stages(config, "async");
          config.parallel.weight_prediction = "spectrain";
          config.optimizer.offload = true;
        }}},
      {3,
       {"ring",
        [](io::Config& config) {
          code(config, "maxmin:4");
          config.parallel.reduction = "ring";
          config.parallel.error_feedback = true;
        }}},
      {2,
       {"powersgd",
        [](io::Config& config) {
          code(config, "powersgd:2");
          config.parallel.error_feedback = true;
        }}},
      {2, {"pipeline", [](io::Config& config) { testing::in_two_stages(config, "1f1b"); }}},
      {2,
       {"codes between stages",
        [](io::Config& config) {
          testing::in_two_stages(config, "gpipe");
          config.parallel.activation_codec = "maxmin:8";
          testing::prune_expanded(config);
        }}},
      {2,
       {"deferred",
        [](io::Config& config) {
          testing::in_two_stages(config, "zb-h1");
          testing::prune_sparse(config);
          config.pruning.at_step = 0;
        }}},
      {2,
       {"asynchronous",
        [](io::Config& config) {
          testing::in_two_stages(config, "async");
          config.parallel.weight_prediction = "stash";
          config.parallel.drain_every = 4;
        }}},
  };
  return all;
}

/// Settings that may also sum from device to device.
const std::vector<RanksWay>& linked_ways() {
  static const std::vector<RanksWay> all{
      {3, {"replicas", testing::prune_sparse}},
      {2, {"rigl", testing::move_masks}},
      {3,
       {"zero",
        [](io::Config& config) {
          testing::prune_gradually(config);
          config.parallel.zero = 1;
          config.optimizer.state_bits = 8;
        }}},
      {3,
       {"codes",
        [](io::Config& config) {
          code(config, "maxmin:4");
          config.parallel.error_feedback = true;
          config.parallel.rounding = "stochastic";
          testing::prune(config);
        }}},
      {2,
       {"codes and zero",
        [](io::Config& config) {
          code(config, "fp8-e5m2");
          config.parallel.zero = 1;
          config.parallel.overlap = false;
        }}},
      {3,
       {"values in codes",
        [](io::Config& config) {
          testing::prune_gradually(config);
          config.parallel.zero = 1;
          config.parallel.value_codec.fallback = "maxmin:4";
          config.parallel.codec_min_size = 64;
        }}},
      {2,
       {"values and gradients in codes, offloaded",
        [](io::Config& config) {
          testing::prune_sparse(config);
          code(config, "maxmin:8");
          config.parallel.zero = 1;
          config.parallel.value_codec.fallback = "linear8";
          config.optimizer.state_bits = 8;
          config.optimizer.offload = true;
        }}},
      {2,
       {"adaptive",
        [](io::Config& config) {
          code(config, "adaptive");
          config.parallel.codec_every = 3;
        }}},
      {4, {"grid", [](io::Config& config) { testing::in_two_stages(config, "1f1b"); }}},
      {4,
       {"asynchronous grid",
        [](io::Config& config) {
          testing::in_two_stages(config, "async");
          config.parallel.drain_every = 4;
          code(config, "maxmin:8");
        }}},
  };
  return all;
}

void have_the_bits_of_the_cpu(const std::vector<RanksWay>& ways, const std::string& dtype,
                              const std::string& link) {
  for (const auto& [ranks, way] : ways) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = dtype;
    way.apply(config);
    const testing::Outcome want = run(config, ranks);
    config.parallel.device_link = link;
    train::TrainerOptions late;
    late.kernels = &testing::late_table();
    EXPECT_EQ(run(config, ranks, late), want);
  }
}

class LateRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(LateRanks, HaveTheBitsOfTheCpu) {
  const Driven driven;
  have_the_bits_of_the_cpu(host_ways(), GetParam(), "host");
  have_the_bits_of_the_cpu(linked_ways(), GetParam(), "host");
}

TEST_P(LateRanks, LinkedByNcclHaveTheBitsOfTheCpu) {
  const Linked linked;
  have_the_bits_of_the_cpu(linked_ways(), GetParam(), "nccl");
}

/// Names of rank 0's sums, sorted; none begins before the last one's end.
std::vector<std::string> sums_in_trace(const io::Config& config) {
  std::ifstream file(std::filesystem::path(config.run.out) / "trace.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<std::string> names;
  double last_end = 0;
  for (const auto& event : json.at("traceEvents")) {
    const std::string name = event.at("name");
    if (event.at("ph") == "X" && event.at("pid") == 0 &&
        (name.starts_with("bucket ") || name.starts_with("gather "))) {
      const double begin = event.at("ts");
      EXPECT_GE(begin, last_end - 1e-3) << name;
      last_end = begin + event.at("dur").get<double>();
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

void resume_is_no_break(const std::string& dtype, const std::string& link) {
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = dtype;
  code(config, "maxmin:4");
  config.parallel.error_feedback = true;
  const testing::Outcome whole = run(config, 2);
  config.parallel.device_link = link;
  train::TrainerOptions options;
  options.kernels = &testing::late_table();
  options.stop_after = 6;
  run(config, 2, options);
  options.stop_after = 0;
  options.resume = "auto";
  testing::Outcome resumed = run(config, 2, options);
  resumed.losses = whole.losses;
  EXPECT_EQ(resumed, whole);
}

TEST_P(LateRanks, ResumeIsNoBreak) {
  const Linked linked;
  resume_is_no_break(GetParam(), "host");
  resume_is_no_break(GetParam(), "nccl");
}

INSTANTIATE_TEST_SUITE_P(DTypes, LateRanks, ::testing::Values("fp32", "bf16"));

/// The plan covers the memory of sums on the device to the byte, except for codecs that are chosen
/// later.
TEST_P(LateRanks, LinkedByNcclHoldWhatWasPlanned) {
  const Linked linked;
  for (const auto& [ranks, way] : linked_ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    config.pruning.method = "none";  // otherwise a mask change may set the peak of all memory
    const bool chosen = config.parallel.codec.fallback == "adaptive";
    if (config.parallel.pipeline > 1) {
      continue;  // its plan is that of another stage
    }
    parallel::run_ranks(
        ranks,
        [&](parallel::Communicator& comm) {
          train::Trainer trainer(config, comm,
                                 {.resume = "none", .kernels = &testing::late_table()});
          trainer.run();
          const train::MemoryPlan& plan = trainer.fit().plan;
          constexpr auto kMessages = static_cast<size_t>(Memory::communication);
          const size_t used = trainer.arena().use(Memory::communication).peak;
          EXPECT_GT(used, 0U);
          EXPECT_LE(used, plan.peak.at(kMessages));
          EXPECT_TRUE(chosen || used == plan.peak.at(kMessages));
          constexpr size_t kCopies = 8192;  // copies of the inputs and losses of micro-batches
          const size_t pinned = plan.pinned.at(kMessages);
          EXPECT_EQ(pinned > kCopies, chosen || config.parallel.error_feedback);
          EXPECT_LT(trainer.arena().host().use(Memory::communication).peak, pinned + kCopies);
        },
        {.while_waiting = testing::while_ranks_wait()});
  }
}

/// The rows of sums in trace.json are those of ranks on the CPU.
TEST_P(LateRanks, LinkedByNcclTraceTheirSums) {
  const Linked linked;
  for (const int64_t zero : {0, 1}) {
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    config.train.steps = 4;
    config.parallel.zero = zero;
    config.run.trace = true;
    run(config, 2);
    const std::vector<std::string> want = sums_in_trace(config);
    EXPECT_THAT(want, ::testing::SizeIs(::testing::Gt(8)));
    train::TrainerOptions late;
    late.kernels = &testing::late_table();
    run(config, 2, late);
    EXPECT_EQ(sums_in_trace(config), want);
  }
}

/// Timings before the start also run on the device.
TEST(LateRanks, TimeTheirLayers) {
  const Driven driven;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  testing::in_two_stages(config, "1f1b");
  config.parallel.partition.clear();
  config.parallel.activation_codec = "maxmin:8";
  train::TrainerOptions late;
  late.kernels = &testing::late_table();
  EXPECT_EQ(run(config, 2, late).losses.size(), static_cast<size_t>(config.train.steps));
}

/// The run's note on the route of its gradients.
std::string way_of(const io::Config& config, int ranks = 2) {
  std::mutex mutex;
  std::string notes;
  train::TrainerOptions late;
  late.kernels = &testing::late_table();
  late.on_note = [&](const std::string& note) {
    const std::scoped_lock lock(mutex);
    notes += note + "\n";
  };
  late.stop_after = 1;
  run(config, ranks, late);
  return notes;
}

TEST(LateRanks, SayHowGradientsGo) {
  using ::testing::HasSubstr;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  {
    const testing::FakeNccl none("/no/such/libnccl.so");
    EXPECT_THAT(way_of(config), HasSubstr("gradients go through the host: rank 0: NCCL"));
    EXPECT_THAT(way_of(config, 1), ::testing::Not(HasSubstr("gradients go")));
    config.parallel.device_link = "nccl";
    EXPECT_THAT([&] { way_of(config); }, ::testing::ThrowsMessage<Failure>(::testing::AllOf(
                                             HasSubstr("parallel.device_link = \"nccl\""),
                                             HasSubstr("/no/such/libnccl.so"))));
  }
  const Linked linked;
  EXPECT_THAT(way_of(config), HasSubstr("from GPU to GPU by NCCL 2.28.9"));
  config.parallel.reduction = "nccl";
  EXPECT_THAT(way_of(config), HasSubstr("from GPU to GPU by NCCL 2.28.9"));
  EXPECT_THAT([&] { run(config, 2); },
              ::testing::ThrowsMessage<Failure>(HasSubstr("it computes on no GPU")));
  config.parallel.device_link = "auto";
  config.parallel.reduction = "ring";
  EXPECT_THAT(way_of(config), HasSubstr("parallel.reduction = \"ring\" runs on the host only"));
}

/// NCCL's own sums have other bits, the same on all ranks, and the same accuracy.
TEST(LateRanks, NcclsOwnSums) {
  const Linked linked;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  const testing::Outcome want = run(config, 3);
  for (const int64_t zero : {0, 1}) {
    config.parallel.zero = zero;
    config.parallel.reduction = "nccl";
    train::TrainerOptions late;
    late.kernels = &testing::late_table();
    const testing::Outcome got = run(config, 3, late);
    EXPECT_THAT(got.losses, ::testing::Pointwise(::testing::DoubleNear(1e-3), want.losses));
    EXPECT_NE(got.values, want.values);
  }
}

}  // namespace
}  // namespace espalier
