#pragma once
// The dense product behind `gemm`: one function, with cublasLt (blas_cublaslt.cpp) or, in tests, the
// CPU's product in the harness's queue (tests/simt/blas_host.cpp).
#include "src/core/stream.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c [m, n] = op(a) op(b) (+ c) (+ bias [n]); row-major with strides, as GemmArgs. Not empty.
struct Product {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool half_inputs = false;  ///< a and b are bf16, else fp32
  bool half_result = false;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
};

/// On a dry arena it asks for its workspace alone.
void matmul(Stream& stream, const Product& product);

}  // namespace espalier::kernels::ESPALIER_GPU
