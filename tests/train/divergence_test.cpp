// The warning about a run that diverges: when it comes, its numbers, and its fixes.
#include "src/train/run/divergence.h"

#include <cmath>
#include <limits>

#include "tests/support/support.h"

namespace espalier::divergence_test {
namespace {

using train::DivergenceMonitor;

class Divergence : public ::testing::Test {
 protected:
  /// Adds `count` steps of this loss; returns the warning of the first that has one.
  std::optional<std::string> add(int count, double loss, double norm = 1) {
    std::optional<std::string> first;
    for (int i = 0; i < count; ++i) {
      ++step_;
      const auto warning =
          monitor_.add({.step = step_, .loss = loss, .gradient_norm = norm, .lr = 0.004});
      first = first ? first : warning;
    }
    return first;
  }

  int64_t step_ = 0;
  io::OptimizerConfig config_{.warmup_steps = 20, .clip = 2};
  DivergenceMonitor monitor_{config_};
};

TEST_F(Divergence, ALossThatRisesIsNamedOnceWithItsNumbersAndFixes) {
  monitor_.restart(10);
  EXPECT_FALSE(add(30, 6, 1));
  const auto warning = add(10, 11.7, 50);
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning,
              AllOf(HasSubstr("loss 6.000 at step 1, 8.052 at step 32"),
                    HasSubstr("norm 1, then 18.6"), HasSubstr("rate 0.004, times up to 10"),
                    HasSubstr("lower optimizer.lr, raise optimizer.warmup_steps (20)"),
                    HasSubstr("lower optimizer.clip (2)"), HasSubstr("before step 2")))
      << *warning;
  EXPECT_FALSE(add(50, 11.7, 50)) << "one warning an episode";
  EXPECT_FALSE(add(50, 6));
  EXPECT_TRUE(add(10, 11.7)) << "a new episode";
}

TEST_F(Divergence, FixesFitTheRun) {
  config_.clip = 0;
  monitor_ = DivergenceMonitor(config_);
  add(100, 2);
  EXPECT_THAT(add(10, 4).value_or(""),
              AllOf(HasSubstr("lower optimizer.lr, or set optimizer.clip (for example 1)"),
                    Not(HasSubstr("warmup")), Not(HasSubstr("times"))));
}

TEST_F(Divergence, NoiseNewMasksAndSkippedStepsAreNoDivergence) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(add(1, 2 + 0.4 * std::sin(i)));
  }
  monitor_.restart(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(add(1, i % 2 == 0 ? 0.05 : 0.4));
  }
  monitor_.restart(1);
  EXPECT_FALSE(add(20, 4)) << "after a change of masks";
  EXPECT_FALSE(add(20, 4, std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(add(1, std::nan("")));
}

}  // namespace
}  // namespace espalier::divergence_test
