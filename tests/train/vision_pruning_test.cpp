// Pruning of convolutional networks. Scores and inputs that methods read are compared with plain
// loops in double; every registered method trains, with the equalities of other networks.
#include <gtest/gtest.h>

#include <cmath>

#include "pruning/registry.h"
#include "src/core/rng.h"
#include "src/model/networks/registry.h"
#include "src/train/run/calibration.h"
#include "tests/support/image_files.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

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

/// Images of three classes, which differ in the brightness of their rows.
io::Config config_of(const TempDir& dir, const std::vector<std::string>& network,
                     uint32_t images = 120) {
  std::string pixels;
  std::string labels;
  for (uint32_t i = 0; i < images; ++i) {
    labels += static_cast<char>(i % 3);
    for (uint32_t p = 0; p < kNumbers; ++p) {
      const uint32_t row = p / (kEdge * kChannels);
      pixels += static_cast<char>(philox(2, i, p)[0] % 100 + 70 * (row % 3 == i % 3 ? 1 : 0));
    }
  }
  std::ofstream(dir / "images", std::ios::binary)
      << idx_file({images, kEdge, kEdge, kChannels}, pixels);
  std::ofstream(dir / "labels", std::ios::binary) << idx_file({images}, labels);
  io::Config config = tiny_config(dir);
  config.data = {.kind = "images", .train = {dir / "images", dir / "labels"}};
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

/// |w| of each matrix, and the flow through a network of kBlocks, written out.
struct FlowModel {
  std::map<std::string, Vector> a;

  /// The flow through a matrix whose columns read `x` again and again.
  Vector apply(const std::string& name, const Vector& x, size_t outputs) const {
    const Vector& matrix = a.at(name + ".weight");
    const size_t columns = matrix.size() / outputs;
    Vector y(outputs, 0.0);
    for (size_t i = 0; i < matrix.size(); ++i) {
      y[i / columns] += matrix[i] * x[i % columns % x.size()];
    }
    return y;
  }
  Vector two_groups(const std::string& name, const Vector& x, size_t outputs) const {
    const auto half = x.begin() + std::ssize(x) / 2;
    Vector y = apply(name + ".0", {x.begin(), half}, outputs / 2);
    const Vector more = apply(name + ".1", {half, x.end()}, outputs / 2);
    y.insert(y.end(), more.begin(), more.end());
    return y;
  }
  static Vector sum(Vector x, const Vector& y) {
    EXPECT_EQ(x.size(), y.size());
    std::ranges::transform(x, y, x.begin(), std::plus());
    return x;
  }
  double flow() const {
    Vector x = two_groups("0.conv", Vector(kChannels, 1), 4);
    x = sum(apply("2.basic.2", apply("2.basic.1", x, 6), 6), apply("2.basic.shortcut", x, 6));
    x = sum(apply("3.basic.2", apply("3.basic.1", x, 6), 6), x);
    const Vector inner = two_groups("4.bottleneck.2", apply("4.bottleneck.1", x, 2), 2);
    x = sum(apply("4.bottleneck.3", inner, 8), apply("4.bottleneck.shortcut", x, 8));
    x = sum(apply("5.wide.conv2", apply("5.wide.conv1", x, 8), 8), x);
    x = sum(apply("6.wide.conv2", apply("6.wide.conv1", x, 6), 6), apply("6.wide.shortcut", x, 6));
    x = apply("8.linear", x, 12);
    double total = 0;
    for (const double some : x) {
      total += some;
    }
    return total;
  }
};

/// One round: the flow is linear in each element, so |w| dR/d|w| = R - R without the element.
TEST(VisionPruning, SynflowScoresAreTheFlowThroughAnElement) {
  const TempDir dir;
  const io::Config config = config_of(dir, kBlocks);
  FlowModel model;
  Network network(config);
  std::vector<std::string> names;
  for (size_t p = 0; p < network.prunable.size(); ++p) {
    const sparse::Parameter& parameter = network.store.parameters()[p];
    if (network.prunable[p]) {
      names.push_back(parameter.spec.name);
      for (const float value : network.store.values(parameter)) {
        model.a[names.back()].push_back(std::abs(static_cast<double>(value)));
      }
    }
  }
  const double whole = model.flow();
  std::map<std::string, Vector> scores;
  Vector sorted;
  for (const std::string& name : names) {
    for (double& element : model.a[name]) {
      const double kept = std::exchange(element, 0.0);
      scores[name].push_back(whole - model.flow());
      sorted.push_back(scores[name].back());
      element = kept;
    }
  }
  std::ranges::sort(sorted, std::greater<>());
  for (const double sparsity : {0.2, 0.5, 0.9}) {
    const pruning::Result result = train::compute_masks(
        network.store, network.prunable, {.method = "synflow", .sparsity = sparsity, .rounds = 1});
    const int64_t keep = pruning::kept_count(std::ssize(sorted), sparsity);
    const double limit = sorted[static_cast<size_t>(keep) - 1];
    int64_t kept = 0;
    for (size_t p = 0; p < network.prunable.size(); ++p) {
      const std::string& name = network.store.parameters()[p].spec.name;
      const sparse::Mask& mask = result.masks[p];
      kept += network.prunable[p] ? mask.kept() : 0;
      for (int64_t at = 0; network.prunable[p] && at < mask.size(); ++at) {
        const double score = scores.at(name)[static_cast<size_t>(at)];
        if (std::abs(score - limit) > 1e-5 * limit) {
          ASSERT_EQ(mask[at], score > limit) << name << " " << at << " at " << sparsity;
        }
      }
    }
    EXPECT_EQ(kept, keep);
  }
}

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
      pruning::method_by_name(settings.method).inputs == pruning::InputStatistic::products;
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

/// The inputs of a convolution are the patches of all panels (of 1 MiB) of all micro-batches.
TEST(VisionPruning, CalibratedMethodsReadAllPatches) {
  constexpr int64_t kSamples = 1100;
  const TempDir dir;
  const io::Config config =
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
TEST(VisionPruning, AProbeSeesTheDenseGradientOfManyPanels) {
  constexpr int64_t kSamples = 900;  // two panels of 1 MiB in the second convolution
  for (const std::string dtype : {"fp32", "bf16"}) {
    const TempDir dir;
    io::Config config = config_of(dir, {"conv 8 3", "conv 4 3 groups 2", "basic 6", "linear 9"});
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
    if (method->from_file() || method->reads_inputs() || name == "none") {
      continue;
    }
    all.push_back(name);
    if (method->moving()) {
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
    config.pruning.sparsity = 0.7;
    config.pruning.block = 4;
    config.pruning.rounds = 10;
    if (GetParam().ends_with(" gradually")) {
      config.pruning.from_step = 2;
      config.pruning.to_step = 11;
      config.pruning.every = 3;
    } else if (method().moving()) {
      config.pruning.to_step = 11;
      config.pruning.every = 3;
    } else if (method().waits) {
      config.pruning.to_step = 9;
      config.pruning.every = 1;
    } else if (method().learning != nullptr) {
      config.pruning.at_step = 5;
    } else if (method().score == nullptr) {
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
    if (method().score_shifted != nullptr && dtype != "fp32") {
      continue;  // refused
    }
    const Outcome dense = run(config);
    EXPECT_NEAR(reached(config), pruning::sparsity_of(config.pruning),
                method().shape != nullptr ? 0.02 : 1e-3);  // layers round
    config.sparse.storage.fallback = "expanded";
    EXPECT_EQ(run(config), dense) << dtype;
    std::vector<std::string> others{"sparse"};
    if (pruning::masks_are_blocks(config.pruning)) {
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
  for (const std::string schedule : {"1f1b", "zero-bubble"}) {
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
  if (method().score_shifted == nullptr) {  // a difference of gradients has fewer digits
    EXPECT_EQ(two.positions, one.positions);
  }
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i], one.losses[i], method().score_shifted == nullptr ? 1e-5 : 1e-2);
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
