// Bits of each layer: against exhaustive search on small tables, and properties on any table.
// Examples computed by hand: bit_choice_cases_test.cpp.
#include "parallel/choice/bit_choice.h"

#include <gmock/gmock.h>

#include "tests/parallel/choice_tables.h"

namespace espalier::parallel::bit_choice_test {
namespace {

/// Calls `test(table, budget, draw)` on 4,000 small tables of every kind, with narrow and wide
/// budgets.
template <class Test>
void on_small_tables(const Test& test) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const int64_t layers = 1 + draw.below(6);
    const int choices = static_cast<int>(3 + draw.below(2));
    const auto kind = static_cast<Errors>(draw.below(3));
    const ChoiceTable table = random_table(draw, layers, choices, kind);
    const std::vector<double> alphas{0, 0.3, 0.9, 1, 1, 1.7, 1000};
    const ErrorBudget budget{.uniform = static_cast<int>(draw.below(choices)),
                             .alpha = alphas[draw.below(7)]};
    test(table, budget, draw);
  }
}

void expect_within(const Exhaustive& all, const BitChoice& result) {
  const double error = all.error(result.choice);
  EXPECT_EQ(result.within_budget, error <= all.limit()) << error << " of " << all.limit();
}

TEST(BitChoice, LeastBytesOfAllChoices) {
  int infeasible = 0;
  on_small_tables([&](const ChoiceTable& table, const ErrorBudget& budget, Draw& /*draw*/) {
    const Exhaustive all(table, budget);
    const auto best = all.best([&](const auto& choice) { return bytes_of(table, choice); });
    const BitChoice result = least_bytes(table, budget);
    EXPECT_TRUE(result.exact);
    expect_within(all, result);
    ASSERT_EQ(result.within_budget, best.cost < kInfinite);
    EXPECT_EQ(static_cast<double>(result.bytes), bytes_of(table, result.choice));
    if (result.within_budget) {
      EXPECT_EQ(static_cast<double>(result.bytes), best.cost);
      EXPECT_EQ(all.error(result.choice), best.error);
    } else {
      ++infeasible;
      ErrorBudget any = budget;
      any.alpha = 1e6;
      const Exhaustive wide(table, any);
      EXPECT_EQ(all.error(result.choice),
                wide.best([&](const auto& choice) { return wide.error(choice); }).error);
    }
  });
  EXPECT_GT(infeasible, 200);
  EXPECT_LT(infeasible, 2000);
}

TEST(BitChoice, LeastExposedOfAllChoices) {
  int hidden = 0;
  int exposed = 0;
  on_small_tables([&](const ChoiceTable& table, const ErrorBudget& budget, Draw& draw) {
    const ExchangeTimes times = random_times(draw, table);
    const Exhaustive all(table, budget);
    const auto seconds = [&](const auto& choice) { return exposed_seconds(table, times, choice); };
    const auto best = all.best(seconds);
    const BitChoice result = least_exposed(table, times, budget);
    EXPECT_TRUE(result.exact);
    expect_within(all, result);
    ASSERT_EQ(result.within_budget, best.cost < kInfinite);
    EXPECT_EQ(result.exposed, seconds(result.choice));
    if (result.within_budget) {
      EXPECT_EQ(result.exposed, best.cost);
      EXPECT_EQ(all.error(result.choice), best.error);
      ++(best.cost > 0 ? exposed : hidden);
    }
  });
  EXPECT_GT(hidden, 300);
  EXPECT_GT(exposed, 1000);
}

TEST(BitChoice, FewStatesCostNoMoreThanStated) {
  int dropped = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const ChoiceTable table = random_table(draw, 7, 4, Errors::smooth);
    const ExchangeTimes times = random_times(draw, table);
    const ErrorBudget budget{.uniform = 1, .states = 2 + 2 * draw.below(20)};
    const Exhaustive all(table, budget);
    const double part = 1 - 2 * 7 / static_cast<double>(budget.states);
    const BitChoice fewest = least_bytes(table, budget);
    const BitChoice soonest = least_exposed(table, times, budget);
    const auto bytes = [&](const auto& choice) { return bytes_of(table, choice); };
    const auto seconds = [&](const auto& choice) { return exposed_seconds(table, times, choice); };
    EXPECT_TRUE(fewest.within_budget && soonest.within_budget);
    expect_within(all, fewest);
    expect_within(all, soonest);
    EXPECT_LE(static_cast<double>(fewest.bytes), all.best(bytes, part).cost);
    EXPECT_GE(static_cast<double>(fewest.bytes), all.best(bytes).cost);
    EXPECT_LE(soonest.exposed, all.best(seconds, part).cost);
    EXPECT_GE(soonest.exposed, all.best(seconds).cost);
    dropped += fewest.exact ? 0 : 1;
  }
  EXPECT_GT(dropped, 150);
}

TEST(BitChoice, FewStatesFindTheOnlyChoiceWithinTheBudget) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const ChoiceTable table = random_table(draw, 30, 4, Errors::smooth);
    // A budget that the last choice, the most precise, meets, and hardly any other.
    const double part = uniform_choice(table, 3).error / uniform_choice(table, 0).error;
    const BitChoice result =
        least_bytes(table, {.uniform = 0, .alpha = part * (1 + 1e-9), .states = 2});
    EXPECT_TRUE(result.within_budget);
    EXPECT_LE(result.error, uniform_choice(table, 3).error * (1 + 2e-9));
  }
}

TEST(BitChoice, EqualErrorsNeedFewStates) {
  // Errors are integers up to 3: choices for 40 layers have few different sums.
  Draw draw(5);
  const ChoiceTable table = random_table(draw, 40, 4, Errors::ties);
  ChoiceTable fine = table;
  for (size_t i = 0; i < fine.bytes.size(); ++i) {
    fine.bytes[i] = 1000 + draw.below(1000);
  }
  EXPECT_TRUE(least_bytes(fine, {.uniform = 0, .alpha = 1000, .states = 60}).exact);
}

TEST(BitChoice, NeverWorseThanUniform) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const ChoiceTable table = random_table(draw, 60, 6, Errors::smooth);
    const ExchangeTimes times = random_times(draw, table);
    const ErrorBudget budget{.uniform = static_cast<int>(draw.below(6)),
                             .states = 2 + draw.below(300)};
    const BitChoice uniform = uniform_choice(table, budget.uniform);
    const BitChoice fewest = least_bytes(table, budget);
    const BitChoice soonest = least_exposed(table, times, budget);
    EXPECT_TRUE(fewest.within_budget && soonest.within_budget);
    EXPECT_LE(fewest.bytes, uniform.bytes);
    EXPECT_LE(soonest.exposed, exposed_seconds(table, times, uniform.choice));
    EXPECT_LE(fewest.error, uniform.error);
    EXPECT_LE(soonest.error, uniform.error);
  }
}

/// Lower bound on the bytes over all mixtures of choices: max over λ of the Lagrangian.
double lower_bound(const ChoiceTable& table, double limit) {
  double best = 0;
  for (double lambda = 1e-6; lambda < 1e9; lambda *= 1.02) {
    double bound = -lambda * limit;
    for (int64_t l = 0; l < table.layers; ++l) {
      double least = kInfinite;
      for (int c = 0; c < table.choices; ++c) {
        const size_t at = table.at(l, c);
        least = std::min(least, static_cast<double>(table.bytes[at]) + lambda * table.error[at]);
      }
      bound += least;
    }
    best = std::max(best, bound);
  }
  return best;
}

TEST(BitChoice, ManyLayersComeCloseToTheBound) {
  Draw draw(7);
  const ChoiceTable table = random_table(draw, 148, 10, Errors::smooth);
  const ErrorBudget budget{.uniform = 3};
  const BitChoice result = least_bytes(table, budget);
  const double bound = lower_bound(table, Exhaustive(table, budget).limit());
  EXPECT_FALSE(result.exact);
  EXPECT_GE(static_cast<double>(result.bytes), bound * 0.9999);
  EXPECT_LE(static_cast<double>(result.bytes), bound * 1.0002);
  EXPECT_LT(static_cast<double>(result.bytes),
            0.9 * static_cast<double>(uniform_choice(table, 3).bytes));
}

}  // namespace
}  // namespace espalier::parallel::bit_choice_test
