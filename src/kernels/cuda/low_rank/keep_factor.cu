// Two kernels. The first classifies each row of p and q, one row per block, and writes the class to
// the workspace. In the second each block computes the worst class of all rows and does its part of
// the resulting update.
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxBlocks = 1024;  // of the second kernel; enough for a large device

/// Class of a row, by its worst value.
enum Row : int { kZeros, kNumbers, kNotFinite };

struct Factors {
  const float *p, *q;
  float *factor, *error;
  Elements gradient;
  int* found;  ///< classes of the rows of p, followed by those of q
  int64_t rank, rows, cols;
  uint64_t key;
};

__global__ void __launch_bounds__(kThreads) look_at_rows(Factors f) {
  const bool of_p = blockIdx.x < f.rank;
  const int64_t width = of_p ? f.rows : f.cols;
  const float* const row = of_p ? f.p + blockIdx.x * width : f.q + (blockIdx.x - f.rank) * width;
  int worst = kZeros;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = row[i];
    const int here = x - x != 0 ? kNotFinite : x != 0 ? kNumbers : kZeros;
    worst = here > worst ? here : worst;
  }
  worst = block_max(worst, int{kZeros});
  if (threadIdx.x == 0) {
    f.found[blockIdx.x] = worst;
  }
}

/// Row k of the factor at columns i … i + count - 1: that of q, or new random values if row k of p
/// is zero.
__device__ __forceinline__ Quad kept_quad(const Factors& f, int64_t k, int64_t i, int64_t count) {
  if (f.found[k] != kZeros) {
    return load_quad(f.q + k * f.cols, i, count);
  }
  const Words words = philox_words(f.key, static_cast<uint64_t>(i) / 4, static_cast<uint64_t>(k));
  Quad drawn;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    drawn.x[j] = 2 * (static_cast<float>(words.word[j] >> 8) * 0x1p-24F) - 1;
  }
  return drawn;
}

__global__ void __launch_bounds__(kThreads) keep_or_forget(Factors f) {
  int worst = kZeros;
  for (int64_t k = threadIdx.x; k < 2 * f.rank; k += kThreads) {
    worst = f.found[k] > worst ? f.found[k] : worst;
  }
  worst = block_max(worst, int{kZeros});
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  if (worst == kNotFinite) {
    const float nan = __uint_as_float(0x7fc00000U);
    const int64_t n = f.rows * f.cols;
    for (int64_t i = 4 * first; i < n; i += 4 * step) {
      store_quad(f.error, i, n - i, Quad{});
      store_quad(f.gradient, i, n - i, Quad{{nan, nan, nan, nan}});
    }
    return;
  }
  const int64_t quads = (f.cols + 3) / 4;  // quads per row
  for (int64_t at = first; at < f.rank * quads; at += step) {
    const int64_t k = quotient(at, quads);
    const int64_t i = 4 * (at - k * quads);
    store_quad(f.factor + k * f.cols, i, f.cols - i, kept_quad(f, k, i, f.cols - i));
  }
}

}  // namespace

void keep_factor(Stream& stream, const KeepFactorArgs& args) {
  const int64_t rank = args.factor.rows();
  const auto rows_of_both = static_cast<size_t>(2 * rank);
  const Factors factors{
      .p = static_cast<const float*>(args.p.data),
      .q = static_cast<const float*>(args.q.data),
      .factor = static_cast<float*>(args.factor.data),
      .error = static_cast<float*>(args.error.data),
      .gradient = elements(args.gradient),
      .found = reinterpret_cast<int*>(stream.workspace((rows_of_both + 1) * sizeof(int))),
      .rank = rank,
      .rows = args.p.cols(),
      .cols = args.factor.cols(),
      .key = args.key};
  launch(look_at_rows, {.name = "keep_factor", .grid = blocks_for(2 * rank, 1), .block = kThreads},
         stream, factors);
  const int64_t most_elements =
      args.factor.count() > args.gradient.count() ? args.factor.count() : args.gradient.count();
  const unsigned blocks = blocks_for(most_elements, 4 * kThreads);
  launch(
      keep_or_forget,
      {.name = "keep_factor", .grid = blocks < kMaxBlocks ? blocks : kMaxBlocks, .block = kThreads},
      stream, factors);
}

}  // namespace espalier::kernels::ESPALIER_GPU
