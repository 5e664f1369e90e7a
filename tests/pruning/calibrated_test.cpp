// Methods that read the inputs of a matrix, against plain references.

#include <algorithm>
#include <cmath>
#include <random>

#include "pruning/inverse_factor.h"
#include "pruning/pruning.h"
#include "pruning/registry.h"
#include "src/core/error.h"
#include "tests/support/matchers.h"

namespace espalier::pruning::calibrated_test {
namespace {

using sparse::Index;
using sparse::Mask;

std::vector<float> normals(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> out(static_cast<size_t>(count));
  std::ranges::generate(out, [&] { return draw(random); });
  return out;
}

/// W [out, in] and inputs X [samples, in] that depend on each other: each is a mix of `hidden`.
struct Problem {
  int64_t out = 24, in = 150, samples = 400;
  std::vector<float> w, x;

  explicit Problem(unsigned seed, int64_t hidden = 30) {
    w = normals(out * in, seed);
    const std::vector<float> mix = normals(hidden * in, seed + 1);
    const std::vector<float> source = normals(samples * hidden, seed + 2);
    x = normals(samples * in, seed + 3);
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t i = 0; i < in; ++i) {
        float& value = x[s * in + i];
        value *= 0.3F;
        for (int64_t h = 0; h < hidden; ++h) {
          value += source[s * hidden + h] * mix[h * in + i] / std::sqrt(static_cast<float>(hidden));
        }
        value *= 0.2F + 2 * static_cast<float>(i % 7);  // features of different sizes
      }
    }
  }

  double input(int64_t s, int64_t i) const { return x[s * in + i]; }
  std::vector<double> squares() const {
    std::vector<double> sums(static_cast<size_t>(in));
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t i = 0; i < in; ++i) {
        sums[i] += input(s, i) * input(s, i);
      }
    }
    return sums;
  }
  std::vector<double> products() const {
    std::vector<double> sums(static_cast<size_t>(in * in));
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t i = 0; i < in; ++i) {
        for (int64_t j = 0; j < in; ++j) {
          sums[i * in + j] += input(s, i) * input(s, j);
        }
      }
    }
    return sums;
  }
  /// ‖(W - Ŵ) X‖²
  double error(const std::vector<float>& pruned) const {
    double sum = 0;
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t s = 0; s < samples; ++s) {
        double one = 0;
        for (int64_t i = 0; i < in; ++i) {
          const auto at = static_cast<size_t>(o * in + i);
          one += (static_cast<double>(w[at]) - static_cast<double>(pruned[at])) * input(s, i);
        }
        sum += one * one;
      }
    }
    return sum;
  }
};

struct Pruned {
  Mask mask;
  std::vector<float> weights;  ///< dense, zeros where pruned
  std::vector<std::string> warnings;
};

Pruned prune_with(const std::string& method, const std::vector<float>& w, const Shape& shape,
                  std::vector<double> statistic, double sparsity, const Mask& before) {
  Arena arena;
  const Index index(arena, before, sparse::Encoding::bitmap);
  std::vector<float> values;
  sparse::for_each_one(before.words(), [&](int64_t i) { values.push_back(w[i]); });
  const Candidate matrix{.name = "w", .shape = shape, .index = &index, .values = values};
  const Settings settings{.method = method, .sparsity = sparsity};
  Result result = method_by_name(method).run == nullptr
                      ? prune_matrix(matrix, std::move(statistic), settings, values)
                      : prune({&matrix, 1}, settings);
  Pruned pruned{.mask = result.masks.front(),
                .weights = std::vector<float>(w.size()),
                .warnings = result.warnings};
  size_t next = 0;
  sparse::for_each_one(before.words(), [&](int64_t i) {
    pruned.weights[i] = pruned.mask[i] ? values[next] : 0;
    ++next;
  });
  return pruned;
}

Pruned prune_with(const std::string& method, const Problem& problem, std::vector<double> statistic,
                  double sparsity) {
  return prune_with(method, problem.w, Shape{problem.out, problem.in}, std::move(statistic),
                    sparsity, Mask(problem.out * problem.in));
}

TEST(InverseFactor, IsTheCholeskyFactorOfTheInverse) {
  const Problem problem(3);
  const auto n = static_cast<size_t>(problem.in);
  const std::vector<double> a = problem.products();
  std::vector<double> u = a;
  ASSERT_TRUE(factor_inverse(u, problem.in));
  for (size_t i = 0; i < n; ++i) {
    EXPECT_GT(u[i * n + i], 0);
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;  // (A Uᵀ U) of i, j
      for (size_t k = 0; k < n; ++k) {
        double inverse = 0;
        for (size_t h = 0; h <= std::min(k, j); ++h) {
          inverse += u[h * n + k] * u[h * n + j];
        }
        sum += a[i * n + k] * inverse;
      }
      EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-7) << i << " " << j;
    }
  }
}

TEST(InverseFactor, RefusesMatricesWithoutOne) {
  std::vector<double> indefinite{1, 2, 2, 1};
  EXPECT_FALSE(factor_inverse(indefinite, 2));
  std::vector<double> infinite{1, 0, 0, HUGE_VAL};
  EXPECT_FALSE(factor_inverse(infinite, 2));
  std::vector<double> nan{1, 0, 0, NAN};
  EXPECT_FALSE(factor_inverse(nan, 2));
}

TEST(Wanda, KeepsTheLargestProductsOfEachRow) {
  const Problem problem(5);
  const std::vector<double> squares = problem.squares();
  Mask before(problem.out * problem.in);
  for (int64_t i = 0; i < before.size(); i += 3) {
    before.set(i, false);
  }
  for (int64_t i = 0; i < 120; ++i) {
    before.set(i, false);  // the first row has 20 left
  }
  const Pruned pruned =
      prune_with("wanda", problem.w, Shape{problem.out, problem.in}, squares, 0.8, before);
  for (int64_t row = 0; row < problem.out; ++row) {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t i = 0; i < problem.in; ++i) {
      const int64_t at = row * problem.in + i;
      if (before[at]) {
        scores.emplace_back(-std::abs(static_cast<double>(problem.w[at])) * std::sqrt(squares[i]),
                            at);
      }
    }
    std::ranges::sort(scores);
    for (size_t place = 0; place < scores.size(); ++place) {
      const int64_t at = scores[place].second;
      EXPECT_EQ(pruned.mask[at], place < 30) << row << " " << place;
      if (pruned.mask[at]) {
        EXPECT_EQ(pruned.weights[at], problem.w[at]);
      }
    }
  }
  EXPECT_EQ(pruned.mask.kept(), 20 + (problem.out - 1) * 30);
  ASSERT_EQ(pruned.warnings.size(), 1U);
  EXPECT_THAT(pruned.warnings[0], HasSubstr("1 of 24 rows"));
}

/// The least squares solution for the kept elements of a row, with the same dampening: the update
/// of optimal brain surgeon for a given mask. Gaussian elimination.
std::vector<double> solve_kept(const std::vector<double>& h, const std::vector<double>& w,
                               const std::vector<size_t>& kept, size_t n) {
  const size_t m = kept.size();
  std::vector<std::vector<double>> a(m, std::vector<double>(m + 1));
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < m; ++j) {
      a[i][j] = h[kept[i] * n + kept[j]];
    }
    for (size_t j = 0; j < n; ++j) {
      a[i][m] += h[kept[i] * n + j] * w[j];
    }
  }
  for (size_t i = 0; i < m; ++i) {
    for (size_t row = 0; row < m; ++row) {
      const double factor = row == i ? 0 : a[row][i] / a[i][i];
      for (size_t j = 0; j <= m; ++j) {
        a[row][j] -= factor * a[i][j];
      }
    }
  }
  std::vector<double> out(n, 0.0);
  for (size_t i = 0; i < m; ++i) {
    out[kept[i]] = a[i][m] / a[i][i];
  }
  return out;
}

/// One row whose first columns are pruned: the sweep then is the exact solution. Elements pruned
/// before have no value, so the mask is that of the call.
TEST(SparseGpt, EqualsTheExactSolveWhereTheFirstColumnsArePruned) {
  constexpr size_t kIn = 6;
  constexpr size_t kGone = 3;
  const Problem problem(7);
  std::vector<double> h(kIn * kIn);
  const std::vector<double> all = problem.products();
  double mean = 0;
  for (size_t i = 0; i < kIn; ++i) {
    for (size_t j = 0; j < kIn; ++j) {
      h[i * kIn + j] = all[i * static_cast<size_t>(problem.in) + j];
    }
    mean += h[i * kIn + i] / kIn;
  }
  std::vector<double> dampened = h;
  for (size_t i = 0; i < kIn; ++i) {
    dampened[i * kIn + i] += 0.01 * mean;
  }
  const std::vector<float> w{1e-3F, -1e-3F, 2e-3F, 300, -200, 100};  // the first three go
  const Pruned pruned =
      prune_with("sparsegpt", w, Shape{1, kIn}, h, 0.5, Mask(static_cast<int64_t>(kIn)));
  std::vector<size_t> kept;
  for (size_t i = 0; i < kIn; ++i) {
    ASSERT_EQ(pruned.mask[static_cast<int64_t>(i)], i >= kGone);
    if (i >= kGone) {
      kept.push_back(i);
    }
  }
  const std::vector<double> exact =
      solve_kept(dampened, std::vector<double>(w.begin(), w.end()), kept, kIn);
  for (size_t i = 0; i < kIn; ++i) {
    EXPECT_NEAR(pruned.weights[i], exact[i], 1e-6 * std::abs(exact[i])) << i;
  }
}

/// Against the algorithm without blocks: after a column, its error changes all later columns, and
/// the inverse loses that column by elimination.
TEST(SparseGpt, EqualsThePlainSweepOverManyBlocks) {
  const Problem problem(9);
  const auto n = static_cast<size_t>(problem.in);  // more than one block of 128
  const Pruned pruned = prune_with("sparsegpt", problem, problem.products(), 0.6);
  std::vector<double> h = problem.products();
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    mean += h[i * n + i] / static_cast<double>(n);
  }
  for (size_t i = 0; i < n; ++i) {
    h[i * n + i] += 0.01 * mean;
  }
  // The inverse, by Gauss-Jordan elimination in place.
  for (size_t k = 0; k < n; ++k) {
    const double pivot = 1 / h[k * n + k];
    h[k * n + k] = 1;
    for (size_t j = 0; j < n; ++j) {
      h[k * n + j] *= pivot;
    }
    for (size_t i = 0; i < n; ++i) {
      const double factor = h[i * n + k];
      if (i != k) {
        h[i * n + k] = 0;
        for (size_t j = 0; j < n; ++j) {
          h[i * n + j] -= factor * h[k * n + j];
        }
      }
    }
  }
  std::vector<double> w(problem.w.begin(), problem.w.end());
  for (size_t c = 0; c < n; ++c) {
    for (size_t row = 0; row < static_cast<size_t>(problem.out); ++row) {
      double* const values = w.data() + row * n;
      if (!pruned.mask[static_cast<int64_t>(row * n + c)]) {
        const double error = values[c] / h[c * n + c];
        for (size_t k = c; k < n; ++k) {
          values[k] -= error * h[c * n + k];
        }
      }
    }
    for (size_t i = c + 1; i < n; ++i) {
      for (size_t j = c + 1; j < n; ++j) {
        h[i * n + j] -= h[i * n + c] * h[c * n + j] / h[c * n + c];
      }
    }
  }
  for (size_t i = 0; i < w.size(); ++i) {
    if (pruned.mask[static_cast<int64_t>(i)]) {
      EXPECT_NEAR(pruned.weights[i], w[i], 1e-4 * std::max(1.0, std::abs(w[i]))) << i;
    }
  }
  EXPECT_EQ(pruned.mask.kept(), kept_count(problem.out * problem.in, 0.6));
}

TEST(SparseGpt, ChangesOutputsLessThanWandaAndMagnitude) {
  for (const unsigned seed : {1U, 20U, 300U}) {
    const Problem problem(seed);
    for (const double sparsity : {0.5}) {
      const double magnitude =
          problem.error(prune_with("magnitude", problem, {}, sparsity).weights);
      const double wanda =
          problem.error(prune_with("wanda", problem, problem.squares(), sparsity).weights);
      const double sparsegpt =
          problem.error(prune_with("sparsegpt", problem, problem.products(), sparsity).weights);
      EXPECT_LT(sparsegpt, 0.5 * wanda) << seed << " " << sparsity;
      EXPECT_LT(wanda, 0.8 * magnitude) << seed << " " << sparsity;
    }
  }
}

TEST(SparseGpt, InputsThatAreAllZeroLeaveMagnitude) {
  const Problem problem(2);
  const auto zeros = [&](int64_t count) {
    return std::vector<double>(static_cast<size_t>(count), 0.0);
  };
  const Pruned pruned =
      prune_with("sparsegpt", problem.w, Shape{40, 90}, zeros(90 * 90), 0.7, Mask(40 * 90));
  EXPECT_EQ(pruned.mask,
            prune_with("magnitude", problem.w, Shape{40, 90}, {}, 0.7, Mask(40 * 90)).mask);
}

TEST(SparseGpt, ElementsPrunedBeforeStayAndAreReported) {
  const Problem problem(4);
  Mask before(problem.out * problem.in);
  for (int64_t i = 0; i < before.size(); ++i) {
    before.set(i, i % 4 == 0);
  }
  const auto run = [&](double sparsity) {
    return prune_with("sparsegpt", problem.w, Shape{problem.out, problem.in}, problem.products(),
                      sparsity, before);
  };
  const Pruned more = run(0.9);
  EXPECT_EQ(more.mask.kept(), kept_count(before.size(), 0.9));
  for (int64_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(before[i] || !more.mask[i]);
  }
  EXPECT_TRUE(more.warnings.empty());
  const Pruned fewer = run(0.5);
  EXPECT_EQ(fewer.mask, before);
  ASSERT_EQ(fewer.warnings.size(), 1U);
}

TEST(InputMethods, WrongSettingsAreNamed) {
  const Problem problem(2);
  EXPECT_THROW(prune_with("wanda", problem, problem.squares(), 1.0), Failure);
  EXPECT_THROW(prune_with("wanda", problem, problem.squares(), 0.9999), Failure);
  EXPECT_THROW(prune_with("sparsegpt", problem, problem.products(), 0.99999), Failure);
  std::vector<double> bad = problem.products();
  bad[0] = HUGE_VAL;
  EXPECT_THROW(prune_with("sparsegpt", problem, bad, 0.5), Failure);
  EXPECT_THROW(prune_with("wanda", problem, {1, 2, 3}, 0.5), Bug);
}

}  // namespace
}  // namespace espalier::pruning::calibrated_test
