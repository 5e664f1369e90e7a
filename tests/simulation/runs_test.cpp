// Whole trainings under random faults end with the bits of an undisturbed run, or with an error
// that names a rank, after which the run resumes to those bits (runs.h).
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>

#include "tests/simulation/runs.h"
#include "tests/support/draw.h"

namespace espalier::simulation::runs_test {
namespace {

TEST(SimulatedRuns, EndWithTheBitsOrWithAnError) {
  const testing::Numbers numbers(1, 201);
  uint64_t refused = 0;
  uint64_t failed = 0;
  for (uint64_t number = numbers.from; number < numbers.to; ++number) {
    const Verdict result = try_number(number);
    EXPECT_EQ(result.failure, "") << "number " << number;
    refused += result.refusal.empty() ? 0 : 1;
    failed += result.failed ? 1 : 0;
    if (numbers.from_environment) {
      std::printf("%lu: %s%s%s\n", number, result.refusal.c_str(),
                  fmt::format("{}", fmt::join(result.faults, "; ")).c_str(),
                  result.named    ? " (named)"
                  : result.failed ? " (failed)"
                                  : "");
      std::fflush(stdout);
    }
  }
  if (!numbers.from_environment) {  // the drawn settings and faults are worth their time
    EXPECT_LT(refused, (numbers.to - numbers.from) / 5);
    EXPECT_GT(failed, (numbers.to - numbers.from) / 5);
  }
}

/// Two simulations of one seed are the same, message by message; another seed orders them
/// otherwise.
TEST(SimulatedRuns, AreDeterminedByTheirSeed) {
  for (const uint64_t number : {1, 2, 3}) {
    const testing::TempDir dir;
    const Case run = draw_case(number, dir);
    const std::vector<Fault> faults{{.kind = FaultKind::stall, .rank = 1, .at = 300, .seconds = 1},
                                    {.kind = FaultKind::kill, .rank = 0, .at = 1000}};
    const Report one = train(run, {.seed = number, .faults = faults});
    std::filesystem::remove_all(run.config.run.out);  // a new folder is one more call of the disk
    const Report two = train(run, {.seed = number, .faults = faults});
    const Report other = train(run, {.seed = number + 1, .faults = faults});
    EXPECT_EQ(one.log, two.log) << number;
    EXPECT_EQ(one.faults, two.faults) << number;
    EXPECT_EQ(one.end, two.end) << number;
    EXPECT_NE(one.log, other.log) << number;
  }
}

/// Numbers that share an undisturbed run differ in their faults, and repeat without the others.
TEST(SimulatedRuns, NumbersOfAGroupRepeatAlone) {
  constexpr uint64_t kFirst = 1'000'000'000;
  std::vector<std::vector<std::string>> faults;
  for (uint64_t number = kFirst; number < kFirst + 4; ++number) {
    const Verdict result = try_number(number);
    EXPECT_EQ(result.failure, "") << "number " << number;
    EXPECT_EQ(result.refusal, "") << "number " << number;
    faults.push_back(result.faults);
  }
  EXPECT_NE(faults[1], faults[2]);
  try_number(1);  // of another group
  EXPECT_EQ(try_number(kFirst + 2).faults, faults[2]);
}

/// Each call of the disk takes longer than the timeout: all of them lie within a Busy.
TEST(SimulatedRuns, ASlowDiskLosesNoRank) {
  for (const uint64_t number : {1, 2, 3}) {
    const testing::TempDir dir;
    const Case run = draw_case(number, dir);
    const Report fast = train(run, {.seed = number});
    const RunResults want = results_of(run);
    const Report slow = train(
        run,
        {.seed = number, .disk_seconds = 1.1 * run.config.parallel.timeout_s, .most_seconds = 1e9});
    for (const Ending& ending : slow.endings) {
      EXPECT_EQ(ending.kind, Ending::Kind::returned) << number << ": " << ending.message;
    }
    EXPECT_TRUE(results_of(run) == want) << number;
  }
}

}  // namespace
}  // namespace espalier::simulation::runs_test
