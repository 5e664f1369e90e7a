// Each range of blocks is summed separately, on any thread, and added to the counts.
#include "src/core/exact_sum.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kRange = 16 * kBlock;

/// Sums in the order of SumSquaresArgs; a square is exact in double.
template <class T>
double block_sum(const T* x, int64_t n) {
  double sums[kSumColumns] = {};
  for (; n >= kSumColumns; x += kSumColumns, n -= kSumColumns) {
#pragma omp simd
    for (int64_t c = 0; c < kSumColumns; ++c) {
      const double value = load(x + c);
      sums[c] += value * value;
    }
  }
  for (int64_t c = 0; c < n; ++c) {
    const double value = load(x + c);
    sums[c] += value * value;
  }
  for (int64_t half = kSumColumns / 2; half > 0; half /= 2) {
    for (int64_t c = 0; c < half; ++c) {
      sums[c] += sums[c + half];
    }
  }
  return sums[0];
}

void sum(Stream& stream, const SumSquaresArgs& args) {
  static_assert(kRange % kSumBlock == 0);
  const std::span<uint64_t, ExactSum::kWords> counts(elements<uint64_t>(args.counts),
                                                     ExactSum::kWords);
  with_type(args.x.dtype, [&](auto type) {
    const auto* x = elements<decltype(type)>(args.x);
    for_ranges(stream.threads(), args.x.count(), kRange, [&](int64_t first, int64_t n) {
      ExactSum sum;
      for (const int64_t end = first + n; first < end; first += kSumBlock) {
        sum.add(block_sum(x + first, least(kSumBlock, end - first)));
      }
      sum.add_to(counts);
    });
  });
}

}  // namespace

void sum_squares(Stream& stream, const Each<SumSquaresArgs>& all) {
  for (const SumSquaresArgs& args : all) {
    sum(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
