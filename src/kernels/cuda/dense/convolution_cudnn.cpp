#include <algorithm>
#include <array>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/handle.h"
#include "src/kernels/cuda/cudnn/library.h"
#include "src/kernels/cuda/dense/convolution_library.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr const char* kConvolutionVariable = "ESPALIER_CONVOLUTION";

/// cuDNN 9.14 takes 16-bit gradients of weights whose channels are no multiples of 8, and computes
/// other values in each run (H200, 52 channels to 4); 9.19 and 9.26 refuse them.
bool gives_wrong_values(const LibraryConvolution& call) {
  constexpr int64_t kTogether = 8;
  return call.part == ConvolutionPart::weight && call.x.dtype != DType::fp32 &&
         (call.x.cols() % kTogether != 0 || call.y.cols() % kTogether != 0);
}

bool offers(const LibraryConvolution& call) {
  constexpr int64_t kMost = (int64_t{1} << 31U) - 1;
  return cudnn_use(kConvolutionVariable) != CudnnUse::own && !gives_wrong_values(call) &&
         std::ranges::all_of(std::array{call.x, call.weight, call.y}, [](const Tensor& tensor) {
           return tensor.count() > 0 && tensor.count() <= kMost;
         });
}

bool operands_aligned(const LibraryConvolution& call) {
  constexpr uintptr_t kOperands = 16;
  return std::ranges::all_of(std::array{call.x, call.weight, call.bias, call.y},
                             [](const Tensor& tensor) {
                               return reinterpret_cast<uintptr_t>(tensor.data) % kOperands == 0;
                             });
}

/// Returns "" if the call was enqueued, else the reason why not.
std::string enqueue_call(Stream& stream, const LibraryConvolution& call,
                         std::span<std::byte> workspace) {
  using Id = ConvolutionTensor;
  if (cudnn_functions() == nullptr) {
    return cudnn_state();
  }
  if (!operands_aligned(call)) {
    return "operands do not begin at 16 bytes";
  }
  Cudnn& cudnn = cudnn_of(stream);
  CudnnSupport& kept =
      cudnn.plan(ConvolutionKey{.part = call.part,
                                .dtype = call.x.dtype,
                                .tf32 = stream.tf32() && call.x.dtype == DType::fp32,
                                .bias = static_cast<bool>(call.bias),
                                .window = call.window,
                                .images = call.x.rows() / call.window.pixels(),
                                .in = call.x.cols(),
                                .out = call.y.cols(),
                                .workspace = workspace.size() - kCudnnAlignment});
  std::vector<CudnnPlace> places;
  const auto place = [&places](Id tensor, const Tensor& operand) {
    places.push_back({static_cast<int64_t>(tensor), operand.data});
  };
  place(Id::x, call.x);
  place(Id::weight, call.weight);
  place(Id::y, call.y);
  if (call.bias) {
    place(Id::bias, call.bias);
  }
  const auto begin = reinterpret_cast<uintptr_t>(workspace.data());
  const uintptr_t skipped = (kCudnnAlignment - begin % kCudnnAlignment) % kCudnnAlignment;
  return run_kept(stream, cudnn, kept, places, workspace.data() + skipped);
}

const char* part_text(ConvolutionPart part) {
  switch (part) {
    case ConvolutionPart::input:
      return "the gradient of a convolution's input";
    case ConvolutionPart::weight:
      return "the gradient of a convolution's weight";
    case ConvolutionPart::forward:
      break;
  }
  return "a convolution";
}

}  // namespace

bool library_convolution(Stream& stream, const LibraryConvolution& call,
                         std::span<std::byte> workspace) {
  if (stream.arena().dry() || !offers(call)) {
    return false;
  }
  const std::string why_not = enqueue_call(stream, call, workspace);
  const Window& window = call.window;
  check(
      why_not.empty() || cudnn_use(kConvolutionVariable) != CudnnUse::cudnn,
      "{} is cudnn, which does not support {} of {} images of {} x {} x {} to {} channels, window "
      "{}, stride {}, padding {}: {}; set {}=auto",
      kConvolutionVariable, part_text(call.part), call.x.rows() / window.pixels(), window.height,
      window.width, call.x.cols(), call.y.cols(), window.extent, window.stride, window.padding,
      why_not, kConvolutionVariable);
  return why_not.empty();
}

}  // namespace espalier::kernels::ESPALIER_GPU
