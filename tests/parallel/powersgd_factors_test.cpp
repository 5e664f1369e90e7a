// State of matrices that are sent as two thin factors, and orthonormal columns.
#include "parallel/reduction/powersgd/factors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/parallel/rank_gradients.h"

namespace espalier::parallel::powersgd_factors_test {
namespace {

struct Alone {
  Arena arena;
  Stream stream{arena, 1};
  LowRank low_rank{kernels::by_name("cpu"), stream};

  std::vector<float> factor(size_t at) {
    const auto values = low_rank.factor(low_rank.matrices()[at]).span<float>();
    return {values.begin(), values.end()};
  }
};

TEST(LowRankMatrices, KeepTheirQWhereverTheyMoveAndStartWithOneOfTheirOwn) {
  Alone alone;
  const LowRankMatrix a{.first = 0, .rows = 8, .cols = 6, .rank = 2, .key = 11};
  const LowRankMatrix b{.first = 48, .rows = 5, .cols = 6, .rank = 2, .key = 12};
  alone.low_rank.set_matrices({a, b});
  const auto of_a = alone.factor(0);
  EXPECT_NE(of_a, alone.factor(1));
  EXPECT_THAT(of_a, ::testing::Each(::testing::AllOf(::testing::Ge(-1), ::testing::Lt(1))));
  alone.low_rank.factor(b).get<float>()[3] = 42;
  LowRankMatrix moved = b;
  moved.first = 16;
  alone.low_rank.set_matrices({moved});
  EXPECT_EQ(alone.factor(0)[3], 42);
  alone.low_rank.set_matrices({a, b});
  EXPECT_EQ(alone.factor(0), of_a) << "a was away, and begins anew";
  EXPECT_EQ(alone.factor(1)[3], 42);
  LowRankMatrix wider = b;
  wider.rank = 9;
  alone.low_rank.set_matrices({a, wider});
  EXPECT_EQ(alone.low_rank.matrices()[1].rank, 5) << "no more than rows and columns";
  EXPECT_NE(alone.factor(1)[3], 42);
  LowRankMatrix twin = b;
  twin.key = a.key;
  EXPECT_THROW(alone.low_rank.set_matrices({a, twin}), Bug);
  EXPECT_THROW(alone.low_rank.set_matrices({b, a}), Bug);
}

TEST(LowRankMatrices, AreFoundWhole) {
  Alone alone;
  alone.low_rank.set_matrices({{.first = 10, .rows = 5, .cols = 4, .key = 1},
                               {.first = 30, .rows = 5, .cols = 4, .key = 2},
                               {.first = 60, .rows = 5, .cols = 4, .key = 3}});
  const auto firsts = [&](int64_t first, int64_t count) {
    std::vector<int64_t> found;
    for (const LowRankMatrix& matrix : alone.low_rank.within({.first = first, .count = count})) {
      found.push_back(matrix.first);
    }
    return found;
  };
  EXPECT_THAT(firsts(0, 80), ::testing::ElementsAre(10, 30, 60));
  EXPECT_THAT(firsts(30, 20), ::testing::ElementsAre(30));
  EXPECT_THAT(firsts(0, 10), ::testing::ElementsAre());
  EXPECT_THAT(firsts(50, 10), ::testing::ElementsAre());
  EXPECT_THROW(firsts(0, 20), Bug);
  EXPECT_THROW(firsts(70, 40), Bug);
  EXPECT_TRUE(alone.low_rank.holds(30));
  EXPECT_FALSE(alone.low_rank.holds(50));
  alone.low_rank.set_active(false);
  EXPECT_THAT(firsts(0, 80), ::testing::ElementsAre());
  EXPECT_FALSE(alone.low_rank.holds(30));
}

TEST(Orthonormalise, MakesAnOrthonormalBasisOfNearlyDependentColumns) {
  constexpr int64_t kRows = 200;
  constexpr int64_t kRank = 5;
  Alone alone;
  const auto orthonormalise = [&](std::vector<float>& x) {
    kernels::by_name("cpu").orthonormalise(alone.stream,
                                           {.x = flat_of(x).reshaped(Shape{kRank, kRows})});
  };
  std::vector<float> p(kRank * kRows);
  const auto first = values(0, 0, kRows);
  for (int64_t k = 0; k < kRank; ++k) {
    const auto other = values(1, static_cast<int>(k), kRows);
    for (int64_t i = 0; i < kRows; ++i) {
      // They differ slightly; 2 is the sum of 0 and 1, and 4 is zero.
      const float differs = first[i] + 1e-4F * other[i];
      p[k * kRows + i] = k == 2 ? p[i] + p[kRows + i] : k == 4 ? 0 : differs;
    }
  }
  std::vector<float> large(p);
  std::ranges::transform(large, large.begin(), [](float x) { return x * 1e30F; });
  for (std::vector<float>* columns : {&p, &large}) {
    orthonormalise(*columns);
    for (int64_t a = 0; a < kRank; ++a) {
      for (int64_t b = 0; b < kRank; ++b) {
        const auto begin = columns->begin();
        const double product =
            std::inner_product(begin + a * kRows, begin + (a + 1) * kRows, begin + b * kRows, 0.0);
        const bool lives = a == b && a != 2 && a != 4;
        EXPECT_NEAR(product, lives ? 1 : 0, 1e-5) << a << " " << b;
      }
    }
  }
  p[3] = NAN;
  orthonormalise(p);
  EXPECT_TRUE(std::isnan(p[0]));
}

}  // namespace
}  // namespace espalier::parallel::powersgd_factors_test
