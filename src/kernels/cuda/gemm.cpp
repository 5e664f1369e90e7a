#include "src/kernels/cuda/blas.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

Product product_of(const Stream& stream, const GemmArgs& args) {
  return {.a = args.a.data,
          .b = args.b.data,
          .c = args.c.data,
          .bias = static_cast<const float*>(args.bias.data),
          .m = args.c.rows(),
          .n = args.c.cols(),
          .k = args.transpose_a ? args.a.rows() : args.a.cols(),
          .a_stride = args.a.stride,
          .b_stride = args.b.stride,
          .c_stride = args.c.stride,
          .half_inputs = args.a.dtype != DType::fp32,
          .half_result = args.c.dtype != DType::fp32,
          .half = args.a.dtype == DType::fp16 ? DType::fp16 : DType::bf16,
          .tf32 = stream.tf32() && args.a.dtype == DType::fp32,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate};
}

}  // namespace

// What goes with a product is fused into it here, or done after it, and nowhere else:
//   activated      after it: the library computes it from the sum before c is rounded, so that what
//                  backward computes again from c would have other bits
//   preactivation  fused for gelu in 16 bits, where one rounding less hides that its gelu is another form
//   row_sums       fused where the library can (blas_cublaslt.cpp)
void gemm(Stream& stream, const GemmArgs& args) {
  verify(args);
  Product product = product_of(stream, args);
  bool fused = false;
  if (product.m > 0 && product.n > 0) {
    require(product.k > 0, "a product has terms", product.m, product.n);
    if (args.preactivation && args.activation == Activation::gelu && product.half_result) {
      product.gelu_slope_of = args.preactivation.data;
    } else if (!args.preactivation) {
      product.row_sums = args.row_sums;
      product.accumulate_sums = args.accumulate_sums;
    }
    fused = matmul(stream, product);
  }
  if (args.activated) {
    activation(stream, {.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation && !fused) {
    activation_backward(
        stream, {.kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums && !fused) {
    column_sum(stream, {.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
