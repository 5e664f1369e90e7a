#pragma once
// Models of golden files (tests/golden) on every table of CPU kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/checkpoint/plain_hdf5.h"
#include "io/hdf5/reader.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/optim/optimizer.h"

namespace espalier::golden {

struct Case {
  std::string model;
  const kernels::Kernels* kernels;
  DType dtype;

  /// Of the three, by type.
  double tolerance(double fp32, double bf16, double fp16) const {
    return dtype == DType::fp32 ? fp32 : dtype == DType::bf16 ? bf16 : fp16;
  }
};

/// Each model on each table that computes in the host's memory, in each type.
inline std::vector<Case> cases_of(const std::vector<std::string>& models,
                                  const std::vector<DType>& dtypes) {
  std::vector<Case> all;
  for (const kernels::Kernels* table : kernels::available()) {
    for (size_t i = 0; i < models.size() && table->name.starts_with("cpu"); ++i) {
      for (const DType dtype : dtypes) {
        all.push_back({models[i], table, dtype});
      }
    }
  }
  return all;
}

inline std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.model, name_of(info.param.dtype),
                                 info.param.kernels->name);
  std::ranges::replace(name, '-', '_');
  return name;
}

/// Distance of two vectors, and the length of the second.
inline std::pair<double, double> difference(std::span<const float> got,
                                            std::span<const float> want) {
  double squares = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    squares += error * error;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return {std::sqrt(squares), std::sqrt(norm)};
}

/// A network with the inputs and targets of its golden file. Gradients are larger by `scale`.
class Model {
 public:
  struct Options {
    std::string inputs = "/tokens", targets = "/targets";  ///< datasets
    int moments = 2;
    double scale = 1;
  };

  Model(const Case& of, const io::ModelConfig& config, const model::ProblemShape& problem,
        const Shape& inputs, Options options)
      : path_(fmt::format("{}/tests/golden/{}.h5", ESPALIER_SOURCE_DIR, of.model)),
        plain_(path_),
        kernels_(*of.kernels),
        dtype_(of.dtype),
        scale_(options.scale),
        network_(model::make_layers(config, problem)),
        store_(stream_, kernels_, model::parameters_of(network_.layers()),
               {.dtype = dtype_, .moments = options.moments, .encoding = {}}) {
    network_.bind(store_, kernels_);
    const bool tokens = problem.input_dtype == DType::int32;
    const Shape rows{tokens ? inputs.count() : inputs[0]};
    inputs_ = arena_.allocate(Memory::activation, "inputs", problem.input_dtype, inputs);
    targets_ = arena_.allocate(Memory::activation, "targets", DType::int32, rows);
    losses_ = arena_.allocate(Memory::activation, "losses", DType::fp32, rows);
    const io::hdf5::Reader file(path_);
    file.read(options.inputs, tokens ? io::hdf5::Type::int32 : io::hdf5::Type::fp32,
              {static_cast<std::byte*>(inputs_.tensor().data), inputs_.tensor().bytes()});
    file.read(options.targets, io::hdf5::Type::int32,
              std::as_writable_bytes(targets_.tensor().span<int32_t>()));
  }

  template <class Draw>
  void set_weights(const Draw& values_of) {
    for (sparse::Parameter& parameter : store_.parameters()) {
      store_.set_values(parameter, values_of(parameter.spec));
    }
  }
  /// The weights that the file has.
  void read_weights() {
    set_weights([&](const sparse::ParameterSpec& spec) { return read("params." + spec.name); });
  }

  /// The mean loss; in training with gradients.
  double loss(bool training = true) {
    model::Tape tape(arena_, size_t{4} << 20U);
    model::Pass pass = pass_on(tape);
    pass.training = training;
    network_.forward(pass);
    if (training) {
      network_.backward(pass);
    }
    double sum = 0;
    for (const float one : losses_.tensor().span<float>()) {
      sum += static_cast<double>(one);
    }
    return sum / static_cast<double>(losses_.tensor().count());
  }

  std::vector<float> logits() {
    model::Tape tape(arena_, size_t{4} << 20U);
    model::Pass pass = pass_on(tape);
    const auto numbers = network_.logits(pass, 0, losses_.tensor().count()).span<float>();
    return {numbers.begin(), numbers.end()};
  }

  /// Without `scale`.
  std::vector<float> gradient(const sparse::Parameter& parameter) {
    const auto flat = store_.part(store_.gradient(), parameter).span<float>();
    std::vector<float> found(flat.begin(), flat.end());
    for (float& one : found) {
      one /= static_cast<float>(scale_);
    }
    return found;
  }

  /// Numbers of the file.
  std::vector<float> read(const std::string& name) const { return plain_.read(name); }
  sparse::Store& store() { return store_; }
  Stream& stream() { return stream_; }

 private:
  model::Pass pass_on(model::Tape& tape) {
    return {.stream = stream_,
            .kernels = kernels_,
            .tape = tape,
            .dtype = dtype_,
            .samples = inputs_.tensor().shape[0],
            .inputs = inputs_.tensor(),
            .losses = {.targets = targets_.tensor(),
                       .values = losses_.tensor(),
                       .scale = static_cast<float>(scale_ /
                                                   static_cast<double>(losses_.tensor().count()))}};
  }

  std::string path_;
  io::PlainReader plain_;
  const kernels::Kernels& kernels_;
  DType dtype_;
  double scale_;
  Arena arena_;
  Stream stream_{arena_, 2};
  model::Network network_;
  sparse::Store store_;
  Buffer inputs_, targets_, losses_;
};

}  // namespace espalier::golden
