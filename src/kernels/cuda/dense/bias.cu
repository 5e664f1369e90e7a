#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// One block per row.
__global__ void __launch_bounds__(256)
    add_to_rows(Elements c, int64_t stride, int64_t cols, const float* bias) {
  const int64_t begin = blockIdx.x * stride;
  for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) {
    store(c, begin + j, load(c, begin + j) + bias[j]);
  }
}

}  // namespace

void add_bias(Stream& stream, const Tensor& c, const float* bias) {
  launch(add_to_rows, {.name = "add_bias", .grid = blocks_for(c.rows(), 1)}, stream, elements(c),
         c.stride, c.cols(), bias);
}

}  // namespace espalier::kernels::ESPALIER_GPU
