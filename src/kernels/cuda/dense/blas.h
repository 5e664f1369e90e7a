#pragma once
// The dense product behind `gemm`, with what cuBLASLt can do on the way. blas_cublaslt.cpp asks
// that library, or in tests one of the same functions on the host (tests/simt/include/cublasLt.h).
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c [m, n] = op(a) op(b) (+ addend) (+ bias [n]); row-major with strides, as GemmArgs. Not empty.
struct Product {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool half_inputs = false;  ///< a and b are halves, else fp32
  bool half_result = false;
  DType half = DType::bf16;  ///< what halves are
  bool tf32 = false;         ///< inputs of fp32 may be rounded to it
  bool transpose_a = false, transpose_b = false;
  const void* addend = nullptr;  ///< lies as c does, beside it or c itself; or null
  /// Codes of 8 bits instead, times scales of the device: a [m, k], b [n, k] and transpose_b, where
  /// `takes_fp8`.
  Float8 a_format = Float8::none, b_format = Float8::none;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  const float* factors = nullptr;  ///< of the device: c = [0] op(a) op(b) + [1] addend; or null
  /// Wishes, at most one: c = op(a) op(b) gelu'(of), `of` like c; and sums (+)= op(a) 1.
  const void* gelu_slope_of = nullptr;
  Tensor row_sums;
  bool accumulate_sums = false;
};

/// The library multiplies codes of 8 bits with these extents, addresses and strides, on this device.
bool takes_fp8(Stream& stream, const Product& product);

/// Asks the stream for the product. True: the wish is fulfilled, too; false: the caller has it to
/// do. On a dry arena it asks for its workspace alone.
bool matmul(Stream& stream, const Product& product);
/// Bytes of the stream's workspace, from its start, that a product with a result of m x n uses.
size_t matmul_workspace(int64_t m, int64_t n);

}  // namespace espalier::kernels::ESPALIER_GPU
