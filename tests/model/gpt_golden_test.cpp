// Loss, gradients and ten AdamW steps of a small GPT against PyTorch in double precision.
// tests/golden/make_gpt_golden.py writes and describes the golden files.
#include "tests/model/golden_model.h"

namespace espalier::gpt_golden_test {
namespace {

class GptGolden : public ::testing::TestWithParam<golden::Case> {
 protected:
  GptGolden() { golden_.read_weights(); }
  /// Tolerance of fp32 sums of at most a few thousand terms; bf16 keeps 8 bits of each factor, fp16
  /// 11.
  static double tolerance(double fp32, double bf16) {
    return GetParam().tolerance(fp32, bf16, bf16 / 8);
  }

  golden::Model golden_{GetParam(),
                        {.layers = 2,
                         .heads = 2,
                         .width = 32,
                         .context = 16,
                         .tie_embeddings = GetParam().model == "gpt_small_tied"},
                        {.classes = 32},
                        {3, 16},
                        {}};
};

TEST_P(GptGolden, LossMatchesPyTorch) {
  const double expected = static_cast<double>(golden_.read("loss").front());
  EXPECT_NEAR(golden_.loss(), expected, tolerance(2e-6, 2e-2));
}

TEST_P(GptGolden, GradientsMatchPyTorch) {
  golden_.loss();
  for (const sparse::Parameter& parameter : golden_.store().parameters()) {
    const auto [distance, norm] = golden::difference(
        golden_.gradient(parameter), golden_.read("gradients." + parameter.spec.name));
    // The absolute term is for gradients that are zero in exact arithmetic (the key part of a
    // bias).
    EXPECT_LE(distance, tolerance(1e-5, 3e-2) * norm + tolerance(1e-6, 5e-3))
        << parameter.spec.name;
  }
}

TEST_P(GptGolden, TenStepsMatchPyTorch) {
  const io::OptimizerConfig config{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 1.0};
  optim::Optimizer optimizer(golden_.store(), *GetParam().kernels, config);
  const auto losses = golden_.read("losses");
  const auto norms = golden_.read("norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden_.loss(), static_cast<double>(losses[step]), tolerance(2e-5, 4e-2))
        << "step " << step;
    const auto result = optimizer.step(golden_.stream(), static_cast<int64_t>(step), config.lr);
    EXPECT_TRUE(result.applied);
    EXPECT_NEAR(result.gradient_norm, static_cast<double>(norms[step]),
                tolerance(1e-4, 5e-2) * static_cast<double>(norms[step]));
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, GptGolden,
                         ::testing::ValuesIn(golden::cases_of({"gpt_small", "gpt_small_tied"},
                                                              {DType::fp32, DType::bf16,
                                                               DType::fp16})),
                         golden::name_of_case);

}  // namespace
}  // namespace espalier::gpt_golden_test
