// Distances between masks, and the steps at which they are compared.
#include "pruning/early_bird.h"

#include <gtest/gtest.h>

#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "src/core/error.h"

namespace espalier::pruning::early_bird_test {
namespace {

using sparse::Mask;

/// `count` kept elements from `first` on, of 100.
Mask run_of(int64_t first, int64_t count) {
  Mask mask(100, false);
  for (int64_t i = first; i < first + count; ++i) {
    mask.set(i, true);
  }
  return mask;
}

double distance(const MaskHistory& history, const std::vector<Mask>& masks) {
  return MaskHistory::largest_distance(history.compare(masks));
}

TEST(EarlyBird, TheDistanceIsTheShareOfKeptElementsThatDiffer) {
  const std::vector<bool> prunable{true, false, true};
  MaskHistory history(3);
  const std::vector<Mask> base{run_of(0, 10), Mask(7), run_of(50, 30)};
  EXPECT_FALSE(history.full());
  for (int i = 0; i < 5; ++i) {
    history.add(base, prunable);
  }
  EXPECT_TRUE(history.full());
  EXPECT_TRUE(history.has(0) && !history.has(1) && history.has(2));
  EXPECT_EQ(distance(history, base), 0);
  const std::vector<Mask> disjoint{run_of(20, 10), Mask(7), run_of(0, 30)};
  EXPECT_EQ(distance(history, disjoint), 1);
  // 4 of 40 elements are others: 8 differ, of 80.
  const std::vector<Mask> moved{run_of(1, 10), Mask(7), run_of(53, 30)};
  EXPECT_DOUBLE_EQ(distance(history, moved), 0.1);
}

TEST(EarlyBird, TheLargestDistanceToTheLastFiveCounts) {
  const std::vector<bool> prunable{true};
  MaskHistory history(1);
  for (int64_t first = 0; first < 7; ++first) {
    history.add(std::vector<Mask>{run_of(first, 10)}, prunable);
  }
  // The last five begin at 2 to 6.
  EXPECT_DOUBLE_EQ(distance(history, {run_of(7, 10)}), 0.5);
  EXPECT_DOUBLE_EQ(distance(history, {run_of(2, 10)}), 0.4);
}

TEST(EarlyBird, AHistoryIsRestoredAtAnyCheck) {
  const std::vector<bool> prunable{true};
  const Mask kept = run_of(0, 64);
  for (int64_t checks = 1; checks < 13; ++checks) {
    MaskHistory history(1);
    for (int64_t check = 0; check < checks; ++check) {
      history.add(std::vector<Mask>{run_of(check, 10)}, prunable);
    }
    const std::vector<float> numbers = history.numbers(0, kept);
    EXPECT_EQ(numbers.size(), 64U);
    MaskHistory again(1);
    again.set_checks(checks);
    again.restore(0, kept, numbers);
    for (int64_t check = checks; check < checks + 7; ++check) {
      const std::vector<Mask> next{run_of(check % 40, 12)};
      EXPECT_EQ(again.full(), history.full());
      EXPECT_EQ(again.compare(next).different, history.compare(next).different);
      EXPECT_EQ(again.compare(next).sizes, history.compare(next).sizes);
      again.add(next, prunable);
      history.add(next, prunable);
    }
  }
  MaskHistory damaged(1);
  EXPECT_THROW(damaged.restore(0, kept, std::vector<float>(64, 32.0F)), Failure);
}

TEST(EarlyBird, ChecksAreCountedByTheStep) {
  const io::PruningConfig config{.method = "early-bird", .to_step = 100, .every = 7};
  int64_t checks = 0;
  for (int64_t step = 0; step < 130; ++step) {
    EXPECT_EQ(checks_before(config, step), checks) << step;
    checks += check_at(config, step) ? 1 : 0;
  }
  EXPECT_EQ(checks, 14);
  EXPECT_FALSE(check_at(config, 0));
  EXPECT_EQ(pruning_schedule_of(config).from_step, 100);
  EXPECT_EQ(interval_of({.method = "early-bird"}), 100);
}

TEST(EarlyBird, WrongSettingsAreNamed) {
  const Method& method = method_by_name("early-bird");
  const auto with = [](int64_t to_step, int64_t every, int64_t at_step, int64_t from_step) {
    return io::PruningConfig{.method = "early-bird",
                             .at_step = at_step,
                             .from_step = from_step,
                             .to_step = to_step,
                             .every = every};
  };
  EXPECT_NO_THROW(method.check_config(with(61, 10, -1, -1)));
  EXPECT_THROW(method.check_config(with(60, 10, -1, -1)), Failure);
  EXPECT_THROW(method.check_config(with(-1, 10, -1, -1)), Failure);
  EXPECT_THROW(method.check_config(with(100, 10, 5, -1)), Failure);
  EXPECT_THROW(method.check_config(with(100, 10, -1, 5)), Failure);
}

}  // namespace
}  // namespace espalier::pruning::early_bird_test
