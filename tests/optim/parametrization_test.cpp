// Factors of each parametrization: by the formulas, for each kind of parameter, at the current
// density, and in the update.
#include "src/optim/parametrization.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/optim/optimizer.h"

namespace espalier::optim::parametrization_test {
namespace {

class Parametrizations : public ::testing::Test {
 protected:
  Parametrizations() {
    config_.train.parametrization = "supar";
    config_.train.base_width = 16;
    config_.optimizer.weight_decay = config_.optimizer.clip = 0;
    config_.pruning.exclude = {"kept.*"};
    keep_every(4);
  }

  void keep_every(int64_t stride) {
    auto masks = store_.masks();
    for (size_t p = 0; p < masks.size(); ++p) {
      for (int64_t i = 0; store_.parameters()[p].spec.prunable && i < masks[p].size(); ++i) {
        masks[p].set(i, i % stride == 0);
      }
    }
    store_.restart(masks);
  }

  Parametrization::Factors of(const std::string& name) {
    return Parametrization(config_).factors_of(store_.find(name));
  }
  void expect(const std::string& name, double lr, double initial) {
    EXPECT_DOUBLE_EQ(of(name).lr, lr) << name;
    EXPECT_DOUBLE_EQ(of(name).initial_scale, initial) << name;
  }

  static sparse::ParameterSpec spec(const std::string& name, bool prunable, sparse::Scaling scaling,
                                    bool by_width = false) {
    return {.name = name,
            .shape = Shape{32, 64},
            .initial = sparse::Initial::normal,
            .deviation = 1,
            .prunable = prunable,
            .decay = true,
            .scaling = scaling,
            .width = 64,
            .deviation_by_width = by_width};
  }

  io::Config config_;
  Arena arena_;
  Stream stream_{arena_, 1};
  sparse::Store store_{
      stream_,
      kernels::by_name("cpu"),
      {spec("embedding", false, sparse::Scaling::base), spec("first", true, sparse::Scaling::base),
       spec("hidden", true, sparse::Scaling::hidden),
       spec("kept.hidden", true, sparse::Scaling::hidden),
       spec("hidden_by_width", true, sparse::Scaling::hidden, true),
       spec("logits", false, sparse::Scaling::logits),
       spec("logits_by_width", false, sparse::Scaling::logits, true)},
      {.encoding = {}}};
};

TEST_F(Parametrizations, StandardHasNoFactors) {
  config_.train.parametrization = "standard";
  for (const sparse::Parameter& parameter : store_.parameters()) {
    expect(parameter.spec.name, 1, 1);
  }
}

TEST_F(Parametrizations, SuparFollowsWidthAndDensity) {  // m_d = 4, density 1/4
  expect("embedding", 1, 1);
  expect("first", 4, 2);
  expect("hidden", 1, 1);
  expect("hidden_by_width", 1, 2);
  expect("logits", 0.25, 0.25);
  expect("logits_by_width", 0.25, 0.5);
  keep_every(1);
  expect("first", 1, 1);
  expect("hidden", 0.25, 0.5);
}

TEST_F(Parametrizations, DensityMayLeaveInitialValues) {
  config_.train.parametrization = "supar-lr";
  const double by_density = (64 + 8.0) / (16 + 8.0);  // 16 of 64 inputs of a row are kept
  expect("first", by_density, 1);
  expect("hidden", by_density / 4, 0.5);
  expect("logits", 0.25, 0.25);
  keep_every(1);
  expect("first", 1, 1);
}

TEST_F(Parametrizations, TheBaseWidthIsThatOfTheTunedNetwork) {
  config_.train.base_width = 32;
  expect("hidden", 2, std::sqrt(2.0));
  config_.train.base_width = 64;
  expect("hidden", 4, 2);
}

TEST_F(Parametrizations, ExcludedParametersHaveNoDensity) {
  config_.train.base_width = 0;
  expect("kept.hidden", 1, 1);
  expect("hidden", 4, 2);
}

TEST_F(Parametrizations, RatesOfSgdGrowWithTheWidth) {
  config_.optimizer.kind = "sgd";
  EXPECT_DOUBLE_EQ(of("embedding").lr, 4);
  EXPECT_DOUBLE_EQ(of("first").lr, 16);
  EXPECT_DOUBLE_EQ(of("hidden").lr, 4);
  EXPECT_DOUBLE_EQ(of("logits").lr, 0.25);
}

TEST_F(Parametrizations, UpdatesTakeTheFactor) {
  store_.initialise(1,
                    [&](const auto& parameter) { return of(parameter.spec.name).initial_scale; });
  const auto sum = [&](const std::string& name) {
    double total = 0;
    for (const float value : store_.values(store_.find(name))) {
      total += static_cast<double>(value);
    }
    return total / static_cast<double>(store_.find(name).kept());
  };
  const double hidden = sum("hidden");
  const double first = sum("first");
  for (const sparse::Parameter& parameter : store_.parameters()) {
    std::ranges::fill(store_.state(parameter).gradient.span<float>(), 1.0F);
  }
  Optimizer optimizer(store_, kernels::by_name("cpu"), config_.optimizer, 0,
                      Parametrization(config_));
  optimizer.step(stream_, 0, 0.01);  // the first step of Adam moves each element by lr
  EXPECT_NEAR(hidden - sum("hidden"), 0.01, 1e-6);
  EXPECT_NEAR(first - sum("first"), 0.04, 1e-6);
}

TEST_F(Parametrizations, WeightDecayDoesNotFollowTheFactor) {
  for (const OptimizerKind* kind : optimizers()) {
    config_.optimizer.kind = kind->name;
    config_.optimizer.weight_decay = 0.5;
    sparse::Store store(stream_, kernels::by_name("cpu"),
                        {spec("first", true, sparse::Scaling::base)},
                        {.moments = kind->moments, .encoding = {}});
    std::vector<sparse::Mask> masks = store.masks();
    for (int64_t i = 0; i < masks[0].size(); ++i) {
      masks[0].set(i, i % 2 == 0);  // factor 2
    }
    store.restart(masks);
    store.initialise(1, [](const auto&) { return 1.0; });
    const std::vector<float> before = store.values(store.find("first"));
    std::ranges::fill(store.gradient().span<float>(), 0.0F);
    Optimizer optimizer(store, kernels::by_name("cpu"), config_.optimizer, 0,
                        Parametrization(config_));
    optimizer.step(stream_, 0, 0.01);
    const std::vector<float> after = store.values(store.find("first"));
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_NEAR(after[i], before[i] * (1 - 0.01 * 0.5), 1e-6) << kind->name;
    }
  }
}

}  // namespace
}  // namespace espalier::optim::parametrization_test
