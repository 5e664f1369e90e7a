// Every registered optimizer, with moments of 32 and of 8 bits: a quadratic loss falls, and pruned
// elements are not touched.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/core/rng.h"
#include "src/optim/optimizer.h"

namespace espalier::optim::optimizers_test {
namespace {

class Optimizers : public ::testing::TestWithParam<const OptimizerKind*> {};

/// Loss sum w^2 / 2 after some updates, relative to its initial value; half of the weights are
/// kept.
double relative_loss(std::string_view kind, int state_bits) {
  Arena arena;
  Stream stream(arena, 1);
  const kernels::Kernels& kernels = kernels::by_name("cpu");
  io::OptimizerConfig config;
  config.kind = kind;
  config.weight_decay = config.clip = 0;
  sparse::StoreOptions options{.encoding = {}};
  options.moments = optimizer_of(config).moments;
  options.state_bits = state_bits;
  sparse::Store store(stream, kernels,
                      {{.name = "w",
                        .shape = Shape{32, 48},
                        .initial = sparse::Initial::normal,
                        .deviation = 1,
                        .prunable = true}},
                      options);
  store.initialise(1);
  auto masks = store.masks();
  for (int64_t i = 0; i < masks[0].size(); i += 2) {
    masks[0].set(i, false);
  }
  store.set_masks(masks);
  const sparse::Parameter& weight = store.find("w");
  const auto loss = [&] {
    double sum = 0;
    for (const float w : store.values(weight)) {
      sum += 0.5 * static_cast<double>(w) * static_cast<double>(w);
    }
    return sum;
  };
  const double start = loss();
  Optimizer optimizer(store, kernels, config);
  for (int64_t step = 0; step < 50; ++step) {
    const std::vector<float> values = store.values(weight);
    std::ranges::copy(values, store.state(weight).gradient.get<float>());
    EXPECT_TRUE(optimizer.step(stream, step, 0.01).applied);
  }
  EXPECT_EQ(weight.kept(), masks[0].kept());
  return loss() / start;
}

/// `summed` may change the gradient that the update uses; `accepted` sees finite ones only.
TEST(GradientHooks, SeeEveryGradientBeforeItsUpdate) {
  Arena arena;
  Stream stream(arena, 1);
  const kernels::Kernels& kernels = kernels::by_name("cpu");
  io::OptimizerConfig config;
  config.kind = "sgd";
  config.momentum = config.weight_decay = config.clip = 0;
  sparse::StoreOptions options{.encoding = {}};
  options.moments = 1;
  sparse::Store store(stream, kernels, {{.name = "w", .shape = Shape{4, 4}}}, options);
  const sparse::Parameter& weight = store.find("w");
  const auto gradient = store.state(weight).gradient.span<float>();
  Optimizer optimizer(store, kernels, config);
  optimizer.set_scale(2, 0);
  std::vector<int64_t> accepted;
  optimizer.set_hooks({.summed =
                           [&](int64_t, double scale) {
                             EXPECT_EQ(scale, 2);
                             gradient[0] += 6;
                           },
                       .accepted =
                           [&](int64_t step, double scale) {
                             EXPECT_EQ(scale, 2);
                             EXPECT_EQ(store.values(weight)[0], 0) << "not updated yet";
                             accepted.push_back(step);
                           }});
  std::ranges::fill(gradient, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(optimizer.step(stream, 3, 0.5).applied);
  std::ranges::fill(gradient, 2.0F);
  EXPECT_TRUE(optimizer.step(stream, 4, 0.5).applied);
  EXPECT_EQ(accepted, (std::vector<int64_t>{4}));
  EXPECT_FLOAT_EQ(store.values(weight)[0], -0.5F * (2 + 6) / 2);
  EXPECT_FLOAT_EQ(store.values(weight)[1], -0.5F * 2 / 2);
}

/// Kind sgd against PyTorch's definition in double, on a matrix and a vector, which does not decay.
TEST(Sgd, IsThatOfPyTorch) {
  for (const bool nesterov : {false, true}) {
    Arena arena;
    Stream stream(arena, 1);
    const kernels::Kernels& kernels = kernels::by_name("cpu");
    io::OptimizerConfig config;
    config.kind = "sgd";
    config.momentum = 0.75;
    config.nesterov = nesterov;
    config.weight_decay = 0.125;
    config.clip = 0;
    sparse::StoreOptions options{.encoding = {}};
    options.moments = 1;
    sparse::Store store(
        stream, kernels,
        {{.name = "w", .shape = Shape{1, 1}, .decay = true}, {.name = "b", .shape = Shape{1}}},
        options);
    Optimizer optimizer(store, kernels, config);
    double w[2] = {0, 0}, m[2] = {0, 0};
    for (int64_t step = 0; step < 5; ++step) {
      const std::string_view names[2] = {"w", "b"};
      for (size_t i = 0; i < 2; ++i) {
        const double gradient = w[i] - 1 - static_cast<double>(step);
        store.state(store.find(names[i])).gradient.get<float>()[0] = static_cast<float>(gradient);
        const double d = gradient + (i == 0 ? 0.125 : 0) * w[i];
        m[i] = 0.75 * m[i] + d;
        w[i] -= 0.25 * (nesterov ? d + 0.75 * m[i] : m[i]);
      }
      EXPECT_TRUE(optimizer.step(stream, step, 0.25).applied);
      EXPECT_NEAR(store.values(store.find("w"))[0], w[0], 1e-5) << nesterov;
      EXPECT_NEAR(store.values(store.find("b"))[0], w[1], 1e-5) << nesterov;
    }
  }
}

TEST_P(Optimizers, AQuadraticLossFalls) {
  EXPECT_LT(relative_loss(GetParam()->name, 32), 0.6);
  EXPECT_LT(relative_loss(GetParam()->name, 8), 0.6);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         ::testing::ValuesIn(optimizers().begin(), optimizers().end()),
                         [](const auto& kind) { return std::string(kind.param->name); });

}  // namespace
}  // namespace espalier::optim::optimizers_test
