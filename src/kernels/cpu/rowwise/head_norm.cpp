// RMSNorm of each head. A piece is the columns of one head in one row. Each step runs for kRowGroup
// pieces before the next step, so that they hide each other's latency.
#include <cstring>

#include "src/kernels/cpu/rowwise/shares.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/simd/vector.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Sum of term(i, n) over vectors of n <= kLanes elements from i on; in an order that depends on
/// the width alone.
template <class Term>
[[gnu::always_inline]] inline float sum_of(int64_t width, const Term& term) {
  Vector a{};
  Vector b{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    a += term(i, int64_t{kLanes});
    b += term(i + kLanes, int64_t{kLanes});
  }
  for (; i < width; i += kLanes) {
    a += term(i, least(kLanes, width - i));
  }
  return sum_of_lanes(a + b);
}

template <class T, class W>
void forward_heads(const HeadNormArgs& args, int64_t row, int64_t head, int64_t n) {
  const int64_t width = args.weight.count();
  const T* x = row_of<T>(args.x, row) + head * width;
  T* y = row_of<T>(args.y, row) + head * width;
  float* rstd = elements<float>(args.rstd) + row * args.heads + head;
  const W* weight = elements<W>(args.weight);
  for (int64_t j = 0; j < n; ++j) {
    const float squares = sum_of(width, [of = x + j * width](int64_t i, int64_t count) {
      const Vector v = read_vector(of + i, count);
      return v * v;
    });
    rstd[j] = 1.0F / __builtin_sqrtf(squares / static_cast<float>(width) + args.epsilon);
  }
  for (int64_t j = 0; j < n; ++j) {
    const float factor = rstd[j];
    const int64_t first = j * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      store(y + first + c,
            rules::norm_value<false>(load(x + first + c), 0.0F, factor, load(weight + c), 0.0F));
    }
  }
}

/// Adds to `share` [D].
template <class T, class W>
void backward_heads(const HeadNormBackwardArgs& args, int64_t row, int64_t head, int64_t n,
                    float* __restrict share) {
  const int64_t width = args.weight.count();
  const T* dy = row_of<T>(args.dy, row) + head * width;
  const T* x = row_of<T>(args.x, row) + head * width;
  T* dx = row_of<T>(args.dx, row) + head * width;
  const float* rstd = elements<float>(args.rstd) + row * args.heads + head;
  const W* weight = elements<W>(args.weight);
  float slopes[kRowGroup];
  for (int64_t j = 0; j < n; ++j) {
    const int64_t first = j * width;
    const float sum = sum_of(width, [&](int64_t i, int64_t count) {
      return read_vector(dy + first + i, count) * read_vector(weight + i, count) *
             read_vector(x + first + i, count);
    });
    slopes[j] = sum * rstd[j] / static_cast<float>(width);
  }
  for (int64_t j = 0; j < n; ++j) {
    const int64_t first = j * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float d = load(dy + first + c);
      const float normalised = rules::normalised(load(x + first + c), 0.0F, rstd[j]);
      share[c] += d * normalised;
      store(dx + first + c,
            rules::norm_gradient(d, load(weight + c), normalised, rstd[j], 0.0F, slopes[j]));
    }
  }
}

template <class Body>
[[gnu::always_inline]] inline void for_head_groups(int64_t heads, const Body& body) {
  for (int64_t head = 0; head < heads; head += kRowGroup) {
    body(head, least(kRowGroup, heads - head));
  }
}

}  // namespace

void head_norm(Stream& stream, const HeadNormArgs& args) {
  with_type(args.x.dtype, [&](auto type) {
    with_type_beside<decltype(type)>(args.weight.dtype, [&](auto weight) {
      for_rows(stream.threads(), args.x.rows(), args.x.cols(), [&](int64_t row) {
        for_head_groups(args.heads, [&](int64_t head, int64_t n) {
          forward_heads<decltype(type), decltype(weight)>(args, row, head, n);
        });
      });
    });
  });
}

void head_norm_backward(Stream& stream, const HeadNormBackwardArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t width = args.weight.count();
  const int64_t together = rows_of_part(rows);
  const int64_t parts = divide_up(rows, together);
  const size_t bytes = static_cast<size_t>(most(1, parts * width)) * sizeof(float);
  auto* shares = reinterpret_cast<float*>(cpu::workspace(stream, bytes));
  if (cpu::is_dry(stream)) {
    return;
  }
  with_type(args.x.dtype, [&](auto type) {
    with_type_beside<decltype(type)>(args.weight.dtype, [&](auto weight) {
      for_blocks(stream.threads(), parts, args.x.count(), [&](int64_t part) {
        float* share = shares + part * width;
        std::memset(share, 0, static_cast<size_t>(width) * sizeof(float));
        const int64_t end = least(rows, (part + 1) * together);
        for (int64_t row = part * together; row < end; ++row) {
          for_head_groups(args.heads, [&](int64_t head, int64_t n) {
            backward_heads<decltype(type), decltype(weight)>(args, row, head, n, share);
          });
        }
      });
    });
  });
  combine_shares(shares, parts, width, args.dweight, args.accumulate);
}

}  // namespace espalier::kernels::ESPALIER_ISA
