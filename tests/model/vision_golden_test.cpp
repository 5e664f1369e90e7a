// Loss, gradients, moving averages and ten SGD steps of a small network of residual blocks against
// PyTorch in double precision. tests/golden/make_vision_golden.py writes and describes the file.
#include "tests/model/golden_model.h"

namespace espalier::vision_golden_test {
namespace {

constexpr int64_t kBatch = 6, kFeatures = 12 * 10 * 3, kClasses = 5;

io::ModelConfig golden_config() {
  return {.kind = "vision",
          .network = {"conv 8 3 norm", "basic 8", "basic 12 stride 2", "bottleneck 16 groups 2",
                      "wide 16", "wide 12 stride 2", "norm", "max 2 stride 1", "conv 6 2 padding 1",
                      "linear 10"},
          .image = {12, 10, 3}};
}

class VisionGolden : public ::testing::TestWithParam<golden::Case> {
 protected:
  VisionGolden() { golden_.read_weights(); }
  /// fp32: sums of at most a thousand terms, and the small deviations by which norms divide. bf16
  /// keeps 8 bits of each activation, fp16 11. In gradients of 16 bits a rectifier or maximum that
  /// switches changes whole paths.
  static double tolerance(double fp32, double bf16, double fp16) {
    return GetParam().tolerance(fp32, bf16, fp16);
  }

  /// Else gradients in fp16 underflow.
  const double scale_ = GetParam().dtype == DType::fp16 ? 1024 : 1;
  golden::Model golden_{
      GetParam(),
      golden_config(),
      {.classes = kClasses, .features = kFeatures, .rows = 1, .input_dtype = DType::fp32},
      {kBatch, kFeatures},
      {.inputs = "/images", .targets = "/labels", .moments = 1, .scale = scale_}};
};

TEST_P(VisionGolden, LossMatchesPyTorch) {
  const double expected = static_cast<double>(golden_.read("loss").front());
  EXPECT_NEAR(golden_.loss(true), expected, tolerance(5e-6, 5e-2, 6e-3));
}

TEST_P(VisionGolden, GradientsMatchPyTorch) {
  golden_.loss(true);
  for (const sparse::Parameter& parameter : golden_.store().parameters()) {
    if (parameter.spec.average) {
      continue;
    }
    const auto want = golden_.read("gradients." + parameter.spec.name);
    const auto [distance, norm] = golden::difference(golden_.gradient(parameter), want);
    EXPECT_LE(distance, tolerance(5e-5, 0.7, 0.4) * norm + tolerance(1e-6, 5e-3, 5e-3))
        << parameter.spec.name;
  }
}

io::OptimizerConfig golden_optimizer() {
  return {.kind = "sgd",
          .lr = 0.05,
          .momentum = 0.9,
          .nesterov = true,
          .weight_decay = 0.01,
          .clip = 0};
}

TEST_P(VisionGolden, MovingAveragesMatchPyTorch) {
  const io::OptimizerConfig config = golden_optimizer();
  optim::Optimizer optimizer(golden_.store(), *GetParam().kernels, config);
  optimizer.set_scale(scale_, 0);
  golden_.loss(true);
  optimizer.step(golden_.stream(), 0, config.lr);
  for (const sparse::Parameter& parameter : golden_.store().parameters()) {
    if (parameter.spec.average) {
      const auto want = golden_.read("averages." + parameter.spec.name);
      const auto [distance, norm] = golden::difference(golden_.store().values(parameter), want);
      EXPECT_LE(distance, tolerance(2e-6, 2e-3, 3e-4) * norm) << parameter.spec.name;
    }
  }
}

/// Only in fp32: at this rate ten steps of six images magnify the rounding of 16 bits.
TEST_P(VisionGolden, TenStepsMatchPyTorch) {
  if (GetParam().dtype != DType::fp32) {
    return;
  }
  const io::OptimizerConfig config = golden_optimizer();
  optim::Optimizer optimizer(golden_.store(), *GetParam().kernels, config);
  const auto losses = golden_.read("losses");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden_.loss(true), static_cast<double>(losses[step]), 1e-4) << "step " << step;
    optimizer.step(golden_.stream(), static_cast<int64_t>(step), config.lr);
  }
  const double evaluated = static_cast<double>(golden_.read("evaluated").front());
  EXPECT_NEAR(golden_.loss(false), evaluated, 5e-4);
}

INSTANTIATE_TEST_SUITE_P(Tables, VisionGolden,
                         ::testing::ValuesIn(golden::cases_of(
                             {"vision_small"}, {DType::fp32, DType::bf16, DType::fp16})),
                         golden::name_of_case);

}  // namespace
}  // namespace espalier::vision_golden_test
