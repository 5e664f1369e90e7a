// Logits, loss, gradients and twenty AdamW steps of a small network of each family against
// transformers. tests/golden/make_decoder_golden.py writes and describes the golden files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/checkpoint/plain_hdf5.h"
#include "io/hdf5/reader.h"
#include "src/model/network.h"
#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"
#include "src/optim/optimizer.h"

namespace espalier::decoder_golden_test {
namespace {

constexpr int64_t kBatch = 2, kContext = 16, kVocabulary = 40;

struct Case {
  std::string family;
  const kernels::Kernels* kernels;
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const kernels::Kernels* table : kernels::available()) {
    if (!table->name.starts_with("cpu")) {  // the host's memory
      continue;
    }
    for (const std::string& family : names(model::families())) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        all.push_back({family, table, dtype});
      }
    }
  }
  return all;
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

class Golden {
 public:
  explicit Golden(const Case& the_case)
      : path_(fmt::format("{}/tests/golden/decoder_{}.h5", ESPALIER_SOURCE_DIR, the_case.family)),
        plain_(path_),
        kernels_(*the_case.kernels),
        dtype_(the_case.dtype),
        network_(model::make_layers(config_of(the_case.family), {.classes = kVocabulary})),
        store_(stream_, kernels_, model::parameters_of(network_.layers()),
               {.dtype = dtype_, .encoding = {}}) {
    network_.bind(store_, kernels_);
    for (sparse::Parameter& parameter : store_.parameters()) {
      store_.set_values(parameter, draw(parameter.spec));
    }
    const Shape rows{kBatch * kContext};
    tokens_ = arena_.allocate(Memory::activation, "tokens", DType::int32, Shape{kBatch, kContext});
    targets_ = arena_.allocate(Memory::activation, "targets", DType::int32, rows);
    losses_ = arena_.allocate(Memory::activation, "losses", DType::fp32, rows);
    const io::hdf5::Reader file(path_);
    file.read("/tokens", io::hdf5::Type::int32,
              std::as_writable_bytes(tokens_.tensor().span<int32_t>()));
    file.read("/targets", io::hdf5::Type::int32,
              std::as_writable_bytes(targets_.tensor().span<int32_t>()));
  }

  double forward_backward() {
    model::Tape tape(arena_, size_t{4} << 20U);
    model::Pass pass = pass_on(tape);
    pass.training = true;
    network_.forward(pass);
    network_.backward(pass);
    double sum = 0;
    for (const float loss : losses_.tensor().span<float>()) {
      sum += static_cast<double>(loss);
    }
    return sum / static_cast<double>(kBatch * kContext);
  }

  std::vector<float> logits() {
    model::Tape tape(arena_, size_t{4} << 20U);
    model::Pass pass = pass_on(tape);
    const Tensor found = network_.logits(pass, 0, kBatch * kContext);
    const auto numbers = found.span<float>();
    return {numbers.begin(), numbers.end()};
  }

  const io::PlainReader& file() const { return plain_; }
  sparse::Store& store() { return store_; }
  Stream& stream() { return stream_; }

 private:
  model::Pass pass_on(model::Tape& tape) {
    return {.stream = stream_,
            .kernels = kernels_,
            .tape = tape,
            .dtype = dtype_,
            .samples = kBatch,
            .inputs = tokens_.tensor(),
            .targets = targets_.tensor(),
            .losses = losses_.tensor(),
            .loss_scale = 1.0F / static_cast<float>(kBatch * kContext)};
  }

  std::string path_;
  io::PlainReader plain_;
  const kernels::Kernels& kernels_;
  DType dtype_;
  Arena arena_;
  Stream stream_{arena_, 2};
  model::Network network_;
  sparse::Store store_;
  Buffer tokens_, targets_, losses_;
};

class DecoderGolden : public ::testing::TestWithParam<Case> {
 protected:
  static double tolerance(double fp32, double bf16) {
    return GetParam().dtype == DType::fp32 ? fp32 : bf16;
  }
};

TEST_P(DecoderGolden, LogitsMatchTransformers) {
  Golden golden(GetParam());
  const std::vector<float> expected = golden.file().read("logits");
  const std::vector<float> got = golden.logits();
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(got[i] - expected[i])));
  }
  EXPECT_LE(largest, tolerance(2e-5, 0.2));
}

TEST_P(DecoderGolden, LossAndGradientsMatchTransformers) {
  Golden golden(GetParam());
  const double expected_loss = static_cast<double>(golden.file().read("losses").front());
  EXPECT_NEAR(golden.forward_backward(), expected_loss, tolerance(5e-6, 3e-2));
  const std::vector<float> all = golden.file().read("gradients");
  size_t first = 0;
  for (const sparse::Parameter& parameter : golden.store().parameters()) {
    const auto got = golden.store().part(golden.store().gradient(), parameter).span<float>();
    ASSERT_LE(first + got.size(), all.size());
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto expected = static_cast<double>(all[first + i]);
      difference += std::pow(static_cast<double>(got[i]) - expected, 2);
      norm += expected * expected;
    }
    first += got.size();
    // The absolute term is for gradients that are zero in exact arithmetic (biases of keys).
    EXPECT_LE(std::sqrt(difference), tolerance(2e-5, 0.1) * std::sqrt(norm) + tolerance(1e-6, 5e-3))
        << parameter.spec.name;
  }
  EXPECT_EQ(first, all.size());
}

TEST_P(DecoderGolden, TwentyStepsMatchTransformers) {
  Golden golden(GetParam());
  io::OptimizerConfig config;
  config.lr = 3e-3;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.epsilon = 1e-8;
  config.weight_decay = 0.1;
  config.clip = 0;
  optim::Optimizer optimizer(golden.store(), *GetParam().kernels, config);
  const auto losses = golden.file().read("losses");
  ASSERT_EQ(losses.size(), 20U);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden.forward_backward(), static_cast<double>(losses[step]), tolerance(2e-4, 0.1))
        << "step " << step;
    optimizer.step(golden.stream(), static_cast<int64_t>(step), config.lr);
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.family, name_of(info.param.dtype),
                                 info.param.kernels->name);
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderGolden, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace espalier::decoder_golden_test
