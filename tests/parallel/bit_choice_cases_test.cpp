// Bits of each layer on examples computed by hand, and when compression pays.
#include "parallel/choice/bit_choice.h"
#include "parallel/choice/break_even.h"
#include "src/core/error.h"
#include "tests/parallel/choice_tables.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::bit_choice_cases_test {
namespace {

using ::testing::Each;

TEST(BitChoiceCases, OneLayerAndNone) {
  const ChoiceTable one{.layers = 1, .choices = 3, .error = {9, 4, 1}, .bytes = {1, 2, 4}};
  EXPECT_THAT(least_bytes(one, {.uniform = 1}).choice, ElementsAre(1));
  EXPECT_THAT(least_bytes(one, {.uniform = 1, .alpha = 1.5}).choice, ElementsAre(0));
  EXPECT_THAT(least_bytes(one, {.uniform = 1, .alpha = 0.6}).choice, ElementsAre(2));
  const BitChoice none = least_bytes(one, {.uniform = 1, .alpha = 0.4});
  EXPECT_THAT(none.choice, ElementsAre(2));
  EXPECT_FALSE(none.within_budget);
  EXPECT_EQ(none.error, 1);
  EXPECT_EQ(none.bytes, 4);

  const ChoiceTable empty{.layers = 0, .choices = 2};
  EXPECT_TRUE(least_bytes(empty, {}).choice.empty());
  EXPECT_EQ(least_exposed(empty, {}, {}).exposed, 0);
}

TEST(BitChoiceCases, NoErrorAndEqualErrors) {
  // No error in any choice: the fewest bytes; ties take the earlier choice.
  ChoiceTable table{.layers = 3, .choices = 3, .bytes = {3, 2, 2, 1, 5, 5, 7, 6, 6}};
  table.error.assign(9, 0);
  EXPECT_THAT(least_bytes(table, {.uniform = 2}).choice, ElementsAre(1, 0, 1));
  table.error.assign(9, 2.5);
  EXPECT_THAT(least_bytes(table, {.uniform = 0}).choice, ElementsAre(1, 0, 1));
  // If the uniform choice has no error, only choices without error remain.
  table.error = {1, 0, 0, 1, 1, 0, 1, 1, 0};
  EXPECT_THAT(least_bytes(table, {.uniform = 2}).choice, ElementsAre(1, 2, 2));
}

TEST(BitChoiceCases, InfiniteErrors) {
  // Layer 0 overflows in choice 0; layer 1 is not finite in any choice; layer 2 in the uniform one.
  const double nan = std::nan("");
  const ChoiceTable table{.layers = 3,
                          .choices = 3,
                          .error = {kInfinite, 1, 0.5, kInfinite, nan, kInfinite, 2, nan, 1},
                          .bytes = {1, 2, 4, 1, 2, 4, 1, 2, 4}};
  const BitChoice result = least_bytes(table, {.uniform = 1});
  EXPECT_THAT(result.choice, ElementsAre(1, 1, 2));
  EXPECT_TRUE(result.within_budget);
  EXPECT_EQ(result.error, std::sqrt(2.0));
  EXPECT_THAT(least_bytes(table, {.uniform = 1, .alpha = 10}).choice, ElementsAre(1, 1, 0));
}

/// Six layers in three buckets; choice c has (c + 1) 2^20 bytes and error 4^-c.
ChoiceTable steps_table() {
  ChoiceTable table{.layers = 6, .choices = 4};
  for (int64_t l = 0; l < table.layers; ++l) {
    for (int c = 0; c < table.choices; ++c) {
      table.error.push_back(std::pow(0.25, c));
      table.bytes.push_back(int64_t{c + 1} << 20U);
    }
  }
  return table;
}

ExchangeTimes steps_times(const ChoiceTable& table, double rate) {
  return {.seconds = exchange_seconds(table, rate, std::vector<double>(table.bytes.size())),
          .ends = {2, 4, 6},
          .ready = {1, 2, 3},
          .latency = 0.001,
          .backward_end = 3};
}

TEST(LeastExposed, FastLinkTakesTheMostPreciseSlowLinkTheFewestBytes) {
  const ChoiceTable table = steps_table();
  const ErrorBudget budget{.uniform = 1, .alpha = 1.5};
  const BitChoice fast = least_exposed(table, steps_times(table, kInfinite), budget);
  EXPECT_THAT(fast.choice, Each(3));
  const BitChoice slow = least_exposed(table, steps_times(table, 1024), budget);
  const BitChoice fewest = least_bytes(table, budget);
  EXPECT_EQ(slow.bytes, fewest.bytes);
  EXPECT_EQ(slow.error, fewest.error);
  EXPECT_LT(slow.bytes, uniform_choice(table, 1).bytes);
}

TEST(LeastExposed, PrecisionWhereTimeIsHidden) {
  // 6 MiB/s: 1/6 s for each bit of a layer. Backward leaves one second for each of the first two
  // buckets: 6 bits, and 5 with all latencies. The last bucket is exposed, so it takes all of the
  // permitted error.
  const ChoiceTable table = steps_table();
  const ExchangeTimes times = steps_times(table, 6 << 20);
  const ErrorBudget budget{.uniform = 1, .alpha = 1.5};
  const BitChoice result = least_exposed(table, times, budget);
  EXPECT_NEAR(result.exposed, 2.0 / 6 + 0.001, 1e-12);
  EXPECT_THAT(std::vector(result.choice.begin() + 4, result.choice.end()), Each(0));
  EXPECT_EQ(result.choice[0] + 1 + result.choice[1] + 1, 6);
  EXPECT_EQ(result.choice[2] + 1 + result.choice[3] + 1, 5);
  EXPECT_GT(least_bytes(table, budget).error, result.error);
  // If the link has time left after backward, nothing is exposed, and precision is the highest that
  // fits.
  ExchangeTimes roomy = times;
  roomy.backward_end = 100;
  EXPECT_THAT(least_exposed(table, roomy, budget).choice, Each(3));
}

TEST(LeastExposed, TimesByHand) {
  const ChoiceTable table{.layers = 3, .choices = 1, .error = {0, 0, 0}, .bytes = {10, 20, 30}};
  ExchangeTimes times{.seconds = exchange_seconds(table, 10, std::vector<double>{1, 1, 1}),
                      .ends = {2, 3},
                      .ready = {2, 4},
                      .latency = 0.5,
                      .backward_end = 4};
  EXPECT_THAT(times.seconds, ElementsAre(2, 3, 4));
  // 2 + 0.5 + 2 + 3 = 7.5; then 0.5 + 4.
  const std::vector<int> only{0, 0, 0};
  EXPECT_EQ(link_end(table, times, only), 12);
  EXPECT_EQ(exposed_seconds(table, times, only), 8);
  times.ready = {2, 20};
  EXPECT_EQ(link_end(table, times, only), 24.5);
  times.backward_end = 30;
  EXPECT_EQ(least_exposed(table, times, {}).exposed, 0);
}

TEST(BitChoiceCases, MistakesAreBugs) {
  const ChoiceTable good = steps_table();
  const ExchangeTimes times = steps_times(good, 1000);
  EXPECT_THROW(least_bytes(good, {.uniform = 4}), Bug);
  EXPECT_THROW(least_bytes(good, {.alpha = -1}), Bug);
  EXPECT_THROW(least_bytes(good, {.alpha = std::nan("")}), Bug);
  EXPECT_THROW(least_bytes(good, {.states = 1}), Bug);
  ChoiceTable bad = good;
  bad.error.clear();
  EXPECT_THROW(least_exposed(bad, times, {}), Bug);
  ExchangeTimes wrong = times;
  wrong.ends = {2, 4, 5};
  EXPECT_THROW(least_exposed(good, wrong, {}), Bug);
}

TEST(BreakEven, Crossings) {
  using Pairs = std::vector<ExchangePair>;
  // Plain 1 ns each, compressed 600 ns and 1/4 ns each: equal at 800.
  const auto line = [](int64_t n) {
    const auto x = static_cast<double>(n);
    return ExchangePair{n, 1e-9 * x, 600e-9 + 0.25e-9 * x};
  };
  EXPECT_NEAR(static_cast<double>(break_even(Pairs{line(100), line(1000)})), 801, 1);
  EXPECT_NEAR(static_cast<double>(break_even(Pairs{line(1), line(700), line(1000), line(5000)})),
              801, 1);
  EXPECT_EQ(break_even(Pairs{line(1000), line(2000)}), 0);
  EXPECT_EQ(break_even(Pairs{line(100), line(700)}), kNeverPays);
  EXPECT_EQ(break_even(Pairs{line(900)}), 0);
  EXPECT_EQ(break_even(Pairs{line(600)}), kNeverPays);
  // Equal does not pay, one element more may.
  EXPECT_EQ(break_even(Pairs{{10, 2, 2}, {20, 4, 3}}), 11);
  EXPECT_EQ(break_even(Pairs{{10, 2, 3}, {20, 4, 4}}), kNeverPays);
  // The last of two crossings.
  EXPECT_EQ(break_even(Pairs{{0, 2, 1}, {10, 1, 2}, {30, 2, 1}}), 21);
  EXPECT_EQ(break_even(Pairs{{4, 1, 1e9}, {5, 2, 1}}), 5);
  EXPECT_THROW(break_even({}), Bug);
}

}  // namespace
}  // namespace espalier::parallel::bit_choice_cases_test
