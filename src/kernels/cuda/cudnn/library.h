#pragma once
// Loads cuDNN at the first attention or convolution (from CUDNN_DIR, or the toolkit's folders).
// Tests replace the library by host functions (tests/simt/cudnn_host.cpp).
#include <string>

#include "src/kernels/cuda/cudnn/api.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Null if no suitable library is found: version 9, 9.10.2 or later.
const cudnn::Functions* cudnn_functions();
/// The library's file and version, or the reason why our own kernels compute instead.
std::string cudnn_state();

}  // namespace espalier::kernels::ESPALIER_GPU
