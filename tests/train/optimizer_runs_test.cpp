// Whole runs with every registered optimizer: the loss falls, resume is no break, ZeRO-1 changes no
// bit. In fp32 with moments of 32 bits, and in bf16 with moments of 8 bits, pruned in between.
#include "src/optim/registry.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::optimizer_runs_test {
namespace {

using namespace testing;

class OptimizerRuns : public RunTestWithParam<std::tuple<std::string, std::string>> {
 protected:
  OptimizerRuns() {
    const auto& [kind, types] = GetParam();
    apply_settings(config, "prune_sparse optimizer.kind=" + kind + types);
  }
};

TEST_P(OptimizerRuns, LearnAndResumeWithoutABreak) {
  const Outcome whole = run(config);
  EXPECT_LT(whole.losses.back(), whole.losses.front());
  EXPECT_EQ(run_with_breaks(config, 1, {6}), whole);
}

TEST_P(OptimizerRuns, ZeroChangesNoBit) {
  const Outcome replicas = run(config, 2);
  config.parallel.zero = 1;
  EXPECT_EQ(run(config, 2), replicas);
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerRuns,
    ::testing::Combine(::testing::ValuesIn(names(optim::optimizers())),
                       ::testing::Values("", " train.dtype=bf16 optimizer.state_bits=8")));

}  // namespace
}  // namespace espalier::optimizer_runs_test
