// Masks that change during training, in whole runs: survivors keep their state, the method chooses
// the grown elements, ranks and resumed runs agree, and results do not depend on the storage.
#include <cmath>

#include "pruning/drop_grow.h"
#include "pruning/plan.h"
#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "tests/support/method_kinds.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::mask_change_test {
namespace {

using namespace testing;

io::Config moving(const TempDir& dir, const std::string& method) {
  io::Config config = tiny_config(dir);
  apply_settings(
      config, "pruning.sparsity=0.8 pruning.to_step=11 pruning.every=3 pruning.method=" + method);
  return config;
}

/// "METHOD", "METHOD gradually", or "METHOD later": masks move from step 3 on, or change there.
io::Config changing(const TempDir& dir, const std::string& way) {
  io::Config config = moving(dir, way.substr(0, way.find(' ')));
  if (way.ends_with(" gradually")) {
    config.pruning.from_step = 2;
  } else if (way.ends_with(" later")) {
    config.pruning.at_step = 3;
    config.pruning.to_step = testing::moves(pruning::method_of(config.pruning)) ? 11 : -1;
  } else if (!testing::moves(pruning::method_of(config.pruning))) {
    config.pruning.to_step = -1;
  }
  return config;
}

/// All registered methods whose masks change during training or depend on gradients.
std::vector<std::string> ways() {
  std::vector<std::string> all{"magnitude gradually"};
  for (const pruning::Method* method : pruning::methods()) {
    const std::string name(method->name);
    if (testing::moves(*method)) {
      all.insert(all.end(), {name, name + " later"});
      if (method->sparsity == nullptr) {
        all.push_back(name + " gradually");
      }
    } else if (testing::learns(*method)) {
      all.insert(all.end(), {name + " later", name + " gradually"});
    } else if (testing::scores(*method)) {
      all.push_back(name);
    }
  }
  return all;
}

std::vector<std::string> storages() {
  std::vector<std::string> names{"dense", "expanded"};
  if (kernels::by_name("auto").spmm != nullptr) {
    names.emplace_back("sparse");
  }
  return names;
}

/// A trainer that has done `steps` steps, and a micro-batch of tokens in its stage.
struct Trained {
  Trained(const io::Config& config, int64_t steps, parallel::Communicator& ranks)
      : comm(ranks), trainer(config, ranks, {.resume = "none", .stop_after = steps}) {
    trainer.run();
    const auto inputs = stage().inputs(kSamples).span<int32_t>();
    const auto targets = stage().targets(kSamples).span<int32_t>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>(i * i % 7);
      targets[i] = static_cast<int32_t>(i % 5);
    }
  }
  train::Stage& stage() { return trainer.stage(); }
  sparse::Store& store() { return stage().store(); }
  void pass() { stage().forward_backward({.samples = kSamples, .loss_scale = 0.01}); }

  static constexpr int64_t kSamples = 12;
  parallel::Communicator& comm;
  train::Trainer trainer;
};

void after(int64_t steps, const io::Config& config, const std::function<void(Trained&)>& body) {
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    Trained run(config, steps, comm);
    body(run);
  });
}

using Dense = std::map<std::string, std::vector<float>>;

/// Gradients of pruned weights that a probe of the next pass measures.
Dense probed(Trained& run) {
  Dense seen;
  run.store().set_gradient_probe([&](const sparse::Parameter& parameter, const Tensor& gradient) {
    const auto values = gradient.span<float>();
    EXPECT_TRUE(seen.emplace(parameter.spec.name, std::vector(values.begin(), values.end())).second)
        << "once a pass";
  });
  run.pass();
  run.store().set_gradient_probe({});
  return seen;
}

using MaskChange = RunTestWithParam<std::string>;

void expect_dense_gradient(Trained& run) {
  sparse::Store& store = run.store();
  for (const sparse::Parameter& parameter : store.parameters()) {
    std::ranges::fill(store.part(store.gradient(), parameter).span<float>(), 7.0F);
  }
  const Dense seen = probed(run);
  EXPECT_EQ(seen.size(), 8U) << "four matrices of two blocks";
  for (const sparse::Parameter& parameter : store.parameters()) {
    const auto flat = store.part(store.gradient(), parameter).span<float>();
    EXPECT_EQ(std::ranges::all_of(flat, [](float g) { return g == 7.0F; }), !parameter.full())
        << parameter.spec.name;
  }
  // The same weights without pruning: the flat gradient is dense.
  Dense reference;
  std::vector<sparse::Mask> full;
  for (const sparse::Parameter& parameter : store.parameters()) {
    full.emplace_back(parameter.size());
  }
  store.set_masks(full);
  run.pass();
  for (const auto& [name, gradient] : seen) {
    const auto expected = store.full_gradient(store.find(name)).span<float>();
    ASSERT_EQ(gradient.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(gradient[i], expected[i], 2e-6) << name << " " << i;
    }
  }
}

TEST_P(MaskChange, AProbeSeesTheDenseGradientAndWritesNone) {
  config = moving(dir, "rigl");
  config.sparse.storage.fallback = GetParam();
  after(2, config, expect_dense_gradient);
}

/// Values and first moments by position.
std::map<int32_t, std::pair<float, float>> state_of(sparse::Store& store,
                                                    const sparse::Parameter& parameter) {
  const auto values = store.master(parameter);
  const auto moments = store.moment(parameter, 0);
  std::map<int32_t, std::pair<float, float>> state;
  size_t k = 0;
  for (const int32_t position : parameter.index.positions()) {
    state[position] = {values[k], moments[k]};
    ++k;
  }
  return state;
}

void expect_state_carried(Trained& run, const io::Config& config, int64_t step) {
  sparse::Store& store = run.store();
  std::map<std::string, std::map<int32_t, std::pair<float, float>>> before;
  for (const sparse::Parameter& parameter : store.parameters()) {
    before[parameter.spec.name] = state_of(store, parameter);
  }
  train::Pruner pruner(config, store);
  ASSERT_TRUE(pruner.due(step));
  const train::Change change =
      pruner.change(step, run.comm, [&](const train::PassSamples&) { run.pass(); });
  int64_t grown = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const auto& old = before[parameter.spec.name];
    for (const auto& [position, state] : state_of(store, parameter)) {
      const auto found = old.find(position);
      grown += found == old.end() ? 1 : 0;
      const std::pair<float, float> expected =
          found == old.end() ? std::pair(0.0F, 0.0F) : found->second;
      ASSERT_EQ(state, expected) << parameter.spec.name << " " << position;
    }
    if (!config.pruning.gradual()) {
      EXPECT_EQ(parameter.kept(), static_cast<int64_t>(old.size()));
    }
  }
  EXPECT_EQ(change.grown, grown);
  EXPECT_EQ(grown > 0, testing::moves(pruning::method_of(config.pruning)));
  const bool blocks = pruning::shape_of(config.pruning).height > 0;
  EXPECT_NEAR(pruner.sparsity().sparsity(), pruner.target(step), blocks ? 1e-3 : 1e-4);
}

TEST_P(MaskChange, SurvivorsKeepTheirStateAndNewOnesStartAtZero) {
  for (const char* way :
       {"rigl", "set", "rigl-block:4", "set-nm", "magnitude gradually", "rigl gradually"}) {
    SCOPED_TRACE(way);
    config = changing(dir, way);
    config.sparse.storage.fallback = GetParam();
    const int64_t step = config.pruning.gradual() ? 8 : 6;  // runs end before its change
    after(step, config, [&](Trained& run) { expect_state_carried(run, config, step); });
  }
}

void expect_rigl(Trained& run, const io::Config& config, int64_t step) {
  sparse::Store& store = run.store();
  const Dense gradients = probed(run);
  const double fraction =
      pruning::drop_fraction({.from_step = 0, .to_step = 11, .every = 3, .fraction = 0.3}, step);
  std::map<std::string, sparse::Mask> expected;
  for (const auto& [name, gradient] : gradients) {
    const sparse::Parameter& parameter = store.find(name);
    const std::vector<float> values = store.values(parameter);
    const int64_t count = std::llround(fraction * static_cast<double>(parameter.kept()));
    EXPECT_GT(count, 10) << name;
    sparse::Mask& mask = expected[name];
    mask = pruning::drop_to(parameter.index.mask(), values, parameter.kept() - count);
    std::get<pruning::Moving>(pruning::method_by_name("rigl").kind)
        .grow({.name = name,
               .count = count,
               .columns = parameter.spec.shape.cols(),
               .gradient = gradient},
              mask);
  }
  train::Pruner(config, store).change(step, run.comm, [&](const train::PassSamples&) {
    run.pass();
  });
  for (const auto& [name, mask] : expected) {
    EXPECT_EQ(store.find(name).index.mask(), mask) << name;
  }
}

TEST_P(MaskChange, RiglDropsTheSmallestAndGrowsByTheGradient) {
  config = moving(dir, "rigl");
  config.sparse.storage.fallback = GetParam();
  after(3, config, [&](Trained& run) { expect_rigl(run, config, 3); });
}

TEST_P(MaskChange, EveryStorageMovesTheSameMasks) {
  for (const char* way : {"rigl", "set", "rigl-nm", "set-block:4", "rigl-block:4 gradually",
                          "magnitude gradually", "rigl gradually"}) {
    config = changing(dir, way);
    const Outcome reference = run(config);
    config.sparse.storage.fallback = GetParam();
    const Outcome other = run(config);
    if (GetParam() == "sparse") {  // sums in another order
      EXPECT_THAT(other.losses, AreNear(reference.losses, 2e-5)) << way;
    } else {
      EXPECT_EQ(other, reference) << way;
    }
    EXPECT_EQ(other.positions, reference.positions) << way;
  }
}

INSTANTIATE_TEST_SUITE_P(Storages, MaskChange, ::testing::ValuesIn(storages()));

using MaskChangeWays = RunTestWithParam<std::string>;

TEST_P(MaskChangeWays, ResumeIsNoBreak) {
  config = changing(dir, GetParam());
  for (const int ranks : {1, 2}) {
    const Outcome whole = run(config, ranks);
    // At changes (3, 9 or 5, 8) and between.
    EXPECT_EQ(testing::run_with_breaks(config, ranks, {3, 5, 8, 9}), whole) << ranks << " ranks";
  }
  const bool blocks = pruning::shape_of(config.pruning).height > 0;
  EXPECT_NEAR(testing::read_json(dir / "run/summary.json")["sparsity"].get<double>(),
              pruning::sparsity_of(config.pruning), blocks ? 0.02 : 1e-4);
}

/// Gradients that train are summed in another order: masks could differ where two weights are equal
/// to seven digits.
TEST_P(MaskChangeWays, RanksMatchOneRank) {
  config = changing(dir, GetParam());
  const Outcome one = run(config);
  for (const int ranks : {2, 3}) {
    const Outcome many = run(config, ranks);
    EXPECT_EQ(many.positions, one.positions) << ranks;
    EXPECT_NEAR(many.losses.back(), one.losses.back(), 5e-6) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MaskChangeWays, ::testing::ValuesIn(ways()));

/// Compares with saliencies from the flat gradients of the dense network.
void expect_snip(Trained& run, const io::Config& config) {
  sparse::Store& store = run.store();
  const auto fill = [&](int64_t batch) {
    const auto inputs = run.stage().inputs(Trained::kSamples).span<int32_t>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>((i * i + 3 * static_cast<size_t>(batch)) % 7);
    }
  };
  train::Pruner pruner(config, store);
  std::map<std::string, std::vector<float>> saliency;
  for (int64_t batch = 0; batch < config.pruning.score_batches; ++batch) {
    fill(batch);
    run.pass();
    for (const sparse::Parameter& parameter : store.parameters()) {
      const auto gradient = store.full_gradient(parameter).span<float>();
      const std::vector<float> values = store.values(parameter);
      auto& sums = saliency[parameter.spec.name];
      sums.resize(values.size(), 0.0F);
      for (size_t i = 0; i < values.size(); ++i) {
        sums[i] += std::fabs(values[i] * gradient[i]);
      }
    }
  }
  pruner.change(0, run.comm, [&](const train::PassSamples& samples) {
    fill(samples.batch);
    run.pass();
  });
  float least_kept = HUGE_VALF;
  float most_pruned = 0;
  int64_t kept = 0;
  int64_t size = 0;
  for (size_t p = 0; p < pruner.prunable().size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    if (!pruner.prunable()[p]) {
      EXPECT_TRUE(parameter.full()) << parameter.spec.name;
      continue;
    }
    const sparse::Mask mask = parameter.index.mask();
    kept += mask.kept();
    size += mask.size();
    for (int64_t i = 0; i < mask.size(); ++i) {
      const float score = saliency[parameter.spec.name][static_cast<size_t>(i)];
      (mask[i] ? least_kept : most_pruned) =
          mask[i] ? std::min(least_kept, score) : std::max(most_pruned, score);
    }
  }
  EXPECT_EQ(kept, std::llround(0.2 * static_cast<double>(size)));
  EXPECT_GE(least_kept, most_pruned * (1 - 1e-3F));
}

TEST_P(MaskChange, SnipKeepsTheLargestSaliencies) {
  config = changing(dir, "snip");
  config.pruning.scope = "global";
  config.sparse.storage.fallback = GetParam();
  config.pruning.score_batches = 3;
  io::Config dense = config;
  dense.pruning.method = "none";
  after(2, dense, [&](Trained& run) { expect_snip(run, config); });
}

/// -w (H g) with H g by central differences of flat gradients, in plain loops.
void expect_grasp(Trained& run, const io::Config& config) {
  sparse::Store& store = run.store();
  train::Pruner pruner(config, store);
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<double>> gradient;
  const auto gradients = [&] {
    std::map<std::string, std::vector<double>> found;
    run.pass();
    for (const sparse::Parameter& parameter : store.parameters()) {
      const auto flat = store.full_gradient(parameter).span<float>();
      found[parameter.spec.name].assign(flat.begin(), flat.end());
    }
    return found;
  };
  const auto move = [&](double by) {
    for (size_t p = 0; p < pruner.prunable().size(); ++p) {
      sparse::Parameter& parameter = store.parameters()[p];
      const std::string& name = parameter.spec.name;
      std::vector<float> moved = values[name];
      for (size_t i = 0; pruner.prunable()[p] && i < moved.size(); ++i) {
        moved[i] += static_cast<float>(by * gradient[name][i]);
      }
      store.set_values(parameter, moved);
    }
  };
  double squares = 0;
  double squares_of_gradient = 0;
  gradient = gradients();
  for (size_t p = 0; p < pruner.prunable().size(); ++p) {
    const std::string& name = store.parameters()[p].spec.name;
    values[name] = store.values(store.parameters()[p]);
    for (size_t i = 0; pruner.prunable()[p] && i < values[name].size(); ++i) {
      squares += std::pow(static_cast<double>(values[name][i]), 2);
      squares_of_gradient += std::pow(gradient[name][i], 2);
    }
  }
  const double shift = 0.001 * std::sqrt(squares / squares_of_gradient);
  move(shift);
  const auto above = gradients();
  move(-shift);
  const auto below = gradients();
  move(0);
  pruner.change(0, run.comm, [&](const train::PassSamples&) { run.pass(); });
  std::vector<double> kept_scores;
  std::vector<double> all_scores;
  for (size_t p = 0; p < pruner.prunable().size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    const std::string& name = parameter.spec.name;
    const sparse::Mask mask = parameter.index.mask();
    size_t packed = 0;
    const std::vector<float> after = store.values(parameter);
    for (int64_t at = 0; at < mask.size(); ++at) {
      const auto i = static_cast<size_t>(at);
      if (mask[at]) {
        ASSERT_EQ(after[packed++], values[name][i]) << "values are restored to the bit";
      }
      if (pruner.prunable()[p]) {
        const double score =
            static_cast<double>(values[name][i]) * (above.at(name)[i] - below.at(name)[i]);
        all_scores.push_back(score);
        if (mask[at]) {
          kept_scores.push_back(score);
        }
      }
    }
  }
  std::ranges::sort(all_scores, std::greater<>());
  EXPECT_EQ(kept_scores.size(), std::llround(0.2 * static_cast<double>(all_scores.size())));
  // A one-sided difference has an error of first order: masks agree but for scores near the limit.
  const double limit = all_scores[kept_scores.size() - 1];
  const auto below_limit = std::ranges::count_if(kept_scores, [&](double s) { return s < limit; });
  EXPECT_LT(static_cast<double>(below_limit), 0.02 * static_cast<double>(kept_scores.size()));
}

TEST_P(MaskChange, GraspPrunesByTheHessianTimesTheGradient) {
  config = changing(dir, "grasp");
  config.pruning.scope = "global";
  config.sparse.storage.fallback = GetParam();
  config.pruning.score_batches = 1;
  io::Config dense = config;
  dense.pruning.method = "none";
  after(2, dense, [&](Trained& run) { expect_grasp(run, config); });
}

/// Runs `config` with hooks of the test instead of a pruning method's.
void run_with_hooks(const io::Config& config, int64_t steps,
                    const std::function<optim::GradientHooks(sparse::Store&)>& hooks,
                    const std::function<void(sparse::Store&)>& end) {
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .stop_after = steps});
    sparse::Store& store = trainer.stage().store();
    trainer.stage().set_gradient_hooks(hooks(store));
    trainer.run();
    end(store);
  });
}

using Arrays = std::map<std::string, std::vector<float>>;

using LearningMethods = RunTest;

TEST_F(LearningMethods, MovementAddsUpEveryStepOfTheWindow) {
  config = changing(dir, "movement gradually");
  config.train.steps = 20;  // prunes for the first time after step 5
  config.pruning.to_step = 18;
  Arrays expected;
  io::Config dense = config;
  dense.pruning.method = "none";
  run_with_hooks(
      dense, 4,
      [&](sparse::Store& store) -> optim::GradientHooks {
        return {.summed = {}, .accepted = [&](int64_t step, double scale) {
                  EXPECT_EQ(scale, 1);
                  for (const sparse::Parameter& parameter : store.parameters()) {
                    const std::vector<float> values = store.values(parameter);
                    const auto gradient = store.full_gradient(parameter).span<float>();
                    auto& sums = expected[parameter.spec.name];
                    sums.resize(values.size());
                    for (size_t i = 0; i < values.size() && step >= 2; ++i) {
                      sums[i] -= values[i] * gradient[i];
                    }
                  }
                }};
      },
      [](sparse::Store&) {});
  after(4, config, [&](Trained& run) {
    int seen = 0;
    for (const sparse::Parameter& parameter : run.store().parameters()) {
      EXPECT_EQ(run.store().pruning_arrays(parameter), parameter.spec.prunable ? 1 : 0);
      if (parameter.spec.prunable) {
        EXPECT_EQ(run.store().pruning_array(parameter, 0), expected[parameter.spec.name])
            << parameter.spec.name;
        ++seen;
      }
    }
    EXPECT_EQ(seen, 8) << "four matrices of two blocks";
  });
}

/// The gradient of the penalty in plain loops, with z and u of a run of the method.
TEST_F(LearningMethods, ElsaAddsThePenaltyToTheGradient) {
  config = changing(dir, "elsa gradually");
  config.optimizer.clip = 0.1;  // of the sum
  Arrays z;
  Arrays u;
  Arrays values;
  const auto read = [](Arrays& to, sparse::Store& store, int which) {
    for (const sparse::Parameter& parameter : store.parameters()) {
      if (parameter.spec.prunable) {
        to[parameter.spec.name] = store.pruning_array(parameter, which);
      }
    }
  };
  after(4, config, [&](Trained& run) {
    read(z, run.store(), 0);
    read(u, run.store(), 1);
    for (const sparse::Parameter& parameter : run.store().parameters()) {
      values[parameter.spec.name] = run.store().values(parameter);
    }
  });
  io::Config dense = config;
  dense.pruning.method = "none";
  bool differs = false;
  run_with_hooks(
      dense, 4,
      [&](sparse::Store& store) -> optim::GradientHooks {
        return {.summed =
                    [&](int64_t step, double) {
                      for (const sparse::Parameter& parameter : store.parameters()) {
                        const std::string& name = parameter.spec.name;
                        const std::vector<float> w = store.values(parameter);
                        const auto gradient = store.full_gradient(parameter).span<float>();
                        for (size_t i = 0; parameter.spec.prunable && step >= 2 && i < w.size();
                             ++i) {
                          gradient[i] += 0.01F * (w[i] - z[name][i] + u[name][i]);
                          differs |= w[i] != z[name][i];
                        }
                      }
                    },
                .accepted = {}};
      },
      [&](sparse::Store& store) {
        for (const sparse::Parameter& parameter : store.parameters()) {
          EXPECT_EQ(store.values(parameter), values[parameter.spec.name]) << parameter.spec.name;
        }
      });
  EXPECT_TRUE(differs);
  for (const auto& [name, all] : z) {
    const auto kept = std::ranges::count_if(all, [](float x) { return x != 0; });
    EXPECT_LT(kept, static_cast<int64_t>(all.size())) << name;
    EXPECT_TRUE(std::ranges::all_of(u[name], [](float x) { return x == 0; })) << "one projection";
  }
}

/// Without the pull, as many large weights would be pruned as magnitude prunes after these steps.
TEST_F(LearningMethods, ElsaPullsPrunedWeightsToZero) {
  const auto pruned_away = [&](const std::string& method) {
    config = changing(dir, "elsa gradually");
    apply_settings(config, "train.steps=60 optimizer.lr=5e-3");
    config.pruning.method = method;
    apply_settings(config, "pruning.from_step=10 pruning.to_step=60 pruning.every=5");
    if (method == "none") {
      config.pruning.from_step = config.pruning.to_step = -1;
    }
    double share = 0;
    after(59, config, [&](Trained& run) {
      std::vector<double> squares;
      for (const sparse::Parameter& parameter : run.store().parameters()) {
        if (parameter.spec.prunable) {
          for (const float value : run.store().values(parameter)) {
            squares.push_back(static_cast<double>(value) * static_cast<double>(value));
          }
        }
      }
      std::ranges::sort(squares);
      double small = 0;
      double all = 0;
      for (size_t i = 0; i < squares.size(); ++i) {
        all += squares[i];
        small += i < squares.size() / 5 * 4 ? squares[i] : 0;
      }
      share = small / all;
    });
    return share;
  };
  EXPECT_LT(pruned_away("elsa"), 0.75 * pruned_away("none"));
}

using MovingMasks = RunTest;

TEST_F(MovingMasks, TheStepOfAChangeSendsDenseGradientsAsIntegers) {
  config = moving(dir, "rigl");
  config.pruning.distribution = "uniform";  // no layer is full
  run(config, 2);
  const auto lines = io::read_metrics(dir / "run/metrics.jsonl");
  const auto bytes = [&](size_t step) { return lines[step - 1]["allreduce_bytes"].get<int64_t>(); };
  const auto summary = testing::read_json(dir / "run/summary.json");
  // Two ranks send 2 (p - 1) / p = 1 times the bytes of the summed array.
  // Of integers of 8 bytes, and of the largest gradient of each of the 8 matrices.
  EXPECT_EQ(bytes(4) - bytes(3), 8 * (summary["prunable_parameters"].get<int64_t>() + 8));
  EXPECT_EQ(bytes(3), bytes(2));
  EXPECT_GT(lines[3]["comm_bytes_sent"].get<int64_t>(), bytes(4));
}

/// Master copies by position, after `steps` steps.
std::map<std::string, std::map<int32_t, std::pair<float, float>>> states_after(
    int64_t steps, const io::Config& config) {
  std::map<std::string, std::map<int32_t, std::pair<float, float>>> states;
  after(steps, config, [&](Trained& run) {
    for (const sparse::Parameter& parameter : run.store().parameters()) {
      if (!parameter.full()) {
        states[parameter.spec.name] = state_of(run.store(), parameter);
      }
    }
  });
  return states;
}

TEST_F(MovingMasks, FirstUpdatesOfNewElementsAreNoLargerThanThoseOfOthers) {
  config = moving(dir, "set");
  apply_settings(config,
                 "optimizer.beta2=0.999 optimizer.weight_decay=0 train.steps=120 "
                 "pruning.to_step=110 pruning.every=100");
  const auto before = states_after(100, config);
  double others = 0, fresh = 0;
  int64_t survivors = 0, grown = 0;
  for (const auto& [name, state] : states_after(101, config)) {
    for (const auto& [position, now] : state) {
      const auto found = before.at(name).find(position);
      if (found == before.at(name).end()) {
        fresh += std::pow(static_cast<double>(now.first), 2);
        ++grown;
      } else {
        others += std::pow(static_cast<double>(now.first - found->second.first), 2);
        ++survivors;
      }
    }
  }
  ASSERT_GT(grown, 20);
  // From a second moment of zero, all new elements would move by 0.1 / sqrt(0.001) = 3.2 lr.
  EXPECT_LT(fresh / static_cast<double>(grown), others / static_cast<double>(survivors));
}

TEST_F(MovingMasks, LearnWhileTheyMove) {
  for (const char* method : {"rigl", "set"}) {
    config = moving(dir, method);
    apply_settings(config,
                   "train.steps=150 optimizer.lr=5e-3 pruning.sparsity=0.9 pruning.to_step=100 "
                   "pruning.every=10");
    // Letter frequencies alone give 2.8 nats; predicting the rest of each word gives less than 1.
    EXPECT_LT(run(config).losses.back(), 1.2) << method;
    EXPECT_NEAR(testing::read_json(dir / "run/summary.json")["sparsity"].get<double>(), 0.9, 1e-4);
  }
}

}  // namespace
}  // namespace espalier::mask_change_test
