#include "src/kernels/cuda/blas.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {

void gemm(Stream& stream, const GemmArgs& args) {
  verify(args);
  const Product product{.a = args.a.data,
                        .b = args.b.data,
                        .c = args.c.data,
                        .bias = static_cast<const float*>(args.bias.data),
                        .m = args.c.rows(),
                        .n = args.c.cols(),
                        .k = args.transpose_a ? args.a.rows() : args.a.cols(),
                        .a_stride = args.a.stride,
                        .b_stride = args.b.stride,
                        .c_stride = args.c.stride,
                        .half_inputs = args.a.dtype == DType::bf16,
                        .half_result = args.c.dtype == DType::bf16,
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .accumulate = args.accumulate};
  if (product.m > 0 && product.n > 0) {
    require(product.k > 0, "a product has terms", product.m, product.n);
    matmul(stream, product);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
