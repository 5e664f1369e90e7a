#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
void sum(Stream& stream, const OrderedSumArgs& args) {
  const auto row = [&](int64_t r) {
    return r == args.mine ? elements<T>(args.y) : row_of<T>(args.x, r);
  };
  for_ranges(stream.threads(), args.y.count(), kBlock, [&](int64_t first, int64_t n) {
    float sums[kBlock];  // y holds row `mine`, which may be read last
    const T* x = row(0) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      sums[i] = load(x + i);
    }
    for (int64_t r = 1; r < args.x.rows(); ++r) {
      const T* next = row(r) + first;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        sums[i] += load(next + i);
      }
    }
    T* y = elements<T>(args.y) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      store(y + i, sums[i]);
    }
  });
}

}  // namespace

void ordered_sum(Stream& stream, const OrderedSumArgs& args) {
  with_type(args.y.dtype, [&](auto type) { sum<decltype(type)>(stream, args); });
}

}  // namespace espalier::kernels::ESPALIER_ISA
