// Loss, gradients and ten AdamW steps of a small GPT against PyTorch in double precision.
// tests/golden/make_gpt_golden.py writes and describes the golden files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/checkpoint/plain_hdf5.h"
#include "io/hdf5/reader.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/optim/optimizer.h"

namespace espalier::gpt_golden_test {
namespace {

struct Case {
  const char* file;
  bool tied;
  const kernels::Kernels* kernels;
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const kernels::Kernels* table : kernels::available()) {
    if (!table->name.starts_with("cpu")) {  // the host's memory
      continue;
    }
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      all.push_back({"gpt_small.h5", false, table, dtype});
      all.push_back({"gpt_small_tied.h5", true, table, dtype});
    }
  }
  return all;
}

constexpr int64_t kBatch = 3, kContext = 16, kVocabulary = 32;

/// The golden model, bound to its weights.
class Golden {
 public:
  explicit Golden(const Case& the_case)
      : path_(std::string(ESPALIER_SOURCE_DIR) + "/tests/golden/" + the_case.file),
        plain_(path_),
        kernels_(*the_case.kernels),
        dtype_(the_case.dtype),
        network_(model::make_layers(config_of(the_case), {.classes = kVocabulary})),
        store_(stream_, kernels_, model::parameters_of(network_.layers()),
               {.dtype = dtype_, .encoding = {}}) {
    network_.bind(store_, kernels_);
    for (sparse::Parameter& parameter : store_.parameters()) {
      store_.set_values(parameter, plain_.read("params." + parameter.spec.name));
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

  static io::ModelConfig config_of(const Case& the_case) {
    return {
        .layers = 2, .heads = 2, .width = 32, .context = kContext, .tie_embeddings = the_case.tied};
  }

  double forward_backward() {
    model::Tape tape(arena_, size_t{4} << 20U);
    const auto rows = static_cast<double>(kBatch * kContext);
    model::Pass pass{.stream = stream_,
                     .kernels = kernels_,
                     .tape = tape,
                     .dtype = dtype_,
                     .samples = tokens_.tensor().shape[0],
                     .inputs = tokens_.tensor(),
                     .targets = targets_.tensor(),
                     .losses = losses_.tensor(),
                     .training = true,
                     .loss_scale = static_cast<float>(1 / rows)};
    network_.forward(pass);
    network_.backward(pass);
    double sum = 0;
    for (const float loss : losses_.tensor().span<float>()) {
      sum += static_cast<double>(loss);
    }
    return sum / rows;
  }

  const io::PlainReader& file() const { return plain_; }
  sparse::Store& store() { return store_; }
  Stream& stream() { return stream_; }

 private:
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

class GptGolden : public ::testing::TestWithParam<Case> {
 protected:
  /// Tolerance of fp32 sums of at most a few thousand terms; bf16 keeps 8 bits of each factor, fp16
  /// 11.
  double tolerance(double fp32, double bf16) const {
    return GetParam().dtype == DType::fp32   ? fp32
           : GetParam().dtype == DType::bf16 ? bf16
                                             : bf16 / 8;
  }
};

TEST_P(GptGolden, LossMatchesPyTorch) {
  Golden golden(GetParam());
  const double expected = static_cast<double>(golden.file().read("loss").front());
  EXPECT_NEAR(golden.forward_backward(), expected, tolerance(2e-6, 2e-2));
}

TEST_P(GptGolden, GradientsMatchPyTorch) {
  Golden golden(GetParam());
  golden.forward_backward();
  for (const sparse::Parameter& parameter : golden.store().parameters()) {
    const auto expected = golden.file().read("gradients." + parameter.spec.name);
    const auto got = golden.store().part(golden.store().gradient(), parameter).span<float>();
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
      difference += error * error;
      norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    // The absolute term is for gradients that are zero in exact arithmetic (the key part of a
    // bias).
    EXPECT_LE(std::sqrt(difference),
              tolerance(1e-5, 3e-2) * std::sqrt(norm) + tolerance(1e-6, 5e-3))
        << parameter.spec.name;
  }
}

TEST_P(GptGolden, TenStepsMatchPyTorch) {
  Golden golden(GetParam());
  io::OptimizerConfig config;
  config.lr = 1e-3;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.epsilon = 1e-8;
  config.weight_decay = 0.1;
  config.clip = 1.0;
  optim::Optimizer optimizer(golden.store(), *GetParam().kernels, config);
  const auto losses = golden.file().read("losses");
  const auto norms = golden.file().read("norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden.forward_backward(), static_cast<double>(losses[step]), tolerance(2e-5, 4e-2))
        << "step " << step;
    const auto result = optimizer.step(golden.stream(), static_cast<int64_t>(step), config.lr);
    EXPECT_TRUE(result.applied);
    EXPECT_NEAR(result.gradient_norm, static_cast<double>(norms[step]),
                tolerance(1e-4, 5e-2) * static_cast<double>(norms[step]));
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.kernels->name, name_of(info.param.dtype),
                                 info.param.tied ? "tied" : "untied");
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tables, GptGolden, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace espalier::gpt_golden_test
