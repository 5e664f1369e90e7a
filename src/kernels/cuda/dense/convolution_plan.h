#pragma once
// Convolutions as graphs of cuDNN operations. Our layouts are cuDNN's "channels last" (NHWC) and
// filters of [out, rows, columns, in] (KRSC), so nothing is converted.
//
//   forward    y = conv(x, w) + bias, rounded once: the sum before the bias is fp32 and not stored
//   input      dx = the adjoint applied to dy
//   weight     dw = the adjoint in w, fp32. In 16 bits cuDNN has it only as the fp32 result of
//              another operation (identity) that follows the convolution, and only for channels
//              that are multiples of 8.
//
// All engines have the same bits in each run and sum in fp32, without transforms of the operands
// (FFT, Winograd); fp32 operands are rounded to TF32 only if the stream allows it. cuDNN's
// heuristic orders the engines by shape and device, without timing.
#include <array>
#include <compare>

#include "src/core/types.h"
#include "src/kernels/cuda/cudnn/graph.h"
#include "src/kernels/operations/window.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Operands as in operations/convolution.h.
struct ConvolutionKey {
  ConvolutionPart part = ConvolutionPart::forward;
  DType dtype = DType::fp32;  ///< of x, y and the weight; the weight's gradient is fp32
  bool tf32 = false;          ///< fp32 operands may be rounded
  bool bias = false;
  Window window;
  int64_t images = 0, in = 0, out = 0;
  size_t workspace = 0;  ///< upper bound, bytes

  std::strong_ordering operator<=>(const ConvolutionKey& other) const {
    return numbers() <=> other.numbers();
  }
  bool operator==(const ConvolutionKey& other) const { return numbers() == other.numbers(); }

 private:
  std::array<int64_t, 13> numbers() const {
    return {static_cast<int64_t>(part),
            static_cast<int64_t>(dtype),
            static_cast<int64_t>(tf32),
            static_cast<int64_t>(bias),
            window.height,
            window.width,
            window.extent,
            window.stride,
            window.padding,
            images,
            in,
            out,
            static_cast<int64_t>(workspace)};
  }
};

/// Tensors of the graphs by number.
enum class ConvolutionTensor : int64_t { x = 1, weight, y, bias };

/// Never throws Failure: a shape that cuDNN refuses has no plan, and `why_not` gives the reason.
CudnnSupport plan_convolution(const ConvolutionKey& key, const CudnnTarget& target);

}  // namespace espalier::kernels::ESPALIER_GPU
