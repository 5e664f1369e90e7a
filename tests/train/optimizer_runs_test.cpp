// Whole runs with every registered optimizer: the loss falls, resume is no break, ZeRO-1 changes no
// bit. In fp32 with moments of 32 bits, and in bf16 with moments of 8 bits, pruned in between.
#include <gtest/gtest.h>

#include "src/optim/registry.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::optimizer_runs_test {
namespace {

using namespace testing;

class OptimizerRuns : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  io::Config config() const {
    io::Config made = testing::tiny_config(dir_);
    const auto& [kind, short_types] = GetParam();
    made.optimizer.kind = kind;
    testing::prune_sparse(made);
    if (short_types) {
      made.train.dtype = "bf16";
      made.optimizer.state_bits = 8;
    }
    return made;
  }
  testing::TempDir dir_;
};

TEST_P(OptimizerRuns, LearnAndResumeWithoutABreak) {
  io::Config made = config();
  const Outcome whole = run(made);
  EXPECT_LT(whole.losses.back(), whole.losses.front());
  EXPECT_EQ(testing::run_with_breaks(made, 1, {6}), whole);
}

TEST_P(OptimizerRuns, ZeroChangesNoBit) {
  io::Config made = config();
  const Outcome replicas = run(made, 2);
  made.parallel.zero = 1;
  EXPECT_EQ(run(made, 2), replicas);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerRuns,
                         ::testing::Combine(::testing::ValuesIn(names(optim::optimizers())),
                                            ::testing::Bool()),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) +
                                  (std::get<1>(tested.param) ? "_bf16_8" : "_fp32_32");
                         });

}  // namespace
}  // namespace espalier::optimizer_runs_test
