// Masks that change during training, in whole runs: survivors keep their state, the method chooses
// the grown elements, ranks and resumed runs agree, and results do not depend on the storage.
#include <gtest/gtest.h>

#include <cmath>

#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "tests/support/support.h"

namespace espalier {
namespace {

using namespace testing;

io::Config moving(const TempDir& dir, const std::string& method) {
  io::Config config = tiny_config(dir);
  config.pruning.method = method;
  config.pruning.sparsity = 0.8;
  config.pruning.to_step = 11;
  config.pruning.every = 3;
  return config;
}

/// "METHOD", "METHOD gradually", or for moving masks "METHOD later": from step 3 on.
io::Config changing(const TempDir& dir, const std::string& way) {
  io::Config config = moving(dir, way.substr(0, way.find(' ')));
  if (way.ends_with(" gradually")) {
    config.pruning.from_step = 2;
  } else if (way.ends_with(" later")) {
    config.pruning.at_step = 3;
  } else if (!pruning::method_of(config.pruning).moving()) {
    config.pruning.to_step = -1;
  }
  return config;
}

/// All registered methods whose masks change during training or depend on gradients.
std::vector<std::string> ways() {
  std::vector<std::string> all{"magnitude gradually"};
  for (const pruning::Method* method : pruning::methods()) {
    const std::string name(method->name);
    if (method->moving()) {
      all.insert(all.end(), {name, name + " later", name + " gradually"});
    } else if (method->score != nullptr) {
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

class MaskChange : public ::testing::TestWithParam<std::string> {};

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
  const TempDir dir;
  io::Config config = moving(dir, "rigl");
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
  const train::Change change = pruner.change(step, run.comm, [&](int64_t) { run.pass(); });
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
  EXPECT_EQ(grown > 0, pruning::method_of(config.pruning).moving());
  EXPECT_NEAR(pruner.sparsity().sparsity(), pruner.target(step), 1e-4);
}

TEST_P(MaskChange, SurvivorsKeepTheirStateAndNewOnesStartAtZero) {
  for (const char* way : {"rigl", "set", "magnitude gradually", "rigl gradually"}) {
    SCOPED_TRACE(way);
    const TempDir dir;
    io::Config config = changing(dir, way);
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
    mask = pruning::drop_to(
        {.name = name, .shape = parameter.spec.shape, .index = &parameter.index, .values = values},
        parameter.kept() - count);
    pruning::method_by_name("rigl").grow({.name = name, .count = count, .gradient = gradient},
                                         mask);
  }
  train::Pruner(config, store).change(step, run.comm, [&](int64_t) { run.pass(); });
  for (const auto& [name, mask] : expected) {
    EXPECT_EQ(store.find(name).index.mask(), mask) << name;
  }
}

TEST_P(MaskChange, RiglDropsTheSmallestAndGrowsByTheGradient) {
  const TempDir dir;
  io::Config config = moving(dir, "rigl");
  config.sparse.storage.fallback = GetParam();
  after(3, config, [&](Trained& run) { expect_rigl(run, config, 3); });
}

TEST_P(MaskChange, EveryStorageMovesTheSameMasks) {
  for (const char* way : {"rigl", "set", "magnitude gradually", "rigl gradually"}) {
    const TempDir dir;
    io::Config config = changing(dir, way);
    const Outcome reference = run(config);
    config.sparse.storage.fallback = GetParam();
    const Outcome other = run(config);
    if (GetParam() == "sparse") {  // sums in another order
      for (size_t i = 0; i < reference.losses.size(); ++i) {
        EXPECT_NEAR(other.losses[i], reference.losses[i], 2e-5) << way << " step " << i + 1;
      }
    } else {
      EXPECT_EQ(other, reference) << way;
    }
    EXPECT_EQ(other.positions, reference.positions) << way;
  }
}

INSTANTIATE_TEST_SUITE_P(Storages, MaskChange, ::testing::ValuesIn(storages()));

class MaskChangeWays : public ::testing::TestWithParam<std::string> {};

TEST_P(MaskChangeWays, ResumeIsNoBreak) {
  const TempDir dir;
  const io::Config config = changing(dir, GetParam());
  for (const int ranks : {1, 2}) {
    const Outcome whole = run(config, ranks);
    for (const int64_t stop : {3, 5, 8, 9}) {  // at changes (3, 9 or 5, 8) and between
      EXPECT_EQ(testing::run_with_a_break(config, ranks, stop), whole)
          << ranks << " ranks, stopped after step " << stop;
    }
  }
  EXPECT_NEAR(testing::read_json(dir / "run/summary.json")["sparsity"].get<double>(), 0.8, 1e-4);
}

/// Gradients are summed in another order: masks could differ where two are equal to seven digits.
TEST_P(MaskChangeWays, RanksMatchOneRank) {
  const TempDir dir;
  const io::Config config = changing(dir, GetParam());
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
  pruner.change(0, run.comm, [&](int64_t batch) {
    fill(batch);
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
  const TempDir dir;
  io::Config config = changing(dir, "snip");
  config.sparse.storage.fallback = GetParam();
  config.pruning.score_batches = 3;
  io::Config dense = config;
  dense.pruning.method = "none";
  after(2, dense, [&](Trained& run) { expect_snip(run, config); });
}

TEST(MovingMasks, TheStepOfAChangeSendsOneMoreDenseGradient) {
  const TempDir dir;
  io::Config config = moving(dir, "rigl");
  config.pruning.distribution = "uniform";  // no layer is full
  run(config, 2);
  const auto lines = io::read_metrics(dir / "run/metrics.jsonl");
  const auto bytes = [&](size_t step) { return lines[step - 1]["allreduce_bytes"].get<int64_t>(); };
  const auto summary = testing::read_json(dir / "run/summary.json");
  // Two ranks send 2 (p - 1) / p = 1 times the bytes of the summed array.
  EXPECT_EQ(bytes(4) - bytes(3), 4 * summary["prunable_parameters"].get<int64_t>());
  EXPECT_EQ(bytes(3), bytes(2));
  EXPECT_GT(lines[3]["comm_bytes_sent"].get<int64_t>(), bytes(4));
}

TEST(MovingMasks, LearnWhileTheyMove) {
  const TempDir dir;
  for (const char* method : {"rigl", "set"}) {
    io::Config config = moving(dir, method);
    config.train.steps = 150;
    config.optimizer.lr = 5e-3;
    config.pruning.sparsity = 0.9;
    config.pruning.to_step = 100;
    config.pruning.every = 10;
    // Letter frequencies alone give 2.8 nats; predicting the rest of each word gives less than 1.
    EXPECT_LT(run(config).losses.back(), 1.2) << method;
    EXPECT_NEAR(testing::read_json(dir / "run/summary.json")["sparsity"].get<double>(), 0.9, 1e-4);
  }
}

}  // namespace
}  // namespace espalier
