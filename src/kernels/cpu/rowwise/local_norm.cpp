// Local response normalisation, in ranges of channels with their neighbours on both sides.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kColumns = 256;  ///< channels at a time
constexpr int64_t kReach = LocalNorm::kLargest - 1;
constexpr int64_t kWidth = kColumns + 2 * kReach;

/// Channels [first, first + n) of a row as fp32, zeros outside of the row.
template <class T>
void read(const Tensor& of, int64_t row, int64_t first, int64_t n, float* to) {
  const T* const from = row_of<T>(of, row);
  const int64_t before = most(0, least(n, -first));
  const int64_t end = most(before, least(n, of.cols() - first));
  for (int64_t c = 0; c < before; ++c) {
    to[c] = 0;
  }
#pragma omp simd
  for (int64_t c = before; c < end; ++c) {
    to[c] = load(from + first + c);
  }
  for (int64_t c = end; c < n; ++c) {
    to[c] = 0;
  }
}

/// sums[c] = sum of x[c … c + extent - 1], for c in [0, n).
void sum_neighbours(const float* x, int64_t extent, int64_t n, float* sums) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    sums[c] = x[c];
  }
  for (int64_t j = 1; j < extent; ++j) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      sums[c] += x[c + j];
    }
  }
}

/// scale[c] of n channels; x begins half an extent before the first one.
void scales(const LocalNorm& norm, const float* x, int64_t n, float* scale) {
  float squares[kWidth];
#pragma omp simd
  for (int64_t c = 0; c < n + norm.extent - 1; ++c) {
    squares[c] = x[c] * x[c];
  }
  sum_neighbours(squares, norm.extent, n, scale);
  const float share = norm.share();
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    scale[c] = norm.k + share * scale[c];
  }
}

/// scale^(-3/4)
[[gnu::always_inline]] inline float factor(float scale) {
  const float root = __builtin_sqrtf(scale);
  return 1.0F / (root * __builtin_sqrtf(root));
}

/// Channels [first, first + n).
template <class T>
void normalise(const LocalNormArgs& args, int64_t row, int64_t first, int64_t n) {
  const int64_t half = args.norm.half();
  float x[kWidth];
  float scale[kWidth];
  read<T>(args.x, row, first - half, n + 2 * half, x);
  scales(args.norm, x, n, scale);
  T* const y = row_of<T>(args.y, row) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(y + c, x[c + half] * factor(scale[c]));
  }
}

template <class T>
void gradient(const LocalNormBackwardArgs& args, int64_t row, int64_t first, int64_t n) {
  const int64_t half = args.norm.half();
  const int64_t near = n + 2 * half;
  float x[kWidth];   // from channel first - 2 half on
  float dy[kWidth];  // the others from channel first - half on
  float scale[kWidth];
  float terms[kWidth];
  float sums[kWidth];
  read<T>(args.x, row, first - 2 * half, n + 4 * half, x);
  read<T>(args.dy, row, first - half, near, dy);
  scales(args.norm, x, near, scale);
#pragma omp simd
  for (int64_t c = 0; c < near; ++c) {
    terms[c] = dy[c] * x[c + half] * factor(scale[c]) / scale[c];
  }
  sum_neighbours(terms, args.norm.extent, n, sums);
  const float share = 1.5F * args.norm.share();
  T* const dx = row_of<T>(args.dx, row) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, dy[c + half] * factor(scale[c + half]) - share * x[c + 2 * half] * sums[c]);
  }
}

/// Calls body(row, first, n) for ranges of channels of all rows.
template <class Body>
void for_parts(Stream& stream, const Tensor& x, const Body& body) {
  for_rows(stream.threads(), x.rows(), x.cols(), [&](int64_t row) {
    for (int64_t first = 0; first < x.cols(); first += kColumns) {
      body(row, first, least(kColumns, x.cols() - first));
    }
  });
}

}  // namespace

void local_norm_backward(Stream& stream, const LocalNormBackwardArgs& args) {
  with_type(args.x.dtype, [&]<class T>(T) {
    for_parts(stream, args.x,
              [&](int64_t row, int64_t first, int64_t n) { gradient<T>(args, row, first, n); });
  });
}

void local_norm(Stream& stream, const LocalNormArgs& args) {
  with_type(args.x.dtype, [&]<class T>(T) {
    for_parts(stream, args.x,
              [&](int64_t row, int64_t first, int64_t n) { normalise<T>(args, row, first, n); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
