// One linear layer as the networks run it, through sparse::Weight: y = x Wᵀ + b, then the gradients
// of x, W and b. One thread. peers/linear.py is the counterpart; peers/linear.sh alternates between
// both.
//
// Names: storage/dtype/density/outputs/inputs/tokens. Density 1 is the dense product of the same
// type. GF/s counts kept elements only: 6 flops per kept element and token.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <random>

#include "sparse/weight/weight.h"

namespace espalier {
namespace {

using sparse::Storage;

struct Setting {
  Storage storage;
  DType dtype;
  double density;
  int64_t outputs, inputs, tokens;
};

/// An unstructured mask: an independent draw for each element.
sparse::Mask random_mask(int64_t size, double density) {
  sparse::Mask mask(size);
  std::mt19937_64 random(7);
  std::bernoulli_distribution kept(density);
  for (int64_t i = 0; i < size; ++i) {
    mask.set(i, kept(random));
  }
  return mask;
}

class Layer {
 public:
  explicit Layer(const Setting& set)
      : kernels_(kernels::by_name("cpu")),
        stream_(arena_, 1),
        store_(stream_, kernels_,
               {{.name = "weight",
                 .shape = {set.outputs, set.inputs},
                 .initial = sparse::Initial::normal,
                 .deviation = 0.02F,
                 .prunable = true}},
               {.dtype = set.dtype, .gradient = set.dtype}),
        weight_(store_, kernels_, store_.parameters().front()) {
    sparse::Parameter& parameter = store_.parameters().front();
    store_.initialise(1);
    if (set.density < 1) {
      const sparse::Mask mask = random_mask(set.outputs * set.inputs, set.density);
      store_.set_masks({&mask, 1});
      store_.set_storage(parameter, set.storage);
    }
    x_ = activations(set.dtype, {set.tokens, set.inputs});
    dy_ = activations(set.dtype, {set.tokens, set.outputs});
    y_ = activations(set.dtype, {set.tokens, set.outputs});
    dx_ = activations(set.dtype, {set.tokens, set.inputs});
    bias_ = arena_.allocate(Memory::weight, "bias", DType::fp32, {set.outputs});
    bias_gradient_ = arena_.allocate(Memory::gradient, "bias", set.dtype, {set.outputs});
    fill(bias_.tensor());
  }

  void forward_and_backward() {
    weight_.apply(stream_, {.x = x_.tensor(), .y = y_.tensor(), .bias = bias_.tensor()});
    weight_.apply_transposed(stream_, {.dy = dy_.tensor(), .dx = dx_.tensor()});
    weight_.accumulate_gradient(stream_, {.dy = dy_.tensor(), .x = x_.tensor()});
    kernels_.column_sum(stream_, {.x = dy_.tensor(), .out = bias_gradient_.tensor()});
  }
  int64_t kept() const { return store_.parameters().front().kept(); }

 private:
  Buffer activations(DType dtype, const Shape& shape) {
    Buffer buffer = arena_.allocate(Memory::activation, "activations", dtype, shape);
    fill(buffer.tensor());
    return buffer;
  }
  static void fill(const Tensor& tensor) {
    std::mt19937 random(static_cast<unsigned>(tensor.count()));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      if (tensor.dtype == DType::fp32) {
        tensor.get<float>()[i] = normal(random);
      } else {
        tensor.get<bf16>()[i] = to_bf16(normal(random));
      }
    }
  }

  const kernels::Kernels& kernels_;
  Arena arena_;
  Stream stream_;
  sparse::Store store_;
  sparse::Weight weight_;
  Buffer x_, y_, dx_, dy_, bias_, bias_gradient_;
};

void measure(benchmark::State& state, const Setting& set) {
  Layer layer(set);
  layer.forward_and_backward();
  for (auto _ : state) {
    layer.forward_and_backward();
  }
  const auto flops = 6.0 * static_cast<double>(layer.kept()) * static_cast<double>(set.tokens);
  state.counters["GF/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void add(const Setting& set) {
  const std::string name = fmt::format("{}/{}/{}/{}/{}/{}", set.storage.name, name_of(set.dtype),
                                       set.density, set.outputs, set.inputs, set.tokens);
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& s) { measure(s, set); })
      ->MinTime(0.3)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  const int64_t shapes[][2] = {{768, 768}, {3072, 768}, {768, 3072}, {2048, 2048}, {4096, 4096}};
  for (const auto& [outputs, inputs] : shapes) {
    for (const int64_t tokens : {int64_t{512}, int64_t{2048}}) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        add({Storage::dense, dtype, 1, outputs, inputs, tokens});
        for (const double density : {0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01}) {
          for (const Storage storage : {Storage::expanded, Storage::sparse}) {
            add({storage, dtype, density, outputs, inputs, tokens});
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace espalier
