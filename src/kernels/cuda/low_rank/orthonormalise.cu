// One block processes all rows: they are few and depend on each other. A thread has the same
// columns of every row, so only sums need a barrier. The order of the sums depends on the width
// alone. Rows are kept in double until all are finished.
#include <cmath>

#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/low_rank.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Rows {
  float* x;
  double* exact;
  int64_t count, width;
};

__device__ __forceinline__ double dot(const double* a, const double* b, int64_t width) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    sum += a[i] * b[i];
  }
  return block_sum(sum);
}

__device__ __forceinline__ void subtract(double* from, double factor, const double* what,
                                         int64_t width) {
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    from[i] -= factor * what[i];
  }
}

__global__ void __launch_bounds__(1024) orthonormal_rows(Rows rows) {
  const int64_t width = rows.width;
  for (int64_t r = 0; r < rows.count; ++r) {
    float* const x = rows.x + r * width;
    double* const now = rows.exact + r * width;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      now[i] = x[i];
    }
    const double before = sqrt(dot(now, now, width));
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t other = 0; other < r; ++other) {
        const double* const done = rows.exact + other * width;
        subtract(now, dot(done, now, width), done, width);
      }
    }
    const double length = sqrt(dot(now, now, width));
    // Non-finite rows do not count as dependent: they stay non-finite, so that later checks detect
    // them.
    const bool dependent = length <= kDependent * before && before - before == 0;
    const double scale = 1 / length;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      now[i] = dependent ? 0.0 : now[i] * scale;
      x[i] = static_cast<float>(now[i]);
    }
  }
}

}  // namespace

void orthonormalise(Stream& stream, const OrthonormaliseArgs& args) {
  const int64_t width = args.x.cols();
  auto* exact = reinterpret_cast<double*>(
      stream.workspace(static_cast<size_t>(args.x.count() + 1) * sizeof(double)));
  launch(orthonormal_rows, {.name = "orthonormalise", .grid = 1, .block = threads_for_row(width)},
         stream, Rows{static_cast<float*>(args.x.data), exact, args.x.rows(), width});
}

}  // namespace espalier::kernels::ESPALIER_GPU
