// LayerNorm by row, and RMSNorm, which is LayerNorm without mean and bias (not kCentred). The
// backward pass reads each row once from memory: sums, dx, and the row's share of dweight and dbias
// are computed while it is in L1.
#include <cstring>

#include "src/kernels/cpu/rowwise/shares.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <bool kCentred, class T, class W>
void write_row(const NormArgs& args, int64_t row, float mean, float rstd) {
  const int64_t cols = args.x.cols();
  const float* x = row_of<float>(args.x, row);
  const W* weight = elements<W>(args.weight);
  const W* bias = elements<W>(args.bias);
  T* y = row_of<T>(args.y, row);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float shift = kCentred ? load(bias + c) : 0.0F;
    store(y + c, rules::norm_value<kCentred>(x[c], mean, rstd, load(weight + c), shift));
  }
}

/// Rows [first, first + n): each step runs for all of them before the next step, see kRowGroup.
template <bool kCentred, class T, class W>
void forward_rows(const NormArgs& args, int64_t first, int64_t n) {
  const int64_t cols = args.x.cols();
  const auto width = static_cast<float>(cols);
  float* mean = kCentred ? elements<float>(args.mean) + first : nullptr;
  float* rstd = elements<float>(args.rstd) + first;
  for (int64_t i = 0; i < (kCentred ? n : 0); ++i) {
    mean[i] = sum_over(row_of<float>(args.x, first + i), cols, [](auto x) { return x; }) / width;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float centre = kCentred ? mean[i] : 0.0F;
    const float squares = sum_over(row_of<float>(args.x, first + i), cols, [centre](auto x) {
      const auto distance = x - centre;
      return distance * distance;
    });
    rstd[i] = 1.0F / __builtin_sqrtf(squares / width + args.epsilon);
  }
  for (int64_t i = 0; i < n; ++i) {
    write_row<kCentred, T, W>(args, first + i, kCentred ? mean[i] : 0.0F, rstd[i]);
  }
}

/// Means over a row of g = dy weight (`centre`) and of g times the normalised x (`slope`).
struct Projection {
  float centre, slope;
};

template <bool kCentred, class T, class W>
Projection project_row(const NormBackwardArgs& args, int64_t row) {
  const int64_t cols = args.x.cols();
  const T* dy = row_of<T>(args.dy, row);
  const float* x = row_of<float>(args.x, row);
  const W* weight = elements<W>(args.weight);
  const float mean = kCentred ? elements<float>(args.mean)[row] : 0.0F;
  const float rstd = elements<float>(args.rstd)[row];
  float sum = 0;
  float projection = 0;
#pragma omp simd reduction(+ : sum, projection)
  for (int64_t c = 0; c < cols; ++c) {
    const float g = load(dy + c) * load(weight + c);
    if constexpr (kCentred) {
      sum += g;
    }
    projection += g * rules::normalised(x[c], mean, rstd);
  }
  return {kCentred ? sum / static_cast<float>(cols) : 0.0F, projection / static_cast<float>(cols)};
}

/// dx of one row; its share of dweight and dbias is added to `share` [2, C] (RMSNorm: [1, C]).
template <bool kCentred, class T, class W>
void backward_row(const NormBackwardArgs& args, int64_t row, const Projection& mean_of,
                  float* __restrict share) {
  const int64_t cols = args.x.cols();
  const T* dy = row_of<T>(args.dy, row);
  const float* x = row_of<float>(args.x, row);
  const W* weight = elements<W>(args.weight);
  float* dx = row_of<float>(args.dx, row);
  const float mean = kCentred ? elements<float>(args.mean)[row] : 0.0F;
  const float rstd = elements<float>(args.rstd)[row];
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float d = load(dy + c);
    const float normalised = rules::normalised(x[c], mean, rstd);
    dx[c] +=
        rules::norm_gradient(d, load(weight + c), normalised, rstd, mean_of.centre, mean_of.slope);
    share[c] += d * normalised;
    if constexpr (kCentred) {
      share[cols + c] += d;
    }
  }
  if (args.rounded) {
    T* rounded = row_of<T>(args.rounded, row);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      store(rounded + c, dx[c]);
    }
  }
}

template <bool kCentred, class T, class W>
void backward_rows(const NormBackwardArgs& args, int64_t first, int64_t n, float* share) {
  Projection means[kRowGroup];
  for (int64_t i = 0; i < n; ++i) {
    means[i] = project_row<kCentred, T, W>(args, first + i);
  }
  for (int64_t i = 0; i < n; ++i) {
    backward_row<kCentred, T, W>(args, first + i, means[i], share);
  }
}

template <bool kCentred>
void forward(Stream& stream, const NormArgs& args) {
  with_type(args.y.dtype, [&](auto type) {
    with_type_beside<decltype(type)>(args.weight.dtype, [&](auto weight) {
      for_row_groups(stream.threads(), args.x.rows(), args.x.cols(), [&](int64_t first, int64_t n) {
        forward_rows<kCentred, decltype(type), decltype(weight)>(args, first, n);
      });
    });
  });
}

template <bool kCentred>
void backward(Stream& stream, const NormBackwardArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const int64_t together = rows_of_part(rows);
  const int64_t parts = divide_up(rows, together);
  const int64_t share_size = (kCentred ? 2 : 1) * cols;
  const size_t bytes = static_cast<size_t>(most(1, parts * share_size)) * sizeof(float);
  auto* shares = reinterpret_cast<float*>(cpu::workspace(stream, bytes));
  if (cpu::is_dry(stream)) {
    return;
  }
  with_type(args.dy.dtype, [&](auto type) {
    with_type_beside<decltype(type)>(args.weight.dtype, [&](auto weight) {
      for_blocks(stream.threads(), parts, rows * cols, [&](int64_t part) {
        float* share = shares + part * share_size;
        std::memset(share, 0, static_cast<size_t>(share_size) * sizeof(float));
        const int64_t end = least(rows, (part + 1) * together);
        for (int64_t first = part * together; first < end; first += kRowGroup) {
          backward_rows<kCentred, decltype(type), decltype(weight)>(
              args, first, least(kRowGroup, end - first), share);
        }
      });
    });
  });
  combine_shares(shares, parts, share_size, args.dweight, args.accumulate);
  if constexpr (kCentred) {
    combine_shares(shares + cols, parts, share_size, args.dbias, args.accumulate);
  }
}

}  // namespace

void norm(Stream& stream, const NormArgs& args) {
  args.bias ? forward<true>(stream, args) : forward<false>(stream, args);
}

void norm_backward(Stream& stream, const NormBackwardArgs& args) {
  args.dbias ? backward<true>(stream, args) : backward<false>(stream, args);
}

}  // namespace espalier::kernels::ESPALIER_ISA
