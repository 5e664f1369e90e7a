// Pruning of convolutional networks. Scores and inputs that methods read are compared with plain
// loops in double; every registered method trains, with the equalities of other networks.
#include <cmath>

#include "pruning/plan.h"
#include "pruning/registry.h"
#include "src/core/rng.h"
#include "src/model/networks/registry.h"
#include "src/train/run/calibration.h"
#include "tests/support/image_files.h"
#include "tests/support/method_kinds.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::vision_pruning_test {
namespace {

using namespace testing;

constexpr uint32_t kEdge = 6;
constexpr uint32_t kChannels = 2;
constexpr int64_t kNumbers = int64_t{kEdge} * kEdge * kChannels;

const std::vector<std::string> kBlocks{"conv 4 3 groups 2",
                                       "norm",
                                       "basic 6 stride 2",
                                       "basic 6",
                                       "bottleneck 8 groups 2",
                                       "wide 8",
                                       "wide 6",
                                       "max 2 stride 1",
                                       "linear 12"};
/// Without batch norm, whose statistics depend on the size of micro-batches.
const std::vector<std::string> kPlain{"conv 4 3 groups 2", "conv 8 3 stride 2", "lrn 3",
                                      "conv 8 3 groups 2", "max 2 stride 1",    "linear 12"};

io::Config config_of(const TempDir& dir, const std::vector<std::string>& network) {
  io::Config config = tiny_config(dir);
  config.data = write_images(dir / "", 120, kEdge, kChannels);
  config.model.kind = "vision";
  config.model.image = {kEdge, kEdge, kChannels};
  config.model.network = network;
  config.optimizer.lr = 3e-3;
  return config;
}

const model::ProblemShape kProblem{
    .classes = 3, .features = kNumbers, .rows = 1, .input_dtype = DType::fp32};

/// A network and its weights, in fp32.
struct Network {
  explicit Network(const io::Config& config)
      : layers(model::make_layers(config.model, kProblem)),
        store(stream, kernels, model::parameters_of(layers), {.training = false}),
        prunable(train::prunable_of(store, {})) {
    store.initialise(5);
    for (sparse::Parameter& parameter : store.parameters()) {
      if (parameter.spec.name.ends_with(".bias")) {
        std::vector<float> values;
        for (int64_t i = 0; i < parameter.size(); ++i) {
          values.push_back(0.2F * uniform(philox(7, 0, static_cast<uint64_t>(i))[0]) - 0.1F);
        }
        store.set_values(parameter, values);
      }
    }
  }
  Arena arena;
  Stream stream{arena, 2};
  const kernels::Kernels& kernels = kernels::by_name("cpu");
  model::Layers layers;
  sparse::Store store;
  std::vector<bool> prunable;
};

using Vector = std::vector<double>;

/// A convolution in double. Images are [pixels, channels], one after the other.
struct Plain {
  int64_t edge = 1, in = 1, out = 1, extent = 1, stride = 1, groups = 1;

  int64_t padding() const { return (extent - 1) / 2; }
  int64_t out_edge() const { return (edge + 2 * padding() - extent) / stride + 1; }
  int64_t columns() const { return extent * extent * in / groups; }
  /// Patches [pixels of all outputs, columns] of a group.
  Vector patches(const Vector& x, int64_t group) const {
    const int64_t n = in / groups;
    const int64_t images = std::ssize(x) / (edge * edge * in);
    Vector found;
    for (int64_t pixel = 0; pixel < images * out_edge() * out_edge(); ++pixel) {
      const int64_t image = pixel / (out_edge() * out_edge());
      for (int64_t k = 0; k < columns(); ++k) {
        const int64_t row = pixel / out_edge() % out_edge() * stride - padding() + k / n / extent;
        const int64_t column = pixel % out_edge() * stride - padding() + k / n % extent;
        const bool inside = row >= 0 && row < edge && column >= 0 && column < edge;
        const int64_t from = ((image * edge + row) * edge + column) * in + group * n + k % n;
        found.push_back(inside ? x[static_cast<size_t>(from)] : 0);
      }
    }
    return found;
  }
};

/// Prunes by `method` with statistics in double, matrix by matrix; returns masks by name.
std::map<std::string, sparse::Mask> pruned_plainly(Network& network,
                                                   const std::vector<Plain>& layers,
                                                   const std::vector<std::string>& names,
                                                   const pruning::Settings& settings, Vector x,
                                                   std::map<std::string, Vector>& values) {
  const bool products =
      std::get<pruning::Calibrated>(pruning::method_by_name(settings.method).kind).inputs ==
      pruning::InputStatistic::products;
  std::map<std::string, sparse::Mask> masks;
  for (size_t l = 0; l < layers.size(); ++l) {
    const Plain& layer = layers[l];
    const auto k = static_cast<size_t>(layer.columns());
    const auto n = static_cast<size_t>(layer.out / layer.groups);
    Vector y;
    for (int64_t group = 0; group < layer.groups; ++group) {
      const std::string name = layer.groups == 1 ? names[l] : fmt::format("{}.{}", names[l], group);
      const Vector inputs = layer.patches(x, group);
      const size_t rows = inputs.size() / k;
      Vector statistic(products ? k * k : k, 0.0);
      for (size_t row = 0; row < rows; ++row) {
        for (size_t i = 0; i < k; ++i) {
          const double one = inputs[row * k + i];
          for (size_t j = 0; products && j < k; ++j) {
            statistic[i * k + j] += one * inputs[row * k + j];
          }
          statistic[i] += products ? 0 : one * one;
        }
      }
      const sparse::Parameter& parameter = network.store.find(name + ".weight");
      std::vector<float> w = network.store.values(parameter);
      const std::vector<float> b = network.store.values(network.store.find(name + ".bias"));
      const pruning::Result one = pruning::prune_matrix(
          {.name = name, .shape = parameter.spec.shape, .index = &parameter.index, .values = w},
          statistic, settings, w);
      masks[name + ".weight"] = one.masks.front();
      for (size_t i = 0; i < w.size(); ++i) {
        w[i] = one.masks.front()[static_cast<int64_t>(i)] ? w[i] : 0;
      }
      values[name + ".weight"].assign(w.begin(), w.end());
      y.resize(rows * static_cast<size_t>(layer.out));
      for (size_t i = 0; i < rows * n; ++i) {
        double sum = static_cast<double>(b[i % n]);
        for (size_t j = 0; j < k; ++j) {
          sum += static_cast<double>(w[i % n * k + j]) * inputs[i / n * k + j];
        }
        y[i / n * static_cast<size_t>(layer.out) + static_cast<size_t>(group) * n + i % n] =
            std::max(sum, 0.0);
      }
    }
    x = y;
  }
  return masks;
}

using VisionPruning = RunTest;

/// The inputs of a convolution are the patches of all panels (of 1 MiB) of all micro-batches.
TEST_F(VisionPruning, CalibratedMethodsReadAllPatches) {
  constexpr int64_t kSamples = 1100;
  config =
      config_of(dir, {"conv 6 3 groups 2", "conv 4 3 stride 2", "conv 6 1 groups 2", "linear 10"});
  const std::vector<std::string> names{"0.conv", "1.conv", "2.conv", "3.linear"};
  const std::vector<Plain> layers{
      {.edge = kEdge, .in = kChannels, .out = 6, .extent = 3, .groups = 2},
      {.edge = kEdge, .in = 6, .out = 4, .extent = 3, .stride = 2},
      {.edge = 3, .in = 4, .out = 6, .groups = 2},
      {.edge = 1, .in = 9 * 6, .out = 10}};
  Vector x;
  for (uint64_t i = 0; i < kSamples * kNumbers; ++i) {
    x.push_back(static_cast<double>(uniform(philox(3, i % 7, i)[0])) - 0.3);
  }
  for (const std::string method : {"wanda", "sparsegpt"}) {
    Network network(config);
    const pruning::Settings settings{.method = method, .sparsity = 0.5};
    std::map<std::string, Vector> values;
    const auto want = pruned_plainly(network, layers, names, settings, x, values);
    const train::Calibration data{
        .samples = kSamples, .read = [&](int64_t first, const Tensor& inputs) {
          for (int64_t i = 0; i < inputs.count(); ++i) {
            inputs.get<float>()[i] =
                static_cast<float>(x[static_cast<size_t>(first * kNumbers + i)]);
          }
        }};
    const pruning::Result result = train::prune_by_inputs(
        config, kProblem, network.store, network.kernels, network.prunable, settings, data);
    for (const auto& [name, mask] : want) {
      const sparse::Parameter& parameter = network.store.find(name);
      EXPECT_EQ(result.masks[static_cast<size_t>(&parameter - network.store.parameters().data())],
                mask)
          << method << " " << name;
      const std::vector<float> got = network.store.values(parameter);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], values[name][i], 2e-4) << method << " " << name << " " << i;
      }
    }
  }
}

/// A probe of the next pass, and the flat gradient of the same network without pruning.
TEST_F(VisionPruning, AProbeSeesTheDenseGradientOfManyPanels) {
  constexpr int64_t kSamples = 900;  // two panels of 1 MiB in the second convolution
  for (const std::string dtype : {"fp32", "bf16"}) {
    config = config_of(dir, {"conv 8 3", "conv 4 3 groups 2", "basic 6", "linear 9"});
    take_type(config, dtype);
    config.train.gradient_dtype = "fp32";
    config.train.global_batch = kSamples;
    config.pruning = {.method = "random", .sparsity = 0.6};
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = "none", .stop_after = 1});
      trainer.run();
      sparse::Store& store = trainer.stage().store();
      const auto pass = [&] {
        const auto inputs = trainer.stage().inputs(kSamples).span<float>();
        const auto targets = trainer.stage().targets(kSamples).span<int32_t>();
        for (size_t i = 0; i < inputs.size(); ++i) {
          inputs[i] = uniform(philox(3, 1, i)[0]);
        }
        for (size_t i = 0; i < targets.size(); ++i) {
          targets[i] = static_cast<int32_t>(i % 3);
        }
        trainer.stage().forward_backward({.samples = kSamples, .loss_scale = 0.01});
      };
      std::map<std::string, std::vector<float>> seen;
      store.set_gradient_probe([&](const sparse::Parameter& parameter, const Tensor& gradient) {
        const auto values = gradient.span<float>();
        EXPECT_TRUE(
            seen.emplace(parameter.spec.name, std::vector(values.begin(), values.end())).second)
            << "once a pass";
      });
      pass();
      store.set_gradient_probe({});
      EXPECT_EQ(seen.size(), 1U + 2 + 3 + 1);
      std::vector<sparse::Mask> full;
      for (const sparse::Parameter& parameter : store.parameters()) {
        full.emplace_back(parameter.size());
      }
      store.set_masks(full);
      pass();
      for (const auto& [name, gradient] : seen) {
        const auto expected = store.full_gradient(store.find(name)).span<float>();
        ASSERT_EQ(gradient.size(), expected.size());
        float largest = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          largest = std::max(largest, std::fabs(expected[i]));
        }
        EXPECT_GT(largest, 0) << name;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(gradient[i], expected[i], 2e-5F * largest) << name << " " << i;
        }
      }
    });
  }
}

/// "METHOD", or "METHOD gradually": every registered method that prunes during a run.
std::vector<std::string> ways() {
  std::vector<std::string> all{"magnitude gradually"};
  for (const pruning::Method* method : pruning::methods()) {
    const std::string name(method->name);
    if (!testing::prunes(*method)) {
      continue;
    }
    all.push_back(name);
    if (testing::moves(*method) && method->sparsity == nullptr) {
      all.push_back(name + " gradually");
    }
  }
  return all;
}

class VisionPruningWays : public ::testing::TestWithParam<std::string> {
 protected:
  const pruning::Method& method() const {
    const std::string& way = GetParam();
    return pruning::method_by_name(std::string_view(way).substr(0, way.find(' ')));
  }
  io::Config pruned(const std::vector<std::string>& network) const {
    io::Config config = config_of(dir_, network);
    config.pruning.method = method().name;
    apply_settings(config, "pruning.sparsity=0.7 pruning.block=4");
    if (GetParam().ends_with(" gradually")) {
      apply_settings(config, "pruning.from_step=2 pruning.to_step=11 pruning.every=3");
    } else if (testing::moves(method())) {
      apply_settings(config, "pruning.to_step=11 pruning.every=3");
    } else if (testing::waits(method())) {
      apply_settings(config, "pruning.to_step=9 pruning.every=1");
    } else if (testing::learns(method())) {
      config.pruning.at_step = 5;
    } else if (!testing::scores(method())) {
      config.pruning.at_step = 3;
    }
    return config;
  }
  double reached(const io::Config& config) const {
    return read_json(std::filesystem::path(config.run.out) / "summary.json")["sparsity"];
  }

  const TempDir dir_;
};

TEST_P(VisionPruningWays, EveryStorageTrains) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    io::Config config = pruned(kBlocks);
    take_type(config, dtype);
    if (testing::needs_fp32(method()) && dtype != "fp32") {
      continue;  // refused
    }
    const Outcome dense = run(config);
    EXPECT_NEAR(reached(config), pruning::sparsity_of(config.pruning),
                method().shape != nullptr ? 0.02 : 1e-3);  // layers round
    config.sparse.storage.fallback = "expanded";
    EXPECT_EQ(run(config), dense) << dtype;
    std::vector<std::string> others{"sparse"};
    if (pruning::shape_of(config.pruning).height > 0) {
      others.emplace_back("block");
    }
    for (const std::string& storage : others) {
      config.sparse.storage.fallback = storage;
      const Outcome outcome = run(config);  // sums in another order
      for (size_t i = 0; i < dense.losses.size(); ++i) {
        // In bf16 masks that follow gradients may differ.
        EXPECT_NEAR(outcome.losses[i], dense.losses[i], dtype == "fp32" ? 2e-3 : 0.4)
            << storage << ", " << dtype << ", step " << i + 1;
      }
    }
  }
}

TEST_P(VisionPruningWays, StagesChangeNoBit) {
  io::Config config = pruned(kBlocks);
  config.train.micro_batch = 3;
  const Outcome whole = run(config);
  config.parallel.pipeline = 2;
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    config.parallel.schedule = schedule;
    const Outcome outcome = run(config, 2);
    EXPECT_EQ(outcome.losses, whole.losses) << schedule;
    for (const auto& [name, positions] : outcome.positions) {
      EXPECT_EQ(positions, whole.positions.at(name)) << schedule << ", " << name;
    }
  }
}

TEST_P(VisionPruningWays, RanksMatchOneRank) {
  io::Config config = pruned(kPlain);
  const Outcome one = run(config);
  const Outcome two = run(config, 2);
  if (!testing::needs_fp32(method())) {  // a difference of gradients has fewer digits
    EXPECT_EQ(two.positions, one.positions);
  }
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i], one.losses[i], !testing::needs_fp32(method()) ? 1e-5 : 1e-2);
  }
}

TEST_P(VisionPruningWays, ResumeIsNoBreak) {
  const io::Config config = pruned(kBlocks);
  for (const int ranks : {1, 2}) {
    const Outcome whole = run(config, ranks);
    EXPECT_EQ(run_with_breaks(config, ranks, {3, 5, 8, 9}), whole) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(All, VisionPruningWays, ::testing::ValuesIn(ways()));

}  // namespace
}  // namespace espalier::vision_pruning_test
