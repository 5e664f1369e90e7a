// Logits, loss, gradients and twenty AdamW steps of a small network of each family against
// transformers. tests/golden/make_decoder_golden.py writes and describes the golden files.
#include "src/model/networks/families.h"
#include "tests/model/golden_model.h"

namespace espalier::decoder_golden_test {
namespace {

constexpr int64_t kBatch = 2, kContext = 16, kVocabulary = 40;

std::vector<golden::Case> cases() {
  std::vector<std::string> models;
  for (const std::string& family : names(model::families())) {
    models.push_back("decoder_" + family);
  }
  return golden::cases_of(models, {DType::fp32, DType::bf16});
}

/// The config of the golden model of a family, as in make_decoder_golden.py.
io::ModelConfig config_of(const std::string& family) {
  io::ModelConfig config{.kind = "decoder",
                         .layers = 2,
                         .heads = 3,
                         .width = 24,
                         .context = kContext,
                         .family = family,
                         .kv_heads = 1,
                         .mlp_width = 36};
  if (family == "gpt2" || family == "opt" || family == "neox") {
    config.kv_heads = 0;
  }
  config.tie_embeddings = family == "gpt2" || family == "opt" || family.starts_with("gemma");
  if (family == "llama") {
    config.rotary_base = 500;
    config.rotary_scaling = "llama3";
    config.rotary_factor = 2;
    config.rotary_context = 8;
  } else if (family == "mistral") {
    config.window = 5;
  } else if (family == "qwen2") {
    config.rotary_base = 1e4;
    config.rotary_scaling = "yarn";
    config.rotary_factor = 2;
    config.rotary_context = 8;
  } else if (family == "qwen3") {
    config.head_width = 12;
  } else if (family == "gemma3") {
    config.window = 5;
    config.full_every = 2;
    config.attention_scale = 1 / std::sqrt(12.0);
    config.rotary_base = 1e4;
    config.rotary_scaling = "linear";
    config.rotary_factor = 2;
    config.local_rotary_base = 100;
  }
  return config;
}

/// The weights of make_decoder_golden.py.
std::vector<float> draw(const sparse::ParameterSpec& spec) {
  uint32_t hash = 2'166'136'261U;
  for (const char c : spec.name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619U;
  }
  const bool matrix = spec.shape.rank() == 2;
  const bool embedding = spec.name.starts_with("embedding");
  const bool norm = spec.name.find("norm") != std::string::npos && spec.name.ends_with(".weight");
  const float scale = !matrix     ? 0.5F
                      : embedding ? 1.0F
                                  : 2.0F / std::sqrt(static_cast<float>(spec.shape.cols()));
  std::vector<float> values(static_cast<size_t>(spec.shape.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t x = hash + static_cast<uint32_t>(i) * 2'654'435'761U;
    x = (x ^ (x >> 16U)) * 0x85EBCA6BU;
    x = (x ^ (x >> 13U)) * 0xC2B2AE35U;
    x ^= x >> 16U;
    const float u = static_cast<float>(x >> 8U) * 0x1p-24F - 0.5F;
    values[i] = u * scale + (!matrix && norm ? 1.0F : 0.0F);
  }
  return values;
}

class DecoderGolden : public ::testing::TestWithParam<golden::Case> {
 protected:
  DecoderGolden() { golden_.set_weights(draw); }
  static double tolerance(double fp32, double bf16) { return GetParam().tolerance(fp32, bf16, 0); }

  golden::Model golden_{GetParam(),
                        config_of(GetParam().model.substr(8)),
                        {.classes = kVocabulary},
                        {kBatch, kContext},
                        {}};
};

TEST_P(DecoderGolden, LogitsMatchTransformers) {
  const std::vector<float> expected = golden_.read("logits");
  const std::vector<float> got = golden_.logits();
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(got[i] - expected[i])));
  }
  EXPECT_LE(largest, tolerance(2e-5, 0.2));
}

TEST_P(DecoderGolden, LossAndGradientsMatchTransformers) {
  const double expected_loss = static_cast<double>(golden_.read("losses").front());
  EXPECT_NEAR(golden_.loss(), expected_loss, tolerance(5e-6, 3e-2));
  const std::vector<float> all = golden_.read("gradients");
  size_t first = 0;
  for (const sparse::Parameter& parameter : golden_.store().parameters()) {
    const std::vector<float> got = golden_.gradient(parameter);
    ASSERT_LE(first + got.size(), all.size());
    const auto [distance, norm] =
        golden::difference(got, std::span(all).subspan(first, got.size()));
    first += got.size();
    // The absolute term is for gradients that are zero in exact arithmetic (biases of keys).
    EXPECT_LE(distance, tolerance(2e-5, 0.1) * norm + tolerance(1e-6, 5e-3)) << parameter.spec.name;
  }
  EXPECT_EQ(first, all.size());
}

TEST_P(DecoderGolden, TwentyStepsMatchTransformers) {
  const io::OptimizerConfig config{
      .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 0};
  optim::Optimizer optimizer(golden_.store(), *GetParam().kernels, config);
  const auto losses = golden_.read("losses");
  ASSERT_EQ(losses.size(), 20U);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden_.loss(), static_cast<double>(losses[step]), tolerance(2e-4, 0.1))
        << "step " << step;
    optimizer.step(golden_.stream(), static_cast<int64_t>(step), config.lr);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderGolden, ::testing::ValuesIn(cases()),
                         golden::name_of_case);

}  // namespace
}  // namespace espalier::decoder_golden_test
