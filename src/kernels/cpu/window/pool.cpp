#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/window/covering.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kColumns = 256;  ///< channels at a time

/// Calls body(input pixel, place) for the pixels of a window that are in the image.
template <class Body>
[[gnu::always_inline]] inline void for_covered(const Window& window, int64_t number,
                                               const Body& body) {
  const OutPixel out(window, number);
  for (int64_t i = 0; i < window.extent; ++i) {
    const int64_t row = out.row * window.stride - window.padding + i;
    for (int64_t j = 0; j < window.extent; ++j) {
      const int64_t column = out.column * window.stride - window.padding + j;
      if (row >= 0 && row < window.height && column >= 0 && column < window.width) {
        body(out.image * window.pixels() + row * window.width + column, i * window.extent + j);
      }
    }
  }
}

/// Channels [first, first + n) of output pixel `row`.
template <class T>
void largest(const PoolArgs& args, int64_t row, int64_t first, int64_t n) {
  float best[kColumns];
  uint8_t from[kColumns];
  for (int64_t c = 0; c < n; ++c) {
    best[c] = -__builtin_inff();
    from[c] = 0;
  }
  bool begun = false;
  for_covered(args.window, row, [&](int64_t pixel, int64_t place) {
    const T* const x = row_of<T>(args.x, pixel) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const float value = load(x + c);
      const bool take = !begun || value > best[c] || value != value;
      best[c] = take ? value : best[c];
      from[c] = take ? static_cast<uint8_t>(place) : from[c];
    }
    begun = true;
  });
  T* const y = row_of<T>(args.y, row) + first;
  uint8_t* const places = row_of<uint8_t>(args.from, row) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(y + c, best[c]);
    places[c] = from[c];
  }
}

template <class T>
void mean(const PoolArgs& args, int64_t row, int64_t first, int64_t n) {
  float sum[kColumns] = {};
  for_covered(args.window, row, [&](int64_t pixel, int64_t) {
    const T* const x = row_of<T>(args.x, pixel) + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      sum[c] += load(x + c);
    }
  });
  const float share = 1.0F / static_cast<float>(args.window.area());
  T* const y = row_of<T>(args.y, row) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(y + c, sum[c] * share);
  }
}

/// Channels [first, first + n) of input pixel `pixel`.
template <class T>
void gradient(const PoolBackwardArgs& args, int64_t pixel, int64_t first, int64_t n) {
  float sum[kColumns] = {};
  const float share = 1.0F / static_cast<float>(args.window.area());
  for_covering(args.window, pixel, [&](int64_t out, int64_t place) {
    const T* const dy = row_of<T>(args.dy, out) + first;
    if (args.kind == Pool::mean) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sum[c] += load(dy + c) * share;
      }
      return;
    }
    const uint8_t* const from = row_of<uint8_t>(args.from, out) + first;
    const auto here = static_cast<uint8_t>(place);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      sum[c] += from[c] == here ? load(dy + c) : 0.0F;
    }
  });
  T* const dx = row_of<T>(args.dx, pixel) + first;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    store(dx + c, sum[c]);
  }
}

/// Calls body(row, first, n) for ranges of columns of all rows.
template <class Body>
void for_columns(Stream& stream, const Tensor& matrix, int64_t work, const Body& body) {
  for_rows(stream.threads(), matrix.rows(), matrix.cols() * work, [&](int64_t row) {
    for (int64_t first = 0; first < matrix.cols(); first += kColumns) {
      body(row, first, least(kColumns, matrix.cols() - first));
    }
  });
}

}  // namespace

void pool(Stream& stream, const PoolArgs& args) {
  with_type(args.x.dtype, [&]<class T>(T) {
    for_columns(stream, args.y, args.window.area(), [&](int64_t row, int64_t first, int64_t n) {
      args.kind == Pool::max ? largest<T>(args, row, first, n) : mean<T>(args, row, first, n);
    });
  });
}

void pool_backward(Stream& stream, const PoolBackwardArgs& args) {
  with_type(args.dy.dtype, [&]<class T>(T) {
    for_columns(stream, args.dx, args.window.area(), [&](int64_t pixel, int64_t first, int64_t n) {
      gradient<T>(args, pixel, first, n);
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
