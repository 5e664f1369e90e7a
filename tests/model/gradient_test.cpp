// Gradients of whole networks against finite differences: for each parameter, the slope of the loss
// along a random direction. All networks, full and pruned masks, with and without dropout.
#include <gtest/gtest.h>

#include <cmath>

#include "src/core/rng.h"
#include "src/model/layers/norm.h"
#include "src/model/network.h"
#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"

namespace espalier::gradient_test {
namespace {

constexpr int64_t kBatch = 4;

struct Variant {
  std::string name;
  bool tied = false;
  bool pruned = false;
  float dropout = 0;
  bool taught = false;
  float smoothing = 0;
};

/// A network, its data, and one micro-batch's pass.
class Problem {
 public:
  Problem(std::vector<std::unique_ptr<model::Layer>> layers, bool tokens, const Variant& variant)
      : network_(std::move(layers)),
        store_(stream_, kernels_, model::parameters_of(network_.layers()), {.encoding = {}}),
        variant_(variant) {
    network_.bind(store_, kernels_);
    store_.initialise(5);
    // Biases start at zero and norms at one: change them, so that their gradients are generic.
    for (sparse::Parameter& parameter : store_.parameters()) {
      auto values = store_.values(parameter);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += 0.1F * (uniform(philox(9, 1, i)[0]) - 0.5F);
      }
      store_.set_values(parameter, values);
    }
    const Shape inputs = tokens ? Shape{kBatch, 10} : Shape{kBatch, 12};
    const int64_t rows = tokens ? kBatch * 10 : kBatch;
    inputs_ =
        arena_.allocate(Memory::activation, "inputs", tokens ? DType::int32 : DType::fp32, inputs);
    targets_ = arena_.allocate(Memory::activation, "targets", DType::int32, Shape{rows});
    losses_ = arena_.allocate(Memory::activation, "losses", DType::fp32, Shape{rows});
    teacher_losses_ = arena_.allocate(Memory::activation, "losses", DType::fp32, Shape{rows});
    for (int64_t i = 0; i < inputs.count(); ++i) {
      const Philox bits = philox(3, 0, static_cast<uint64_t>(i));
      if (tokens) {
        inputs_.tensor().get<int32_t>()[i] = static_cast<int32_t>(bits[0] % 11);
      } else {
        inputs_.tensor().get<float>()[i] = uniform(bits[1]) - 0.5F;
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      targets_.tensor().get<int32_t>()[i] = static_cast<int32_t>(philox(4, 0, uint64_t(i))[0] % 7);
    }
  }

  /// Trains on a teacher with random logits, too.
  void teach(int64_t classes) {
    const int64_t rows = losses_.tensor().count();
    teacher_ = arena_.allocate(Memory::activation, "teacher", DType::fp32, Shape{rows, classes});
    for (int64_t i = 0; i < rows * classes; ++i) {
      teacher_.tensor().get<float>()[i] =
          3 * uniform(philox(6, 0, static_cast<uint64_t>(i))[0]) - 1.5F;
    }
    distillation_ = {.weight = 0.6F,
                     .temperature = 2,
                     .losses = teacher_losses_.tensor(),
                     .logits = [this](int64_t first, int64_t n) {
                       return teacher_.tensor().row_range(first, n);
                     }};
  }

  /// The mean loss; with `backward`, writes the gradient to the store.
  double loss(bool backward) {
    model::Tape tape(arena_, size_t{8} << 20U);
    const auto rows = static_cast<double>(losses_.tensor().count());
    model::Pass pass{.stream = stream_, .kernels = kernels_, .tape = tape};
    pass.samples = inputs_.tensor().shape[0];
    pass.inputs = inputs_.tensor();
    pass.losses = {.targets = targets_.tensor(),
                   .values = losses_.tensor(),
                   .scale = static_cast<float>(1 / rows),
                   .smoothing = variant_.smoothing,
                   .distillation = teacher_.tensor() ? &distillation_ : nullptr};
    pass.training = true;
    pass.dropout = {.rate = variant_.dropout, .key = 77};
    network_.forward(pass);
    if (backward) {
      network_.backward(pass);
    }
    const double sum = sum_of(losses_);
    if (pass.losses.distillation == nullptr) {
      return sum / rows;
    }
    const auto share = static_cast<double>(distillation_.weight);
    return ((1 - share) * sum + share * sum_of(teacher_losses_)) / rows;
  }

  sparse::Store& store() { return store_; }

 private:
  static double sum_of(const Buffer& losses) {
    double sum = 0;
    for (const float one : losses.tensor().span<float>()) {
      sum += static_cast<double>(one);
    }
    return sum;
  }

  Arena arena_;
  Stream stream_{arena_, 1};
  const kernels::Kernels& kernels_ = kernels::by_name("cpu");
  model::Network network_;
  sparse::Store store_;
  const Variant& variant_;
  Buffer inputs_, targets_, losses_, teacher_losses_, teacher_;
  model::DistillationTarget distillation_;
};

/// Halves the kept elements of every prunable parameter.
void prune_half(sparse::Store& store) {
  auto masks = store.masks();
  for (size_t p = 0; p < masks.size(); ++p) {
    for (int64_t i = 0; store.parameters()[p].spec.prunable && i < masks[p].size(); ++i) {
      masks[p].set(i, philox(8, p, static_cast<uint64_t>(i))[0] % 2 == 0);
    }
  }
  store.set_masks(masks);
}

/// `scale`: length of a step. It changes the loss far more than fp32 rounding (1e-7), and is short
/// enough for the curvature and for the kinks of rectifiers.
void check_all_parameters(Problem& problem, double scale) {
  sparse::Store& store = problem.store();
  problem.loss(true);
  const auto flat = store.gradient().span<float>();
  const std::vector<float> gradient(flat.begin(), flat.end());
  for (sparse::Parameter& parameter : store.parameters()) {
    if (parameter.spec.average) {
      continue;
    }
    const auto start = store.values(parameter);
    std::vector<float> direction(start.size());
    double expected = 0;
    double norm = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = uniform(philox(2, 7, i)[0]) - 0.5F;
      const float g = gradient[static_cast<size_t>(parameter.offset) + i];
      expected += static_cast<double>(g) * static_cast<double>(direction[i]);
      norm += static_cast<double>(g) * static_cast<double>(g);
    }
    const double step =
        scale / std::max(1.0, std::sqrt(static_cast<double>(direction.size()) / 12));
    auto loss_at = [&](double t) {
      std::vector<float> moved = start;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += static_cast<float>(t) * direction[i];
      }
      store.set_values(parameter, moved);
      return problem.loss(false);
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
    store.set_values(parameter, start);
    EXPECT_NEAR(slope, expected, 5e-3 * std::abs(expected) + 2e-3 * std::sqrt(norm) + 2e-7 / step)
        << parameter.spec.name;
    EXPECT_GT(norm, 0) << parameter.spec.name << " has no gradient at all";
  }
}

class Gradients : public ::testing::TestWithParam<Variant> {
 protected:
  /// `scale`: see check_all_parameters.
  static void check(const io::ModelConfig& config, double scale) {
    const bool tokens = config.kind == "gpt" || config.kind == "decoder";
    const model::ProblemShape data =
        tokens ? model::ProblemShape{.classes = 11}
               : model::ProblemShape{.classes = 7, .features = 12, .input_dtype = DType::fp32};
    Problem problem(model::make_layers(config, data), tokens, GetParam());
    if (GetParam().pruned) {
      prune_half(problem.store());
    }
    if (GetParam().taught) {
      problem.teach(data.classes);
    }
    check_all_parameters(problem, scale);
  }
};

TEST_P(Gradients, OfGptWithEveryNorm) {
  for (const std::string& norm : names(model::norms())) {
    SCOPED_TRACE(norm);
    const io::ModelConfig config{.layers = 2,
                                 .heads = 3,
                                 .width = 24,
                                 .context = 10,
                                 .tie_embeddings = GetParam().tied,
                                 .norm = norm};
    check(config, 1e-2);
  }
}

TEST_P(Gradients, OfEveryFamilyOfDecoders) {
  for (const std::string& family : names(model::families())) {
    SCOPED_TRACE(family);
    const io::ModelConfig config{.kind = "decoder",
                                 .layers = 2,
                                 .heads = 4,
                                 .width = 24,
                                 .context = 10,
                                 .tie_embeddings = GetParam().tied,
                                 .family = family,
                                 .kv_heads = family == "gpt2" ? 0 : 2,
                                 .head_width = 8,
                                 .mlp_width = 20,
                                 .window = family == "mistral" ? 4 : 0};
    check(config, family == "opt" ? 1e-3 : 5e-3);
  }
}

TEST_P(Gradients, OfSequentialBranchesAndFewerBiases) {
  struct Row {
    std::string family, residual, biases;
  };
  for (const auto& [family, residual, biases] : std::vector<Row>{{"neox", "sequential", "auto"},
                                                                 {"neox", "auto", "mlp"},
                                                                 {"llama", "parallel", "auto"},
                                                                 {"opt", "auto", "none"}}) {
    SCOPED_TRACE(family);
    const io::ModelConfig config{.kind = "decoder",
                                 .layers = 2,
                                 .heads = 3,
                                 .width = 24,
                                 .context = 10,
                                 .tie_embeddings = GetParam().tied,
                                 .family = family,
                                 .mlp_width = 20,
                                 .activation = "gelu",  // without kinks
                                 .residual = residual,
                                 .biases = biases};
    check(config, 5e-3);
  }
}

TEST_P(Gradients, OfNetworksForImages) {
  const std::vector<std::string> convolutions{
      "conv 4 3", "lrn 3", "max 2 stride 1", "conv 6 3 groups 2", "mean 2 stride 1", "linear 9"};
  const std::vector<std::string> pooled_first{"mean 2 stride 1", "conv 5 2 padding 1"};
  const std::vector<std::string> residual{"conv 4 3 norm", "basic 4",
                                          "bottleneck 8 stride 2 groups 2"};
  const std::vector<std::string> wide{"conv 4 3 plain", "wide 4", "wide 6 stride 2", "norm"};
  const std::vector<std::string> transformer{"patch 8 1", "2 x transformer 2 ratio 3",
                                             "token-mean"};
  const std::vector<std::string> hybrid{"conv 4 1", "patch 6 2", "transformer 3", "token-mean",
                                        "linear 5"};
  struct Row {
    std::string kind;
    std::vector<std::string> network;
    double step = 5e-4;
    std::vector<int64_t> image = {4, 3, 1};
  };
  const std::vector<Row> networks{{"mlp", {}},
                                  {"vision", convolutions},
                                  {"vision", pooled_first},
                                  // Norms divide by small deviations: slopes change faster.
                                  {"vision", residual, 1e-4},
                                  {"vision", wide, 1e-4},
                                  {"vision", transformer, 5e-3, {2, 2, 3}},
                                  {"vision", hybrid, 1e-3, {2, 2, 3}}};
  for (const auto& [kind, network, step, image] : networks) {
    SCOPED_TRACE(fmt::format("{} of {} layers", kind, network.size()));
    check({.kind = kind, .hidden = {20, 9}, .network = network, .image = image}, step);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Gradients,
                         ::testing::Values(Variant{.name = "plain"},
                                           Variant{.name = "tied", .tied = true},
                                           Variant{.name = "pruned", .pruned = true},
                                           Variant{.name = "dropout", .dropout = 0.3F},
                                           Variant{.name = "taught", .taught = true},
                                           Variant{.name = "smoothed", .smoothing = 0.1F}),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace espalier::gradient_test
