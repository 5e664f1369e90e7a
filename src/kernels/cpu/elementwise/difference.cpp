#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {

void difference(Stream& stream, const DifferenceArgs& args) {
  const float* a = elements<float>(args.a);
  const float* b = elements<float>(args.b);
  float* y = elements<float>(args.y);
  const float factor = args.factor ? *elements<float>(args.factor) : 1;
  const bool applies = factor - factor == 0;
  for_ranges(stream.threads(), args.y.count(), kBlock, [&](int64_t first, int64_t n) {
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) {
      const float d = a[i] - b[i];
      y[i] = applies && (!args.finite || d - d == 0) ? d : 0;
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
