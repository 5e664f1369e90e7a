// A warp sums the squares of kTogether blocks of kSumBlock elements; a lane sums a column of each.
// A thread block counts the digits of its sums in shared memory, and adds the non-zero ones to the
// global counts at its end. Atomics act on integers only, so the order of warps does not affect the
// result.
#include <algorithm>

#include "src/core/exact_sum.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using Count = unsigned long long;  // the 64-bit type of atomics

constexpr unsigned kWarps = 8;
constexpr int kTogether = 4;
constexpr unsigned kMaxBlocks = 2048;  // thread blocks; enough for a large device

/// Same rule as core/exact_sum.cpp, ExactSum::add.
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

/// Sum of squares of a lane's column of the block that begins at element `first`; `left`: elements
/// from x on. kWhole: the block is complete.
template <bool kWhole>
__device__ __forceinline__ double column_squares(const Elements& x, int first, int64_t left) {
  constexpr int kRows = kSumBlock / kSumColumns;
  uint32_t bits[kRows];  // all loads are issued before the first use
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int i = first + row * static_cast<int>(kSumColumns);
    bits[row] = 0;
    if (kWhole || i < left) {
      bits[row] = x.half() ? static_cast<const uint16_t*>(x.data)[i]
                           : static_cast<const uint32_t*>(x.data)[i];
    }
  }
  double sum = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const double value = x.half() ? from_half(x.type, bits[row]) : __uint_as_float(bits[row]);
    sum += value * value;
  }
  return sum;
}

/// Sums columns c and c + distance of one of two blocks: of `a` in lanes without the bit
/// `distance`, of `b` in the others. So one exchange serves two blocks. Either order of a sum has
/// the same bits.
__device__ __forceinline__ double halve(double a, double b, unsigned distance) {
  const bool second = (threadIdx.x & distance) != 0;
  return (second ? b : a) + __shfl_xor_sync(kAllLanes, second ? a : b, distance);
}

/// Sums a lane's columns of kTogether blocks, from its element x on. Lane 8 (i % 2 * 2 + i / 2)
/// receives the sum of block i.
template <bool kWhole>
__device__ __forceinline__ double squares_together(const Elements& x, int64_t left) {
  static_assert(kTogether == 4 && kSumColumns == 32);
  double sums[kTogether];
#pragma unroll
  for (int block = 0; block < kTogether; ++block) {
    sums[block] = column_squares<kWhole>(x, block * static_cast<int>(kSumBlock), left);
  }
  double sum = halve(halve(sums[0], sums[1], 16), halve(sums[2], sums[3], 16), 8);
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  return sum;
}

/// Arrays of one launch, divided into chunks that thread blocks process in turn.
struct Arrays {
  static constexpr int kMax = 96;
  static constexpr int64_t kChunk = int64_t{kWarps} * kTogether * kSumBlock;
  Elements x[kMax];
  int64_t n[kMax];
  unsigned end[kMax];  ///< number of the chunk after the array's last
};

__global__ void __launch_bounds__(32 * kWarps)
    exact_squares(Arrays arrays, unsigned chunks, Count* counts) {
  __shared__ Count mine[ExactSum::kWords];
  for (unsigned i = threadIdx.x; i < ExactSum::kWords; i += 32 * kWarps) {
    mine[i] = 0;
  }
  __syncthreads();
  int which = 0;
  unsigned begin = 0;
  for (unsigned chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    while (chunk >= arrays.end[which]) {
      begin = arrays.end[which++];
    }
    const int64_t i = (chunk - begin) * Arrays::kChunk + threadIdx.x / 32 * kTogether * kSumBlock;
    const int64_t left = arrays.n[which] - i;
    const int64_t lane = threadIdx.x % 32;
    if (left <= 0) {
      continue;
    }
    const Elements x = elements_from(arrays.x[which], i + lane);
    const double sum = left >= kTogether * kSumBlock ? squares_together<true>(x, left - lane)
                                                     : squares_together<false>(x, left - lane);
    if (threadIdx.x % 8 == 0 && sum != 0) {
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

/// Sums at most Arrays::kMax arrays in one launch, into the same counts.
void sum_some(Stream& stream, std::span<const SumSquaresArgs> some) {
  Arrays arrays;
  unsigned chunks = 0;
  for (size_t k = 0; k < some.size(); ++k) {
    require(some[k].counts.data == some.front().counts.data, "sums of one call are one", k);
    chunks += blocks_for(some[k].x.count(), Arrays::kChunk);
    arrays.x[k] = elements(some[k].x);
    arrays.n[k] = some[k].x.count();
    arrays.end[k] = chunks;
  }
  launch(exact_squares,
         {.name = "sum_squares", .grid = std::min(chunks, kMaxBlocks), .block = 32 * kWarps},
         stream, arrays, chunks, static_cast<Count*>(some.front().counts.data));
}

}  // namespace

void sum_squares(Stream& stream, const Each<SumSquaresArgs>& all) {
  for (size_t k = 0; k < all.size(); k += Arrays::kMax) {
    sum_some(stream, all.subspan(k, std::min<size_t>(Arrays::kMax, all.size() - k)));
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
