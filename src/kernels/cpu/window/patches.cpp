#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/window/covering.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Copies the pixels of one row of a window, `bytes` each; they are side by side if `whole`.
struct Line {
  const std::byte* image_row;
  int64_t pixel_stride;  ///< bytes
  int64_t bytes;
  bool whole;

  void copy(const Window& window, int64_t left, std::byte* to) const {
    if (whole && left >= 0 && left + window.extent <= window.width) {
      std::memcpy(to, image_row + left * bytes, static_cast<size_t>(window.extent * bytes));
      return;
    }
    for (int64_t j = 0; j < window.extent; ++j) {
      const int64_t column = left + j;
      if (column >= 0 && column < window.width) {
        std::memcpy(to + j * bytes, image_row + column * pixel_stride, static_cast<size_t>(bytes));
      } else {
        std::memset(to + j * bytes, 0, static_cast<size_t>(bytes));
      }
    }
  }
};

}  // namespace

void patches(Stream& stream, const PatchesArgs& args) {
  const Window& window = args.window;
  const auto each = args.x.dtype == DType::fp32 ? int64_t{4} : int64_t{2};
  const int64_t bytes = args.x.cols() * each;
  const int64_t pixel_stride = args.x.stride * each;
  const auto* const images = static_cast<const std::byte*>(args.x.data);
  auto* const patches = static_cast<std::byte*>(args.patches.data);
  const int64_t line = window.extent * bytes;
  for_rows(stream.threads(), args.patches.rows(), args.patches.cols(), [&](int64_t row) {
    const OutPixel out(window, args.first + row);
    for (int64_t i = 0; i < window.extent; ++i) {
      const int64_t from = out.row * window.stride - window.padding + i;
      std::byte* const to = patches + (row * window.extent + i) * line;
      if (from < 0 || from >= window.height) {
        std::memset(to, 0, static_cast<size_t>(line));
        continue;
      }
      const int64_t pixel = out.image * window.pixels() + from * window.width;
      const Line one{.image_row = images + pixel * pixel_stride,
                     .pixel_stride = pixel_stride,
                     .bytes = bytes,
                     .whole = pixel_stride == bytes};
      one.copy(window, out.column * window.stride - window.padding, to);
    }
  });
}

void patch_sum(Stream& stream, const PatchSumArgs& args) {
  const Window& window = args.window;
  const int64_t n = args.patches.rows();
  if (n == 0) {
    return;
  }
  const int64_t begin = args.first / window.out_pixels() * window.pixels();
  const int64_t end = divide_up(args.first + n, window.out_pixels()) * window.pixels();
  const int64_t cols = args.sum.cols();
  with_type(args.patches.dtype, [&]<class T>(T) {
    for_rows(stream.threads(), end - begin, cols * window.area(), [&](int64_t i) {
      const int64_t pixel = begin + i;
      auto* const sum = row_of<float>(args.sum, pixel);
      for_covering(window, pixel, [&](int64_t out, int64_t place) {
        if (out < args.first || out >= args.first + n) {
          return;
        }
        const T* const patch = row_of<T>(args.patches, out - args.first) + place * cols;
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          sum[c] += load(patch + c);
        }
      });
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
