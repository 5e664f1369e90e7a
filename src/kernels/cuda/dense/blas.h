#pragma once
// The dense product behind `gemm`, with the epilogues that cuBLASLt can fuse. blas_cublaslt.cpp
// calls that library; tests call host functions of the same interface
// (tests/simt/include/cublasLt.h).
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c [m, n] = op(a) op(b) (+ addend) (+ bias [n]). Row-major with strides, as GemmArgs. No extent
/// is 0.
struct Product {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool half_inputs = false;  ///< a and b are 16-bit, else fp32
  bool half_result = false;
  DType half = DType::bf16;  ///< the 16-bit type
  bool tf32 = false;         ///< fp32 inputs may be rounded to tf32
  bool transpose_a = false, transpose_b = false;
  const void* addend = nullptr;  ///< same layout as c; a separate array, or c itself; or null
  /// Optional epilogues, at most one: c = op(a) op(b) gelu'(of), `of` like c; or sums (+)= op(a) 1.
  const void* gelu_slope_of = nullptr;
  Tensor row_sums;
  bool accumulate_sums = false;
};

/// Enqueues the product. Returns true if the optional epilogue was fused; on false the caller
/// computes it. On a dry arena it only allocates its workspace.
bool matmul(Stream& stream, const Product& product);
/// c [m, n] += bias [n], c of any type, in place, for products whose bias is not fused. Rounds once
/// more than a fused bias.
void add_bias(Stream& stream, const Tensor& c, const float* bias);
/// Bytes that a product with a result of m x n uses at the start of the stream's workspace.
size_t matmul_workspace(int64_t m, int64_t n);

}  // namespace espalier::kernels::ESPALIER_GPU
