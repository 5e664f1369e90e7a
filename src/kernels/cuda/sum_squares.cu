// A warp sums the squares of a block of kSumBlock elements, a lane a column; a thread block counts
// the digits of its sums in shared memory, and adds those that are not 0 to the counts at its end.
// Atomics act on whole numbers alone, so the order of warps does not matter.
#include "src/core/exact_sum.h"
#include "src/kernels/cuda/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using Count = unsigned long long;  // what atomics of 64 bits take

constexpr unsigned kWarps = 8;
constexpr unsigned kMostBlocks = 2048;  // of threads: enough for a large device

/// core/exact_sum.cpp, ExactSum::add
__device__ __forceinline__ void add_exactly(Count* counts, double x) {
  constexpr Count kHidden = Count{1} << 52;
  constexpr Count kLow = 0xffffffffU;
  const auto bits = static_cast<Count>(__double_as_longlong(x)) & (~Count{0} >> 1);
  const Count exponent = bits >> 52;
  const Count fraction = bits & (kHidden - 1);
  if (exponent == 0x7ff) {
    atomicOr(&counts[ExactSum::kDigits], (exponent << 52) | (fraction != 0 ? kHidden >> 1 : 0));
    return;
  }
  const Count mantissa = fraction | (exponent > 0 ? kHidden : 0);
  const Count shift = exponent > 0 ? exponent - 1 : 0;
  const Count lower = (mantissa & kLow) << (shift % 32);
  const Count upper = (mantissa >> 32) << (shift % 32);
  Count* const digit = counts + shift / 32;
  atomicAdd(digit, lower & kLow);
  atomicAdd(digit + 1, (lower >> 32) + (upper & kLow));
  atomicAdd(digit + 2, upper >> 32);
}

__global__ void __launch_bounds__(32 * kWarps) exact_squares(Elements x, int64_t n, Count* counts) {
  static_assert(kSumColumns == 32);
  __shared__ Count mine[ExactSum::kWords];
  for (unsigned i = threadIdx.x; i < ExactSum::kWords; i += 32 * kWarps) {
    mine[i] = 0;
  }
  __syncthreads();
  const int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  for (int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; block < blocks;
       block += int64_t{gridDim.x} * kWarps) {
    double sum = 0;
#pragma unroll
    for (int64_t row = 0; row < kSumBlock / kSumColumns; ++row) {
      const int64_t i = block * kSumBlock + row * kSumColumns + threadIdx.x % 32;
      const double value = i < n ? load(x, i) : 0.0F;
      sum += value * value;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0 && sum != 0) {
      add_exactly(mine, sum);
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < ExactSum::kWords; i += 32 * kWarps) {
    if (mine[i] == 0) {
      continue;
    }
    if (i < ExactSum::kDigits) {
      atomicAdd(&counts[i], mine[i]);
    } else {
      atomicOr(&counts[i], mine[i]);
    }
  }
}

}  // namespace

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  verify(args);
  const int64_t n = args.x.count();
  const unsigned blocks = blocks_for(n, kWarps * kSumBlock);
  launch(exact_squares,
         {.name = "sum_squares",
          .grid = blocks < kMostBlocks ? blocks : kMostBlocks,
          .block = 32 * kWarps},
         stream, elements(args.x), n, static_cast<Count*>(args.counts.data));
}

}  // namespace espalier::kernels::ESPALIER_GPU
