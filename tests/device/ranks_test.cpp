// Runs of several ranks, each with a device of its own: replicas, shared optimizers, codecs and pipelines
// have the bits of ranks on the CPU.
#include <gtest/gtest.h>

#include "tests/device/late_table.h"
#include "tests/support.h"
#include "tests/ways.h"

namespace espalier {
namespace {

using testing::run;
using testing::TempDir;

struct RanksWay {
  int ranks = 2;
  testing::Way way;
};

void code(io::Config& config, const std::string& codec) {
  config.parallel.codec.fallback = codec;
  config.parallel.codec_min_size = 64;
}

void pipe(io::Config& config, const std::string& schedule) {
  config.parallel.pipeline = 2;
  config.parallel.partition = {2, 2};
  config.parallel.schedule = schedule;
  config.train.micro_batch = 3;
}

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {3, {"replicas", testing::prune_sparse}},
      {2, {"rigl", testing::move_masks}},
      {2,
       {"zero",
        [](io::Config& config) {
          testing::prune_gradually(config);
          config.parallel.zero = 1;
          config.optimizer.state_bits = 8;
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
       {"asynchronous, offloaded",
        [](io::Config& config) {
          pipe(config, "async");
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
      {2,
       {"adaptive",
        [](io::Config& config) {
          code(config, "adaptive");
          config.parallel.codec_every = 3;
          testing::prune(config);
        }}},
      {2, {"pipeline", [](io::Config& config) { pipe(config, "1f1b"); }}},
      {2,
       {"codes between stages",
        [](io::Config& config) {
          pipe(config, "gpipe");
          config.parallel.activation_codec = "maxmin:8";
          testing::prune_expanded(config);
        }}},
      {2,
       {"deferred",
        [](io::Config& config) {
          pipe(config, "zb-h1");
          testing::prune_sparse(config);
          config.pruning.at_step = 0;
        }}},
      {4, {"grid", [](io::Config& config) { pipe(config, "1f1b"); }}},
      {2,
       {"asynchronous",
        [](io::Config& config) {
          pipe(config, "async");
          config.parallel.weight_prediction = "spectrain-consistent";
          config.parallel.drain_every = 4;
        }}},
  };
  return all;
}

class LateRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(LateRanks, HaveTheBitsOfTheCpu) {
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    train::TrainerOptions late;
    late.kernels = &testing::late_table();
    EXPECT_EQ(run(config, ranks, late), run(config, ranks));
  }
}

TEST_P(LateRanks, ResumeIsNoBreak) {
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = GetParam();
  code(config, "maxmin:4");
  config.parallel.error_feedback = true;
  const testing::Outcome whole = run(config, 2);
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

INSTANTIATE_TEST_SUITE_P(DTypes, LateRanks, ::testing::Values("fp32", "bf16"));

/// What is timed before the start is timed on the device, too.
TEST(LateRanks, TimeTheirLayers) {
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  pipe(config, "1f1b");
  config.parallel.partition.clear();
  config.parallel.activation_codec = "maxmin:8";
  train::TrainerOptions late;
  late.kernels = &testing::late_table();
  EXPECT_EQ(run(config, 2, late).losses.size(), static_cast<size_t>(config.train.steps));
}

}  // namespace
}  // namespace espalier
