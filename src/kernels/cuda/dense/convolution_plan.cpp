#include "src/kernels/cuda/dense/convolution_plan.h"

#include "src/core/error.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using cudnn::Data;
using cudnn::Note;
using cudnn::Pointwise;
using Id = ConvolutionTensor;

constexpr int64_t id(Id tensor) { return static_cast<int64_t>(tensor); }

/// The first is excluded only for fp32 operands that may not be rounded.
constexpr std::array kExcluded{Note::tensor_core,
                               Note::down_convert_inputs,
                               Note::reduced_precision_reduction,
                               Note::nondeterministic,
                               Note::fft,
                               Note::winograd,
                               Note::winograd_4x4,
                               Note::winograd_6x6,
                               Note::winograd_13x13};

std::span<const Note> excluded(const ConvolutionKey& key) {
  return std::span(kExcluded).subspan(key.dtype == DType::fp32 && !key.tf32 ? 0 : 1);
}

Data type_of(DType dtype) {
  return dtype == DType::fp32 ? Data::fp32 : dtype == DType::bf16 ? Data::bf16 : Data::fp16;
}

/// [n, channels, height, width], channels side by side.
CudnnShape channels_last(int64_t n, int64_t channels, int64_t height, int64_t width) {
  return {{n, channels, height, width}, {height * width * channels, 1, width * channels, channels}};
}

CudnnObject graph_of(const ConvolutionKey& key, const CudnnTarget& target) {
  const Window& window = key.window;
  const Data type = type_of(key.dtype);
  const CudnnShape y = channels_last(key.images, key.out, window.out_height(), window.out_width());
  const CudnnShape w = channels_last(key.out, key.in, window.extent, window.extent);
  const bool of_weight = key.part == ConvolutionPart::weight;
  CudnnGraph graph;
  graph.tensor(id(Id::x), type, channels_last(key.images, key.in, window.height, window.width));
  graph.tensor(id(Id::weight), of_weight ? Data::fp32 : type, w);
  graph.tensor(id(Id::y), type, y);
  const auto convolve = [&](int64_t weight, int64_t to) {
    return graph.convolve(key.part, id(Id::x), weight, to, window.stride, window.padding);
  };
  if (key.bias) {
    graph.tensor(id(Id::bias), Data::fp32, {{1, key.out, 1, 1}, {key.out, 1, key.out, key.out}});
    const int64_t sum = convolve(id(Id::weight), graph.between(Data::fp32, y));
    graph.pointwise(Pointwise::add, sum, id(Id::bias), id(Id::y));
  } else if (of_weight && type != Data::fp32) {
    const int64_t sum = convolve(graph.between(Data::fp32, w), id(Id::y));
    graph.pointwise(Pointwise::identity, sum, id(Id::weight));
  } else {
    convolve(id(Id::weight), id(Id::y));
  }
  return graph.finish(target);
}

}  // namespace

CudnnSupport plan_convolution(const ConvolutionKey& key, const CudnnTarget& target) {
  try {
    const CudnnObject graph = graph_of(key, target);
    return {.plan = std::make_shared<const CudnnPlan>(
                plan_graph(graph, target, {.workspace = key.workspace, .excluded = excluded(key)})),
            .why_not = {}};
  } catch (const Failure& failure) {
    return {.plan = nullptr, .why_not = failure.what()};
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
