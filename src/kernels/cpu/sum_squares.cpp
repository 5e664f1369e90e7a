// Sums of squares in double by blocks of kSumBlock elements.
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
double block_sum(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double value = load(x + i);
    sum += value * value;
  }
  return sum;
}

}  // namespace

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  static_assert(kBlock % kSumBlock == 0);
  verify(args);
  with_type(args.x.dtype, [&](auto type) {
    const auto* x = elements<decltype(type)>(args.x);
    for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
      for (const int64_t end = first + n; first < end; first += kSumBlock) {
        args.sums[first / kSumBlock] = block_sum(x + first, least(kSumBlock, end - first));
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
