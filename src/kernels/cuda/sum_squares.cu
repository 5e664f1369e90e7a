// A warp sums the squares of a block of kSumBlock elements in double.
#include "src/kernels/cuda/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps) block_squares(Elements x, int64_t n, double* sums) {
  static_assert(kSumBlock == 2 * 4 * 32);
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t first = block * kSumBlock + 4 * (threadIdx.x % 32);
  if (block * kSumBlock >= n) {
    return;
  }
  const Quad a = load_quad(x, first, n - first);
  const Quad b = load_quad(x, first + 128, n - first - 128);
  double sum = 0;
  for (int k = 0; k < 4; ++k) {
    sum += double{a.x[k]} * a.x[k] + double{b.x[k]} * b.x[k];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    sums[block] = sum;
  }
}

}  // namespace

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  verify(args);
  const int64_t n = args.x.count();
  launch(block_squares,
         {.name = "sum_squares", .grid = blocks_for(n, kWarps * kSumBlock), .block = 32 * kWarps},
         stream, elements(args.x), n, args.sums);
}

}  // namespace espalier::kernels::ESPALIER_GPU
