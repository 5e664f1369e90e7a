// LayerNorm by row. The backward pass reads each row once from memory: sums, dx, and the row's share
// of dweight and dbias while it is in L1; the shares are summed by at most kParts blocks of rows, whose
// number depends on the rows alone, and the blocks are combined in order.
#include <cstring>

#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr int64_t kParts = 32;
constexpr int64_t kPartRows = 16;  ///< at least so many rows in a block

template <class T, class W>
void forward_row(const LayerNormArgs& args, int64_t row) {
  const int64_t cols = args.x.cols();
  const float* x = row_of<float>(args.x, row);
  const W* weight = elements<W>(args.weight);
  const W* bias = elements<W>(args.bias);
  T* y = row_of<T>(args.y, row);
  const float sum = sum_of(cols, [&](int64_t c) { return x[c]; });
  const float mean = sum / static_cast<float>(cols);
  const float squares = sum_of(cols, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
  const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(cols) + kEpsilon);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    store(y + c, (x[c] - mean) * rstd * load(weight + c) + load(bias + c));
  }
  elements<float>(args.mean)[row] = mean;
  elements<float>(args.rstd)[row] = rstd;
}

/// dx of one row; its share of dweight and dbias is added to `share` [2, C].
template <class T, class W>
void backward_row(const LayerNormBackwardArgs& args, int64_t row, float* __restrict share) {
  const int64_t cols = args.x.cols();
  const T* dy = row_of<T>(args.dy, row);
  const float* x = row_of<float>(args.x, row);
  const W* weight = elements<W>(args.weight);
  float* dx = row_of<float>(args.dx, row);
  const float mean = elements<float>(args.mean)[row];
  const float rstd = elements<float>(args.rstd)[row];
  float sum = 0;
  float projection = 0;
#pragma omp simd reduction(+ : sum, projection)
  for (int64_t c = 0; c < cols; ++c) {
    const float g = load(dy + c) * load(weight + c);
    sum += g;
    projection += g * ((x[c] - mean) * rstd);
  }
  const float centre = sum / static_cast<float>(cols);
  const float slope = projection / static_cast<float>(cols);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float d = load(dy + c);
    const float normalised = (x[c] - mean) * rstd;
    dx[c] += rstd * (d * load(weight + c) - centre - normalised * slope);
    share[c] += d * normalised;
    share[cols + c] += d;
  }
}

/// out (+)= sum over parts of shares[part * stride + c]
void combine(const float* shares, int64_t parts, int64_t stride, const Tensor& out, bool accumulate) {
  float* total = elements<float>(out);
  const int64_t cols = out.count();
  if (!accumulate) {
    std::memset(total, 0, out.bytes());
  }
  for (int64_t part = 0; part < parts; ++part) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      total[c] += shares[part * stride + c];
    }
  }
}

}  // namespace

void layernorm(Stream& stream, const LayerNormArgs& args) {
  verify(args);
  with_type(args.y.dtype, [&](auto type) {
    with_type(args.weight.dtype, [&](auto weight) {
      for_rows(stream.threads(), args.x.rows(), args.x.cols(), [&](int64_t row) {
        forward_row<decltype(type), decltype(weight)>(args, row);
      });
    });
  });
}

void layernorm_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  verify(args);
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const int64_t together = most(kPartRows, divide_up(rows, kParts));
  const int64_t parts = divide_up(rows, together);
  const size_t bytes = static_cast<size_t>(most(1, parts * 2 * cols)) * sizeof(float);
  auto* shares = reinterpret_cast<float*>(cpu::workspace(stream, bytes));
  with_type(args.dy.dtype, [&](auto type) {
    with_type(args.weight.dtype, [&](auto weight) {
      for_blocks(stream.threads(), parts, rows * cols, [&](int64_t part) {
        float* share = shares + part * 2 * cols;
        std::memset(share, 0, static_cast<size_t>(2 * cols) * sizeof(float));
        const int64_t end = least(rows, (part + 1) * together);
        for (int64_t row = part * together; row < end; ++row) {
          backward_row<decltype(type), decltype(weight)>(args, row, share);
        }
      });
    });
  });
  combine(shares, parts, 2 * cols, args.dweight, args.accumulate);
  combine(shares + cols, parts, 2 * cols, args.dbias, args.accumulate);
}

}  // namespace espalier::kernels::ESPALIER_ISA
