#pragma once
// Which windows and pixels belong together (operations/window.h). A thread has four neighbouring
// channels of one pixel.
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/operations/window.h"

namespace espalier::kernels::ESPALIER_GPU {

/// A window with its derived extents, for device code.
struct Windows {
  int64_t height, width, extent, stride, padding, out_height, out_width;

  explicit Windows(const Window& window)
      : height(window.height),
        width(window.width),
        extent(window.extent),
        stride(window.stride),
        padding(window.padding),
        out_height(window.out_height()),
        out_width(window.out_width()) {}
};

/// Output pixel `number`, counted over all images; its window begins at (row, column).
struct OutPixel {
  int64_t image, row, column;
  __device__ __forceinline__ OutPixel(const Windows& w, int64_t number) {
    const int64_t line = quotient(number, w.out_width);
    image = quotient(line, w.out_height);
    row = (line - image * w.out_height) * w.stride - w.padding;
    column = (number - line * w.out_width) * w.stride - w.padding;
  }
};

/// Calls body(output pixel, place i extent + j) for each window that covers input pixel `number`,
/// in the order of places.
template <class Body>
__device__ __forceinline__ void for_covering(const Windows& w, int64_t number, const Body& body) {
  const int64_t line = quotient(number, w.width);
  const int64_t image = quotient(line, w.height);
  const int64_t row = line - image * w.height + w.padding;
  const int64_t column = number - line * w.width + w.padding;
  for (int64_t i = 0; i < w.extent && i <= row; ++i) {
    const int64_t r = quotient(row - i, w.stride);
    if (r * w.stride != row - i || r >= w.out_height) {
      continue;
    }
    for (int64_t j = 0; j < w.extent && j <= column; ++j) {
      const int64_t c = quotient(column - j, w.stride);
      if (c * w.stride == column - j && c < w.out_width) {
        body((image * w.out_height + r) * w.out_width + c, i * w.extent + j);
      }
    }
  }
}

/// Four neighbouring channels of a pixel: `count` of them exist.
struct Place {
  int64_t pixel, channel, count;
};

/// The place of this thread among `pixels` of `channels` each; count 0: none.
__device__ __forceinline__ Place place_of_thread(int64_t pixels, int64_t channels) {
  const int64_t quads = (channels + 3) / 4;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t pixel = quotient(number, quads);
  const int64_t channel = 4 * (number - pixel * quads);
  return {pixel, channel, pixel < pixels ? least(4, channels - channel) : 0};
}

inline Launch window_launch(const char* name, int64_t pixels, int64_t channels) {
  return {.name = name, .grid = blocks_for(pixels * divide_up(channels, 4), 256)};
}

}  // namespace espalier::kernels::ESPALIER_GPU
