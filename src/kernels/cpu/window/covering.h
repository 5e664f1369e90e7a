#pragma once
// Which windows and pixels belong together (operations/window.h).
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/operations/window.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Output pixel `number`, counted over all images.
struct OutPixel {
  int64_t image, row, column;
  [[gnu::always_inline]] OutPixel(const Window& window, int64_t number)
      : image(number / window.out_pixels()),
        row(number % window.out_pixels() / window.out_width()),
        column(number % window.out_width()) {}
};

/// Calls body(output pixel, place i extent + j) for each window that covers input pixel `number`,
/// in the order of places.
template <class Body>
[[gnu::always_inline]] inline void for_covering(const Window& window, int64_t number,
                                                const Body& body) {
  const int64_t out_height = window.out_height();
  const int64_t out_width = window.out_width();
  const int64_t image = number / window.pixels();
  const int64_t row = number % window.pixels() / window.width + window.padding;
  const int64_t column = number % window.width + window.padding;
  for (int64_t i = 0; i < window.extent && i <= row; ++i) {
    const int64_t r = (row - i) / window.stride;
    if (r * window.stride != row - i || r >= out_height) {
      continue;
    }
    for (int64_t j = 0; j < window.extent && j <= column; ++j) {
      const int64_t c = (column - j) / window.stride;
      if (c * window.stride == column - j && c < out_width) {
        body((image * out_height + r) * out_width + c, i * window.extent + j);
      }
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
