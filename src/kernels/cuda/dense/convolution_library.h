#pragma once
// Convolutions by cuDNN. convolution.cpp tries cuDNN first; products with panels of patches
// compute every call that cuDNN does not support, and all calls if the library is missing.
//
// Calls offered to cuDNN: fp32, bf16 and fp16, tensors of 1 to 2^31 - 1 elements, aligned to 16
// bytes.
//
// ESPALIER_CONVOLUTION in the environment:
// - "own" uses only products with patches;
// - "cudnn" throws Failure with the reason if cuDNN does not support an offered call.
//
// A plan is made per shape at its first call and kept with the queue. cuDNN computes in the
// workspace that the patches and their products would have, and no engine that needs more is taken:
// memory plans do not depend on the library.
#include "src/core/stream.h"
#include "src/kernels/cuda/cudnn/graph.h"
#include "src/kernels/operations/window.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Operands of the three calls of operations/convolution.h. x stands for dx, y for dy and the
/// weight for its gradient.
struct LibraryConvolution {
  ConvolutionPart part = ConvolutionPart::forward;
  Window window;
  Tensor x, weight, bias, y;
};

/// Returns false if cuDNN does not compute the call. Kernels enqueued until then write only the
/// result and the workspace.
bool library_convolution(Stream& stream, const LibraryConvolution& call,
                         std::span<std::byte> workspace);

}  // namespace espalier::kernels::ESPALIER_GPU
