// Whole runs on a device have the bits of the CPU's: every storage, type, pruning and way to keep state.
// The host waits as often in a step of many micro-batches and layers as in one of few.
#include <gtest/gtest.h>

#include "tests/device/late_table.h"
#include "tests/support.h"
#include "tests/ways.h"

namespace espalier {
namespace {

using testing::late_table;
using testing::Outcome;
using testing::run;
using testing::TempDir;
using testing::tiny_config;

Outcome run_late(const io::Config& config, int ranks = 1, train::TrainerOptions options = {}) {
  options.kernels = &late_table();
  return run(config, ranks, options);
}

const std::vector<testing::Way>& ways() {
  static const std::vector<testing::Way> all{
      {"dense", [](io::Config&) {}},
      {"masked", testing::prune},
      {"sparse", testing::prune_sparse},
      {"expanded", testing::prune_expanded},
      {"gradual", testing::prune_gradually},
      {"rigl", testing::move_masks},
      {"int32",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.sparse.index.fallback = "int32";
       }},
      {"block",
       [](io::Config& config) {
         testing::prune(config);
         config.pruning.method = "block";
         config.pruning.block = 16;
         config.sparse.storage.fallback = "block";
       }},
      {"8 bits", [](io::Config& config) { config.optimizer.state_bits = 8; }},
      {"sgd", [](io::Config& config) { config.optimizer.kind = "sgd"; }},
      {"recompute",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.train.recompute = "full";
       }},
      {"micro-batches",
       [](io::Config& config) {
         config.train.micro_batch = 3;
         config.model.dropout = 0.1;
         config.train.eval_every = 4;
       }},
  };
  return all;
}

class LateRuns : public ::testing::TestWithParam<std::string> {};

TEST_P(LateRuns, HaveTheBitsOfTheCpu) {
  for (const testing::Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    EXPECT_EQ(run_late(config), run(config));
  }
}

TEST_P(LateRuns, GoOnWhereTheCpuStopped) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = GetParam();
  config.optimizer.state_bits = 8;
  testing::prune_sparse(config);
  const Outcome whole = run(config);
  for (const bool late_first : {false, true}) {
    train::TrainerOptions first;
    first.stop_after = 6;
    first.kernels = late_first ? &late_table() : nullptr;
    run(config, 1, first);
    train::TrainerOptions second;
    second.resume = "auto";
    second.kernels = late_first ? nullptr : &late_table();
    Outcome resumed = run(config, 1, second);
    resumed.losses = whole.losses;
    EXPECT_EQ(resumed, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LateRuns, ::testing::Values("fp32", "bf16"));

}  // namespace
}  // namespace espalier
