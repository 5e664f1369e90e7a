// Methods that score elements by gradients (grasp, movement, elsa), against plain loops.

#include <algorithm>
#include <cmath>
#include <random>

#include "pruning/pruning.h"
#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "pruning/selection.h"
#include "src/core/error.h"
#include "tests/support/matchers.h"

namespace espalier::pruning::learned_scores_test {
namespace {

using sparse::Index;
using sparse::Mask;

std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> values(count);
  std::ranges::generate(values, [&] { return draw(random); });
  return values;
}

/// The positions of the `keep` largest scores, ascending.
std::vector<int32_t> largest(const std::vector<double>& scores, size_t keep) {
  std::vector<int32_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int32_t>(i);
  }
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t i) { return scores[i]; });
  order.resize(keep);
  std::ranges::sort(order);
  return order;
}

/// A matrix of three parts whose scores differ by factors of a thousand.
struct ThreeParts {
  static constexpr int64_t kRows = 12, kColumns = 20;
  ThreeParts() {
    for (size_t i = 0; i < scores.size(); ++i) {
      const int64_t part = static_cast<int64_t>(i) / (kRows / 3 * kColumns);
      scores[i] =
          std::fabs(scores[i]) * static_cast<float>(std::pow(1e-3, static_cast<double>(part)));
    }
  }
  Result pruned(Scope scope) const {
    const Candidate candidate{.name = "qkv",
                              .shape = Shape{kRows, kColumns},
                              .index = &index,
                              .values = scores,
                              .scores = scores,
                              .parts = 3};
    const std::vector<Candidate> candidates{candidate};
    return prune(candidates, {.method = "snip", .sparsity = 0.75, .scope = scope});
  }
  std::vector<float> scores = normal(kRows * kColumns, 4);
  Index index = Index::full(kRows * kColumns);
};

TEST(Parts, ArePrunedApartInLayerScope) {
  const ThreeParts matrix;
  constexpr int64_t kPart = ThreeParts::kRows * ThreeParts::kColumns / 3;
  const Result apart = matrix.pruned(Scope::layer);
  ASSERT_EQ(apart.masks.size(), 1U);
  std::vector<int32_t> expected;
  for (int64_t part = 0; part < 3; ++part) {
    const auto begin = matrix.scores.begin() + part * kPart;
    for (const int32_t position : largest({begin, begin + kPart}, kPart / 4)) {
      expected.push_back(static_cast<int32_t>(part * kPart) + position);
    }
  }
  EXPECT_EQ(apart.masks[0].positions(), expected);
  EXPECT_TRUE(apart.warnings.empty()) << apart.warnings.front();
}

TEST(Parts, OutputsWithoutInputsAreReported) {
  const Result together = ThreeParts().pruned(Scope::global);
  EXPECT_LT(together.masks[0].positions().back(), 2 * ThreeParts::kRows / 3 * ThreeParts::kColumns);
  ASSERT_EQ(together.warnings.size(), 1U);
  EXPECT_THAT(together.warnings[0], HasSubstr("\"qkv\" keeps no input of "));
}

TEST(Scopes, TheDefaultIsTheMethods) {
  io::PruningConfig config;
  config.method = "snip";
  EXPECT_EQ(scope_of(config), Scope::layer);
  config.method = "magnitude";
  EXPECT_EQ(scope_of(config), Scope::global);
  config.scope = "layer";
  EXPECT_EQ(scope_of(config), Scope::layer);
}

TEST(OrderedKeys, FollowTheOrderOfNumbers) {
  const std::vector<float> ascending{-HUGE_VALF, -2.0F, -1.0F, -1e-45F,  0.0F,
                                     1e-45F,     1.0F,  3.0F,  HUGE_VALF};
  for (size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_LT(ordered_key(ascending[i - 1]), ordered_key(ascending[i])) << ascending[i];
  }
  EXPECT_EQ(ordered_key(-0.0F), ordered_key(0.0F));
}

/// The loss wᵀ A w / 2 - bᵀ w, with a Hessian A that is known.
struct Quadratic {
  static constexpr size_t kSize = 60;
  std::vector<float> a, b = normal(kSize, 2);
  Quadratic() {
    const std::vector<float> random = normal(kSize * kSize, 1);
    a.resize(random.size());
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t j = 0; j < kSize; ++j) {
        a[i * kSize + j] = random[i * kSize + j] + random[j * kSize + i];
      }
    }
  }
  std::vector<double> times_hessian(const std::vector<double>& x) const {
    std::vector<double> y(kSize, 0.0);
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t j = 0; j < kSize; ++j) {
        y[i] += static_cast<double>(a[i * kSize + j]) * x[j];
      }
    }
    return y;
  }
  std::vector<double> gradient(const std::vector<float>& w) const {
    std::vector<double> g = times_hessian({w.begin(), w.end()});
    for (size_t i = 0; i < kSize; ++i) {
      g[i] -= static_cast<double>(b[i]);
    }
    return g;
  }
};

TEST(Grasp, PrunesTheLargestProductsOfValueAndHessianGradient) {
  const Quadratic loss;
  const std::vector<float> w = normal(Quadratic::kSize, 3);
  const auto& method = std::get<OneShot>(method_by_name("grasp").kind);
  ASSERT_NE(method.score_shifted, nullptr);
  const Index index = Index::full(Quadratic::kSize);
  std::vector<float> scores(w.size(), 0.0F);
  Candidate candidate{.name = "w", .shape = Shape{6, 10}, .index = &index, .values = w};
  candidate.scores = scores;
  const auto add = [&](auto score, const std::vector<float>& at) {
    const std::vector<double> exact = loss.gradient(at);
    const std::vector<float> gradient(exact.begin(), exact.end());
    score(candidate, gradient, scores);
  };
  add(method.score, w);
  std::vector<float> moved = w;
  for (size_t i = 0; i < w.size(); ++i) {
    moved[i] += 0.01F * scores[i];
  }
  add(method.score_shifted, moved);
  const std::vector<double> hessian_gradient = loss.times_hessian(loss.gradient(w));
  std::vector<double> kept_first;  // the negative of the published score
  for (size_t i = 0; i < w.size(); ++i) {
    kept_first.push_back(static_cast<double>(w[i]) * hessian_gradient[i]);
  }
  const Result result = prune(std::span(&candidate, 1), {.method = "grasp", .sparsity = 0.7});
  EXPECT_EQ(result.masks[0].positions(), largest(kept_first, 18));
}

TEST(Movement, KeepsWhatGradientsMoveAwayFromZero) {
  const auto& method = std::get<Learning>(method_by_name("movement").kind);
  ASSERT_EQ(method.arrays, 1);
  constexpr size_t kSize = 40;
  std::vector<std::vector<float>> arrays{std::vector<float>(kSize, 0.0F)};
  std::vector<double> expected(kSize, 0.0);
  std::vector<float> values;
  for (unsigned step = 0; step < 5; ++step) {
    values = normal(kSize, step);
    std::vector<float> gradient = normal(kSize, 100 + step);
    for (size_t i = 0; i < kSize; ++i) {
      expected[i] -= static_cast<double>(values[i]) * static_cast<double>(gradient[i]);
    }
    method.observe({.values = values, .gradient = gradient, .arrays = {arrays[0]}});
  }
  std::vector<float> scores(kSize);
  method.score(values, arrays, scores);
  const Index index = Index::full(kSize);
  Candidate candidate{.name = "w", .shape = Shape{8, 5}, .index = &index, .values = values};
  candidate.scores = scores;
  const Result result = prune(std::span(&candidate, 1), {.method = "movement", .sparsity = 0.25});
  EXPECT_EQ(result.masks[0].positions(), largest(expected, 30));
  EXPECT_LT(*std::ranges::min_element(scores), -1.0F) << "the sign decides, not the size";
  scores[3] = NAN;
  EXPECT_THROW(prune(std::span(&candidate, 1), {.method = "movement", .sparsity = 0.25}), Failure);
}

TEST(Elsa, FollowsTheEquationsOfAdmm) {
  const auto& learning = std::get<Learning>(method_by_name("elsa").kind);
  ASSERT_EQ(learning.arrays, 2);
  constexpr size_t kSize = 12;
  constexpr size_t kKeep = 5;
  std::vector<std::vector<float>> arrays(2, std::vector<float>(kSize, 0.0F));
  std::vector<double> z(kSize, 0.0);
  std::vector<double> u(kSize, 0.0);
  const Index index = Index::full(kSize);
  for (unsigned round = 0; round < 4; ++round) {
    const std::vector<float> w = normal(kSize, 10 + round);
    std::vector<float> scores(kSize);
    learning.score(w, arrays, scores);
    Candidate candidate{.name = "w", .shape = Shape{3, 4}, .index = &index, .values = w};
    candidate.scores = scores;
    const double sparsity = 1 - static_cast<double>(kKeep) / kSize;
    const Mask mask =
        prune(std::span(&candidate, 1), {.method = "elsa", .sparsity = sparsity}).masks.front();
    learning.project(candidate, mask, round == 0, arrays);
    std::vector<double> sizes;
    for (size_t i = 0; i < kSize; ++i) {
      sizes.push_back(std::abs(static_cast<double>(w[i]) + u[i]));
    }
    const std::vector<int32_t> kept = largest(sizes, kKeep);
    EXPECT_EQ(mask.positions(), kept) << round;
    for (size_t i = 0; i < kSize; ++i) {
      const bool in = std::ranges::binary_search(kept, static_cast<int32_t>(i));
      z[i] = in ? static_cast<double>(w[i]) + u[i] : 0.0;
      u[i] += round == 0 ? 0.0 : static_cast<double>(w[i]) - z[i];
      EXPECT_NEAR(arrays[0][i], z[i], 1e-5) << round << " " << i;
      EXPECT_NEAR(arrays[1][i], u[i], 1e-5) << round << " " << i;
    }
    const std::vector<float> next = normal(kSize, 20 + round);
    std::vector<float> gradient(kSize, 2.0F);
    learning.add({.values = next, .gradient = gradient, .arrays = {arrays[0], arrays[1]}});
    for (size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(gradient[i], 2 + 0.01 * (static_cast<double>(next[i]) - z[i] + u[i]), 1e-6);
    }
  }
}

TEST(Learning, WindowsAndSchedules) {
  io::PruningConfig config{.method = "elsa", .sparsity = 0.9, .from_step = 10, .to_step = 50};
  EXPECT_EQ(learning_window_of(config).from_step, 10);
  EXPECT_EQ(learning_window_of(config).to_step, 50);
  EXPECT_EQ(prune_steps(pruning_schedule_of(config)), (std::vector<int64_t>{50}))
      << "elsa prunes once";
  config.method = "movement";
  config.every = 20;
  EXPECT_EQ(prune_steps(pruning_schedule_of(config)), (std::vector<int64_t>{30, 50}));
  config.from_step = config.to_step = -1;
  config.at_step = 7;
  EXPECT_EQ(learning_window_of(config).from_step, 0);
  EXPECT_EQ(learning_window_of(config).to_step, 7);
  check_learning_window(config);
  for (const int64_t step : {0, -1}) {
    config.at_step = step;
    EXPECT_THROW(check_learning_window(config), Failure) << "no step to learn from";
  }
}

}  // namespace
}  // namespace espalier::pruning::learned_scores_test
