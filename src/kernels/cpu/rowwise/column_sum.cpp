// out += rows of x. A thread owns columns. Eight rows are added pairwise before they are added to
// the sums: one pass over the sums serves eight rows, and rounding stays small. For a 16-bit `out`,
// the sums are in the workspace.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kColumns = 64;  ///< unit of columns per thread: whole cache lines

template <class T>
void add_rows(const Tensor& x, int64_t first, int64_t n, float* __restrict out) {
  const int64_t stride = x.stride;
  const int64_t rows = x.rows();
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    const T* p = row_of<T>(x, r) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const float a = load(p + c) + load(p + stride + c);
      const float b = load(p + 2 * stride + c) + load(p + 3 * stride + c);
      const float d = load(p + 4 * stride + c) + load(p + 5 * stride + c);
      const float e = load(p + 6 * stride + c) + load(p + 7 * stride + c);
      out[c] += (a + b) + (d + e);
    }
  }
  for (; r < rows; ++r) {
    const T* p = row_of<T>(x, r) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      out[c] += load(p + c);
    }
  }
}

/// Columns [first, first + n); `sums` may be out itself.
template <class X, class Y>
void sum_columns(const ColumnSumArgs& args, int64_t first, int64_t n, float* sums) {
  Y* out = elements<Y>(args.out) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    sums[c] = args.accumulate ? load(out + c) : 0.0F;
  }
  add_rows<X>(args.x, first, n, sums);
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(out + c, sums[c]);
  }
}

}  // namespace

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  const int64_t cols = args.x.cols();
  const int64_t work = cols * args.x.rows();
  const int64_t units = divide_up(cols, kColumns);
  const int64_t per_thread = divide_up(units, stream.threads()) * kColumns;
  auto* sums = args.out.dtype == DType::fp32
                   ? elements<float>(args.out)
                   : reinterpret_cast<float*>(cpu::workspace(
                         stream, static_cast<size_t>(most(1, cols)) * sizeof(float)));
  if (cpu::is_dry(stream)) {
    return;
  }
  with_type(args.x.dtype, [&](auto x) {
    with_type_beside<decltype(x)>(args.out.dtype, [&](auto out) {
      for_blocks(stream.threads(), divide_up(cols, per_thread), work, [&](int64_t i) {
        const int64_t first = i * per_thread;
        sum_columns<decltype(x), decltype(out)>(args, first, least(per_thread, cols - first),
                                                sums + first);
      });
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
