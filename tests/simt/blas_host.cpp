// Dense products for the harness: the CPU's, when the queue comes to them.
#include "src/kernels/cuda/blas.h"
#include "src/kernels/cuda/launch.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// A view that may be strided.
Tensor matrix(const void* data, bool half, const Shape& shape, int64_t stride) {
  Tensor made(const_cast<void*>(data), half ? DType::bf16 : DType::fp32, shape);
  made.stride = stride;
  return made;
}

void multiply(const Product& p) {
  Arena arena;
  Stream stream(arena, 1);
  const Shape a = p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k};
  const Shape b = p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n};
  by_name("cpu-portable")
      .gemm(stream, {.a = matrix(p.a, p.half_inputs, a, p.a_stride),
                     .b = matrix(p.b, p.half_inputs, b, p.b_stride),
                     .c = matrix(p.c, p.half_result, {p.m, p.n}, p.c_stride),
                     .bias = p.bias == nullptr ? Tensor{} : matrix(p.bias, false, {p.n}, p.n),
                     .transpose_a = p.transpose_a,
                     .transpose_b = p.transpose_b,
                     .accumulate = p.accumulate});
}

}  // namespace

void matmul(Stream& stream, const Product& product) {
  if (!stream.arena().dry()) {
    queue_of(stream).enqueue([product] { multiply(product); });
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
