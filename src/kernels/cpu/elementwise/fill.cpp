#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
void fill_range(T* x, int64_t n, float value) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    store(x + i, value);
  }
}

}  // namespace

void fill(Stream& stream, const FillArgs& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.x.contiguous()) {
      for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
        fill_range(elements<T>(args.x) + first, n, args.value);
      });
    } else {
      for_rows(stream.threads(), args.x.rows(), args.x.cols(),
               [&](int64_t row) { fill_range(row_of<T>(args.x, row), args.x.cols(), args.value); });
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
