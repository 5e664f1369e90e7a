// Steps and sparsities of a pruning schedule, and the prunable parameters.

#include <algorithm>
#include <vector>

#include "io/config/patterned.h"
#include "pruning/pruning.h"
#include "pruning/schedule.h"
#include "tests/support/failure.h"

namespace espalier::pruning::pruning_schedule_test {
namespace {

PruningSchedule one_shot(int64_t step, double sparsity) {
  return {.from_step = step, .to_step = step, .final_sparsity = sparsity};
}

TEST(Schedule, OneShot) {
  const PruningSchedule schedule = one_shot(500, 0.9);
  check_pruning_schedule(schedule);
  EXPECT_EQ(target_sparsity(schedule, 499), 0.0);
  EXPECT_EQ(target_sparsity(schedule, 500), 0.9);
  EXPECT_EQ(prune_steps(schedule), std::vector<int64_t>{500});
  EXPECT_FALSE(prune_at(schedule, 501));
  EXPECT_TRUE(prune_steps(one_shot(5, 0.0)).empty());
}

TEST(Schedule, CubicFromEndToEnd) {
  const PruningSchedule schedule{.from_step = 100,
                                 .to_step = 350,
                                 .every = 60,
                                 .initial_sparsity = 0.3,
                                 .final_sparsity = 0.9};
  check_pruning_schedule(schedule);
  EXPECT_EQ(prune_steps(schedule), (std::vector<int64_t>{100, 160, 220, 280, 340, 350}));
  EXPECT_EQ(target_sparsity(schedule, 100), 0.3);
  EXPECT_EQ(target_sparsity(schedule, 350), 0.9);
  EXPECT_NEAR(target_sparsity(schedule, 225), 0.9 - 0.6 / 8, 1e-15)
      << "half way, an eighth is left";
  for (int64_t step = 1; step < 400; ++step) {
    EXPECT_GE(target_sparsity(schedule, step), target_sparsity(schedule, step - 1));
    const auto steps = prune_steps(schedule);
    EXPECT_EQ(prune_at(schedule, step), std::ranges::find(steps, step) != steps.end());
  }
}

TEST(Schedule, WrongTimingsAreNamed) {
  EXPECT_THROW(check_pruning_schedule({.from_step = 10, .to_step = 5}), Failure);
  EXPECT_THROW(check_pruning_schedule({.from_step = -1, .to_step = 5}), Failure);
  EXPECT_THROW(check_pruning_schedule({.to_step = 5, .every = 0}), Failure);
  EXPECT_THROW(check_pruning_schedule(one_shot(1, 1.0)), Failure);
  EXPECT_THROW(check_pruning_schedule({.initial_sparsity = 0.5, .final_sparsity = 0.4}), Failure);
}

TEST(Prunable, Globs) {
  EXPECT_TRUE(io::glob_match("*", ""));
  EXPECT_TRUE(io::glob_match("*.weight", "blocks.3.mlp.up.weight"));
  EXPECT_TRUE(io::glob_match("blocks.?.*.weight", "blocks.3.mlp.up.weight"));
  EXPECT_TRUE(io::glob_match("*a*b*", "xxaxxbxx"));
  EXPECT_TRUE(io::glob_match("a*ab", "aaab"));
  EXPECT_FALSE(io::glob_match("blocks.?.*.weight", "blocks.13.up.weight"));
  EXPECT_FALSE(io::glob_match("weight", "a.weight"));
  EXPECT_FALSE(io::glob_match("a?", "a"));
  EXPECT_FALSE(io::glob_match("", "a"));
  EXPECT_TRUE(io::glob_match("", ""));
}

TEST(Prunable, DefaultsAndExcludes) {
  const std::vector<ParameterInfo> parameters{{"embedding", Shape{10, 4}, false},
                                              {"blocks.0.up.weight", Shape{4, 4}, true},
                                              {"blocks.1.up.weight", Shape{4, 4}, true},
                                              {"blocks.0.up.bias", Shape{4}, false}};
  EXPECT_EQ(prunable(parameters, {}), (std::vector<bool>{false, true, true, false}));
  const std::vector<std::string> first_block{"blocks.0.*"};
  EXPECT_EQ(prunable(parameters, first_block), (std::vector<bool>{false, false, true, false}));
  EXPECT_THAT(failure_of([&] { prunable(parameters, std::vector<std::string>{"block.*"}); }),
              HasSubstr("\"block.*\" matches no parameter"));
}

}  // namespace
}  // namespace espalier::pruning::pruning_schedule_test
