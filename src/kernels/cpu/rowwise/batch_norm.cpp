// Batch normalisation. Sums over pixels are in double: they cost no time beside the memory traffic,
// and the variance is then exact enough to be a difference. At most kParts blocks of rows sum;
// their number depends on the rows alone, and their sums are added in order.
#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kParts = 32;
constexpr int64_t kPartRows = 16;  ///< minimum rows of a block
constexpr int64_t kColumns = 512;  ///< channels at a time

float rstd_of(float variance) { return 1.0F / __builtin_sqrtf(variance + kNormEpsilon); }

/// Calls body(row, sums) for all rows, where `sums` are double [2, cols], and returns the totals.
/// Null on a dry arena.
template <class Body>
double* sum_rows(Stream& stream, int64_t rows, int64_t cols, const Body& body) {
  const int64_t together = most(kPartRows, divide_up(rows, kParts));
  const int64_t parts = divide_up(rows, together);
  const size_t bytes = static_cast<size_t>(2 * cols) * sizeof(double);
  auto* const shares = reinterpret_cast<double*>(
      cpu::workspace(stream, static_cast<size_t>(most(1, parts)) * bytes));
  if (cpu::is_dry(stream)) {
    return nullptr;
  }
  for_blocks(stream.threads(), parts, rows * cols, [&](int64_t part) {
    double* const sums = shares + part * 2 * cols;
    std::memset(sums, 0, bytes);
    const int64_t end = least(rows, (part + 1) * together);
    for (int64_t row = part * together; row < end; ++row) {
      body(row, sums);
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    const double* const sums = shares + part * 2 * cols;
#pragma omp simd
    for (int64_t c = 0; c < 2 * cols; ++c) {
      shares[c] += sums[c];
    }
  }
  return shares;
}

template <class T>
void normalise_row(const BatchNormArgs& args, int64_t row, const float* rstd, int64_t first,
                   int64_t n) {
  const T* const x = row_of<T>(args.x, row) + first;
  const T* const addend = args.addend ? row_of<T>(args.addend, row) + first : nullptr;
  const float* const mean = elements<float>(args.mean) + first;
  const float* const weight = elements<float>(args.weight) + first;
  const float* const bias = elements<float>(args.bias) + first;
  T* const y = row_of<T>(args.y, row) + first;
  const float floor = args.rectify ? 0.0F : -__builtin_inff();
  const auto value = [&](int64_t c) {
    return rules::norm_value<true>(load(x + c), mean[c], rstd[c], weight[c], bias[c]);
  };
  if (addend == nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const float v = value(c);
      store(y + c, v < floor ? floor : v);  // NaN stays
    }
    return;
  }
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    const float v = value(c) + load(addend + c);
    store(y + c, v < floor ? floor : v);
  }
}

/// total (+)= sums
void add_to(const Tensor& total, const float* sums, bool accumulate) {
  with_type(total.dtype, [&]<class T>(T) {
    T* const out = elements<T>(total);
    for (int64_t c = 0; c < total.count(); ++c) {
      store(out + c, (accumulate ? load(out + c) : 0.0F) + sums[c]);
    }
  });
}

template <class T>
void sum_row(const BatchNormSumsArgs& args, int64_t row, double* sums) {
  const int64_t cols = args.x.cols();
  const T* const x = row_of<T>(args.x, row);
  const float* const mean = elements<float>(args.mean);
  T* const dy = row_of<T>(args.dy, row);
  if (args.y) {
    const T* const y = row_of<T>(args.y, row);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      store(dy + c, load(y + c) <= 0.0F ? 0.0F : load(dy + c));
    }
  }
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float g = load(dy + c);
    sums[c] += static_cast<double>(g);
    sums[cols + c] += static_cast<double>(g) * static_cast<double>(load(x + c) - mean[c]);
  }
}

/// Calls body(row, rstd, first, n) for ranges of channels of all rows; rstd belongs to channel
/// `first`.
template <class Body>
void for_normalised(Stream& stream, const Tensor& x, const Tensor& variance, const Body& body) {
  for (int64_t first = 0; first < x.cols(); first += kColumns) {
    const int64_t n = least(kColumns, x.cols() - first);
    float rstd[kColumns];
    for (int64_t c = 0; c < n; ++c) {
      rstd[c] = rstd_of(elements<float>(variance)[first + c]);
    }
    for_rows(stream.threads(), x.rows(), n,
             [&](int64_t row) { body(row, static_cast<const float*>(rstd), first, n); });
  }
}

}  // namespace

void batch_norm_statistics(Stream& stream, const BatchNormStatisticsArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  double* sums = nullptr;
  with_type(args.x.dtype, [&]<class T>(T) {
    sums = sum_rows(stream, rows, cols, [&](int64_t row, double* share) {
      const T* const x = row_of<T>(args.x, row);
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) {
        const auto value = static_cast<double>(load(x + c));
        share[c] += value;
        share[cols + c] += value * value;
      }
    });
  });
  if (sums == nullptr) {
    return;
  }
  const double share = 1.0 / static_cast<double>(rows);
  for (int64_t c = 0; c < cols; ++c) {
    const double mean = sums[c] * share;
    const double variance = sums[cols + c] * share - mean * mean;
    elements<float>(args.mean)[c] = static_cast<float>(mean);
    elements<float>(args.variance)[c] = variance < 0 ? 0.0F : static_cast<float>(variance);
  }
}

void batch_norm(Stream& stream, const BatchNormArgs& args) {
  with_type(args.x.dtype, [&]<class T>(T) {
    for_normalised(stream, args.x, args.variance,
                   [&](int64_t row, const float* rstd, int64_t first, int64_t n) {
                     normalise_row<T>(args, row, rstd, first, n);
                   });
  });
}

void batch_norm_sums(Stream& stream, const BatchNormSumsArgs& args) {
  const int64_t cols = args.x.cols();
  double* totals = nullptr;
  with_type(args.x.dtype, [&]<class T>(T) {
    totals = sum_rows(stream, args.x.rows(), cols,
                      [&](int64_t row, double* share) { sum_row<T>(args, row, share); });
  });
  if (totals == nullptr) {
    return;
  }
  auto* const sums = elements<float>(args.sums);
  for (int64_t c = 0; c < cols; ++c) {
    const auto rstd = static_cast<double>(rstd_of(elements<float>(args.variance)[c]));
    sums[c] = static_cast<float>(totals[c]);
    sums[cols + c] = static_cast<float>(totals[cols + c] * rstd);
  }
  add_to(args.dbias, sums, args.accumulate);
  add_to(args.dweight, sums + cols, args.accumulate);
}

void batch_norm_backward(Stream& stream, const BatchNormBackwardArgs& args) {
  const int64_t cols = args.x.cols();
  const float share = 1.0F / static_cast<float>(args.count);
  with_type(args.x.dtype, [&]<class T>(T) {
    for_normalised(
        stream, args.x, args.variance,
        [&](int64_t row, const float* rstd, int64_t first, int64_t n) {
          const T* const g = row_of<T>(args.g, row) + first;
          const T* const x = row_of<T>(args.x, row) + first;
          const float* const mean = elements<float>(args.mean) + first;
          const float* const weight = elements<float>(args.weight) + first;
          const float* const sums = elements<float>(args.sums) + first;
          T* const dx = row_of<T>(args.dx, row) + first;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) {
            const float scale = weight[c] * share;
            store(dx + c, rules::norm_gradient(load(g + c), weight[c],
                                               rules::normalised(load(x + c), mean[c], rstd[c]),
                                               rstd[c], sums[c] * scale, sums[cols + c] * scale));
          }
        });
  });
}

void batch_norm_average(Stream& /*stream*/, const BatchNormAverageArgs& args) {
  const auto count = static_cast<float>(args.count);
  const float unbiased = count / (count - 1);
  const auto set = [&](const Tensor& average, const Tensor& batch, float scale,
                       const Tensor& gradient) {
    const auto* const of_steps = elements<float>(average);
    const auto* const of_batch = elements<float>(batch);
    with_type(gradient.dtype, [&]<class T>(T) {
      T* const out = elements<T>(gradient);
      for (int64_t c = 0; c < gradient.count(); ++c) {
        const float difference = args.share * (of_steps[c] - scale * of_batch[c]);
        store(out + c, (args.accumulate ? load(out + c) : 0.0F) + difference);
      }
    });
  };
  set(args.average_mean, args.mean, 1, args.dmean);
  set(args.average_variance, args.variance, unbiased, args.dvariance);
}

}  // namespace espalier::kernels::ESPALIER_ISA
