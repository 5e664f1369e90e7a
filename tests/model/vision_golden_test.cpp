// Loss, gradients, moving averages and ten SGD steps of a small network of residual blocks against
// PyTorch in double precision. tests/golden/make_vision_golden.py writes and describes the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/checkpoint/plain_hdf5.h"
#include "io/hdf5/reader.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/optim/optimizer.h"

namespace espalier::vision_golden_test {
namespace {

struct Case {
  const kernels::Kernels* kernels;
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const kernels::Kernels* table : kernels::available()) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      if (table->name.starts_with("cpu")) {  // the host's memory
        all.push_back({table, dtype});
      }
    }
  }
  return all;
}

constexpr int64_t kBatch = 6, kFeatures = 12 * 10 * 3, kClasses = 5;

io::ModelConfig golden_config() {
  return {.kind = "vision",
          .network = {"conv 8 3 norm", "basic 8", "basic 12 stride 2", "bottleneck 16 groups 2",
                      "wide 16", "wide 12 stride 2", "norm", "max 2 stride 1", "conv 6 2 padding 1",
                      "linear 10"},
          .image = {12, 10, 3}};
}

/// The golden network, bound to its weights.
class Golden {
 public:
  explicit Golden(const Case& the_case)
      : path_(std::string(ESPALIER_SOURCE_DIR) + "/tests/golden/vision_small.h5"),
        plain_(path_),
        kernels_(*the_case.kernels),
        dtype_(the_case.dtype),
        network_(model::make_layers(
            golden_config(),
            {.classes = kClasses, .features = kFeatures, .rows = 1, .input_dtype = DType::fp32})),
        store_(stream_, kernels_, model::parameters_of(network_.layers()),
               {.dtype = dtype_, .moments = 1, .encoding = {}}) {
    network_.bind(store_, kernels_);
    for (sparse::Parameter& parameter : store_.parameters()) {
      store_.set_values(parameter, plain_.read("params." + parameter.spec.name));
    }
    images_ = arena_.allocate(Memory::activation, "images", DType::fp32, Shape{kBatch, kFeatures});
    labels_ = arena_.allocate(Memory::activation, "labels", DType::int32, Shape{kBatch});
    losses_ = arena_.allocate(Memory::activation, "losses", DType::fp32, Shape{kBatch});
    const io::hdf5::Reader file(path_);
    file.read("/images", io::hdf5::Type::fp32,
              std::as_writable_bytes(images_.tensor().span<float>()));
    file.read("/labels", io::hdf5::Type::int32,
              std::as_writable_bytes(labels_.tensor().span<int32_t>()));
  }

  /// The mean loss; in training with gradients.
  double loss(bool training) {
    model::Tape tape(arena_, size_t{4} << 20U);
    model::Pass pass{.stream = stream_,
                     .kernels = kernels_,
                     .tape = tape,
                     .dtype = dtype_,
                     .samples = kBatch,
                     .inputs = images_.tensor(),
                     .targets = labels_.tensor(),
                     .losses = losses_.tensor(),
                     .training = training,
                     .loss_scale = static_cast<float>(scale() / kBatch)};
    network_.forward(pass);
    if (training) {
      network_.backward(pass);
    }
    double sum = 0;
    for (const float one : losses_.tensor().span<float>()) {
      sum += static_cast<double>(one);
    }
    return sum / kBatch;
  }

  /// Gradients are larger by this factor: else those of fp16 underflow.
  double scale() const { return dtype_ == DType::fp16 ? 1024 : 1; }
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
  Buffer images_, labels_, losses_;
};

/// Distance of two vectors, and the length of the second.
std::pair<double, double> difference(std::span<const float> got, std::span<const float> want) {
  double squares = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    squares += error * error;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return {std::sqrt(squares), std::sqrt(norm)};
}

class VisionGolden : public ::testing::TestWithParam<Case> {
 protected:
  /// fp32: sums of at most a thousand terms, and the small deviations by which norms divide. bf16
  /// keeps 8 bits of each activation, fp16 11. In gradients of 16 bits a rectifier or maximum that
  /// switches changes whole paths.
  double tolerance(double fp32, double bf16, double fp16) const {
    return GetParam().dtype == DType::fp32 ? fp32 : GetParam().dtype == DType::bf16 ? bf16 : fp16;
  }
};

TEST_P(VisionGolden, LossMatchesPyTorch) {
  Golden golden(GetParam());
  const double expected = static_cast<double>(golden.file().read("loss").front());
  EXPECT_NEAR(golden.loss(true), expected, tolerance(5e-6, 5e-2, 6e-3));
}

TEST_P(VisionGolden, GradientsMatchPyTorch) {
  Golden golden(GetParam());
  golden.loss(true);
  for (const sparse::Parameter& parameter : golden.store().parameters()) {
    if (parameter.spec.average) {
      continue;
    }
    const auto want = golden.file().read("gradients." + parameter.spec.name);
    const auto flat = golden.store().part(golden.store().gradient(), parameter).span<float>();
    std::vector<float> got(flat.begin(), flat.end());
    for (float& one : got) {
      one /= static_cast<float>(golden.scale());
    }
    const auto [distance, norm] = difference(got, want);
    EXPECT_LE(distance, tolerance(5e-5, 0.7, 0.4) * norm + tolerance(1e-6, 5e-3, 5e-3))
        << parameter.spec.name;
  }
}

io::OptimizerConfig golden_optimizer() {
  io::OptimizerConfig config;
  config.kind = "sgd";
  config.lr = 0.05;
  config.momentum = 0.9;
  config.nesterov = true;
  config.weight_decay = 0.01;
  config.clip = 0;
  return config;
}

TEST_P(VisionGolden, MovingAveragesMatchPyTorch) {
  Golden golden(GetParam());
  const io::OptimizerConfig config = golden_optimizer();
  optim::Optimizer optimizer(golden.store(), *GetParam().kernels, config);
  optimizer.set_scale(golden.scale(), 0);
  golden.loss(true);
  optimizer.step(golden.stream(), 0, config.lr);
  for (const sparse::Parameter& parameter : golden.store().parameters()) {
    if (parameter.spec.average) {
      const auto want = golden.file().read("averages." + parameter.spec.name);
      const auto [distance, norm] = difference(golden.store().values(parameter), want);
      EXPECT_LE(distance, tolerance(2e-6, 2e-3, 3e-4) * norm) << parameter.spec.name;
    }
  }
}

/// Only in fp32: at this rate ten steps of six images magnify the rounding of 16 bits.
TEST_P(VisionGolden, TenStepsMatchPyTorch) {
  if (GetParam().dtype != DType::fp32) {
    return;
  }
  Golden golden(GetParam());
  const io::OptimizerConfig config = golden_optimizer();
  optim::Optimizer optimizer(golden.store(), *GetParam().kernels, config);
  const auto losses = golden.file().read("losses");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(golden.loss(true), static_cast<double>(losses[step]), 1e-4) << "step " << step;
    optimizer.step(golden.stream(), static_cast<int64_t>(step), config.lr);
  }
  const double evaluated = static_cast<double>(golden.file().read("evaluated").front());
  EXPECT_NEAR(golden.loss(false), evaluated, 5e-4);
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}", info.param.kernels->name, name_of(info.param.dtype));
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tables, VisionGolden, ::testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace espalier::vision_golden_test
