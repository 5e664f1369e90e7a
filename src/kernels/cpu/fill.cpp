#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {

void fill(Stream& stream, const FillArgs& args) {
  verify(args);
  const int64_t cols = args.x.cols();
  with_type(args.x.dtype, [&](auto type) {
    for_rows(stream.threads(), args.x.rows(), cols, [&](int64_t row) {
      auto* x = row_of<decltype(type)>(args.x, row);
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) {
        store(x + c, args.value);
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
