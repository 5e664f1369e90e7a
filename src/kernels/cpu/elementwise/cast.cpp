#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class From, class To>
void convert(Stream& stream, const CastArgs& args) {
  const From* x = elements<From>(args.x);
  To* y = elements<To>(args.y);
  for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
    if (args.accumulate) {
#pragma omp simd
      for (int64_t i = first; i < first + n; ++i) {
        store(y + i, load(y + i) + load(x + i));
      }
    } else {
#pragma omp simd
      for (int64_t i = first; i < first + n; ++i) {
        store(y + i, load(x + i));
      }
    }
  });
}

}  // namespace

void cast(Stream& stream, const CastArgs& args) {
  with_type(args.x.dtype, [&](auto from) {
    with_type_beside<decltype(from)>(
        args.y.dtype, [&](auto to) { convert<decltype(from), decltype(to)>(stream, args); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
