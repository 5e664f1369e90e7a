// Runs of several ranks, each with its own device: replicas, shared optimizers, codecs and
// pipelines have the bits of ranks on the CPU, whether gradients go through the host or from device
// to device.
#include "tests/device/late_runs.h"

namespace espalier::ranks_test {
namespace {

using testing::RanksWay;
using testing::run;
using testing::run_late;
using testing::TempDir;

/// Settings whose sums or codes run on the host.
const std::vector<RanksWay>& host_ways() {
  static const std::vector<RanksWay> all{
      {2, "stages:async parallel.weight_prediction=spectrain optimizer.offload=true"},
      {3, "codec:maxmin:4 parallel.reduction=ring parallel.error_feedback=true"},
      {2, "stages:1f1b"},
      {2, "stages:gpipe parallel.activation_codec=maxmin:8 prune_expanded"},
      {2, "stages:zb-h1 prune_sparse pruning.at_step=0"},
      {2, "stages:async parallel.weight_prediction=stash train.eval_every=4"},
  };
  return all;
}

/// Settings that may also sum from device to device.
const std::vector<RanksWay>& linked_ways() {
  static const std::vector<RanksWay> all{
      {3, "prune_sparse"},
      {2, "move_masks"},
      {3, "prune_gradually parallel.zero=1 optimizer.state_bits=8"},
      {3, "codec:maxmin:4 parallel.error_feedback=true parallel.rounding=stochastic prune"},
      {2, "codec:fp8-e5m2 parallel.zero=1 parallel.overlap=false"},
      {3, R"(prune_gradually parallel.zero=1 parallel.value_codec=maxmin:4
             parallel.codec_min_size=64)"},
      {2, R"(prune_sparse codec:maxmin:8 parallel.zero=1 parallel.value_codec=linear8
             optimizer.state_bits=8 optimizer.offload=true)"},
      {2, "codec:adaptive:3"},
      {4, "stages:1f1b"},
      {4, "stages:async train.eval_every=4 codec:maxmin:8"},
  };
  return all;
}

/// Eight steps, with changes of masks at 2, 3, 4, 5 and 6.
constexpr int64_t kSteps = 8;

TEST(LateRanks, HaveTheBitsOfTheCpu) {
  const testing::DrivenDevices driven;
  testing::for_ways(host_ways(), kSteps, [](io::Config config, int ranks) {
    const testing::Outcome want = run(config, ranks);
    config.parallel.device_link = "host";
    EXPECT_EQ(run_late(config, ranks), want);
  });
}

TEST(LateRanks, HaveTheBitsOfTheCpuByEitherLink) {
  const testing::LinkedDevices linked;
  testing::for_ways(linked_ways(), kSteps, [](io::Config config, int ranks) {
    const testing::Outcome want = run(config, ranks);
    for (const char* link : {"host", "nccl"}) {
      config.parallel.device_link = link;
      EXPECT_EQ(run_late(config, ranks), want) << link;
    }
  });
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

/// One run in parts, by each link in turn.
TEST(LateRanks, ResumeIsNoBreak) {
  const testing::LinkedDevices linked;
  for (const std::string& dtype : testing::late_dtypes()) {
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = dtype;
    testing::apply_settings(config, "codec:maxmin:4 parallel.error_feedback=true");
    const testing::Outcome whole = run(config, 2);
    config.parallel.device_link = "host";
    run_late(config, 2, {.stop_after = 4});
    config.parallel.device_link = "nccl";
    run_late(config, 2, {.resume = "auto", .stop_after = 8});
    testing::Outcome resumed = run_late(config, 2, {.resume = "auto"});
    resumed.losses = whole.losses;
    EXPECT_EQ(resumed, whole);
  }
}

/// The plan covers the memory of sums on the device to the byte, except for codecs that are chosen
/// later. The second step uses all of it.
TEST(LateRanks, LinkedByNcclHoldWhatWasPlanned) {
  const testing::LinkedDevices linked;
  testing::for_ways(linked_ways(), 4, [](io::Config config, int ranks) {
    config.pruning.method = "none";  // otherwise a mask change may set the peak of all memory
    const bool chosen = config.parallel.codec.fallback.starts_with("adaptive");
    if (config.parallel.pipeline > 1) {
      return;  // its plan is that of another stage
    }
    testing::train_late(config, ranks, [&](train::Trainer& trainer, const auto&) {
      EXPECT_GT(testing::expect_planned_messages(trainer, !chosen), 0U);
      constexpr size_t kCopies = 8192;  // copies of the inputs and losses of micro-batches
      EXPECT_EQ(trainer.fit().plan.pinned.at(static_cast<size_t>(Memory::communication)) > kCopies,
                chosen || config.parallel.error_feedback);
    });
  });
}

/// The rows of sums in trace.json are those of ranks on the CPU.
TEST(LateRanks, LinkedByNcclTraceTheirSums) {
  const testing::LinkedDevices linked;
  for (const int64_t zero : {0, 1}) {
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = zero == 0 ? "fp32" : "bf16";
    config.train.steps = 4;
    config.parallel.zero = zero;
    config.run.trace = true;
    run(config, 2);
    const std::vector<std::string> want = sums_in_trace(config);
    EXPECT_THAT(want, ::testing::SizeIs(::testing::Gt(8)));
    run_late(config, 2);
    EXPECT_EQ(sums_in_trace(config), want);
  }
}

/// Timings before the start also run on the device.
TEST(LateRanks, TimeTheirLayers) {
  const testing::DrivenDevices driven;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  testing::in_two_stages(config, "1f1b");
  config.parallel.partition.clear();
  config.parallel.activation_codec = "maxmin:8";
  EXPECT_EQ(run_late(config, 2).losses.size(), static_cast<size_t>(config.train.steps));
}

TEST(LateRanks, SayHowGradientsGo) {
  using ::testing::HasSubstr;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  {
    const testing::FakeNccl none("/no/such/libnccl.so");
    EXPECT_THAT(testing::notes_of(config),
                HasSubstr("gradients go through the host: rank 0: NCCL"));
    EXPECT_THAT(testing::notes_of(config, 1), ::testing::Not(HasSubstr("gradients go")));
    config.parallel.device_link = "nccl";
    EXPECT_THAT(
        [&] { testing::notes_of(config); },
        ::testing::ThrowsMessage<Failure>(::testing::AllOf(
            HasSubstr("parallel.device_link = \"nccl\""), HasSubstr("/no/such/libnccl.so"))));
  }
  const testing::LinkedDevices linked;
  EXPECT_THAT(testing::notes_of(config), HasSubstr("from GPU to GPU by NCCL 2.28.9"));
  config.parallel.reduction = "nccl";
  EXPECT_THAT(testing::notes_of(config), HasSubstr("from GPU to GPU by NCCL 2.28.9"));
  EXPECT_THAT([&] { run(config, 2); },
              ::testing::ThrowsMessage<Failure>(HasSubstr("it computes on no GPU")));
  config.parallel.device_link = "auto";
  config.parallel.reduction = "ring";
  EXPECT_THAT(testing::notes_of(config),
              HasSubstr("parallel.reduction = \"ring\" runs on the host only"));
}

/// NCCL's own sums have other bits, the same on all ranks, and the same accuracy.
TEST(LateRanks, NcclsOwnSums) {
  const testing::LinkedDevices linked;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  const testing::Outcome want = run(config, 3);
  for (const int64_t zero : {0, 1}) {
    config.parallel.zero = zero;
    config.parallel.reduction = "nccl";
    const testing::Outcome got = run_late(config, 3);
    EXPECT_THAT(got.losses, ::testing::Pointwise(::testing::DoubleNear(1e-3), want.losses));
    EXPECT_NE(got.values, want.values);
  }
}

}  // namespace
}  // namespace espalier::ranks_test
