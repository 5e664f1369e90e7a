#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/window/covering.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Copy {
  Windows windows;
  Elements x, patches;
  int64_t x_stride, channels, rows, first;
};

/// A thread writes four channels of one pixel of one patch.
__global__ void __launch_bounds__(256) copy_patches(Copy args) {
  const Windows& w = args.windows;
  const int64_t area = w.extent * w.extent;
  const Place to = place_of_thread(args.rows * area, args.channels);
  if (to.count == 0) {
    return;
  }
  const int64_t row = quotient(to.pixel, area);
  const int64_t place = to.pixel - row * area;
  const OutPixel out(w, args.first + row);
  const int64_t i = quotient(place, w.extent);
  const int64_t y = out.row + i;
  const int64_t x = out.column + place - i * w.extent;
  Quad values{};
  if (y >= 0 && y < w.height && x >= 0 && x < w.width) {
    const int64_t pixel = (out.image * w.height + y) * w.width + x;
    values = load_quad(args.x, pixel * args.x_stride + to.channel, to.count);
  }
  store_quad(args.patches, to.pixel * args.channels + to.channel, to.count, values);
}

struct Sum {
  Windows windows;
  Elements patches;
  float* sum;
  int64_t stride, channels, first, rows, begin, pixels;
};

/// A thread adds to four channels of one input pixel.
__global__ void __launch_bounds__(256) sum_patches(Sum args) {
  const Place at = place_of_thread(args.pixels, args.channels);
  if (at.count == 0) {
    return;
  }
  const int64_t pixel = args.begin + at.pixel;
  const int64_t area = args.windows.extent * args.windows.extent;
  const int64_t to = pixel * args.stride + at.channel;
  Quad sum = load_quad(args.sum, to, at.count);
  for_covering(args.windows, pixel, [&](int64_t out, int64_t place) {
    if (out >= args.first && out < args.first + args.rows) {
      const int64_t patch = (out - args.first) * area + place;
      add(sum, load_quad(args.patches, patch * args.channels + at.channel, at.count));
    }
  });
  store_quad(args.sum, to, at.count, sum);
}

}  // namespace

void patches(Stream& stream, const PatchesArgs& args) {
  const int64_t rows = args.patches.rows();
  launch(copy_patches, window_launch("patches", rows * args.window.area(), args.x.cols()), stream,
         Copy{.windows = Windows(args.window),
              .x = elements(args.x),
              .patches = elements(args.patches),
              .x_stride = args.x.stride,
              .channels = args.x.cols(),
              .rows = rows,
              .first = args.first});
}

void patch_sum(Stream& stream, const PatchSumArgs& args) {
  const Window& window = args.window;
  const int64_t rows = args.patches.rows();
  const int64_t begin = args.first / window.out_pixels() * window.pixels();
  const int64_t end = divide_up(args.first + rows, window.out_pixels()) * window.pixels();
  const int64_t pixels = rows == 0 ? 0 : end - begin;
  launch(sum_patches, window_launch("patch_sum", pixels, args.sum.cols()), stream,
         Sum{.windows = Windows(window),
             .patches = elements(args.patches),
             .sum = static_cast<float*>(args.sum.data),
             .stride = args.sum.stride,
             .channels = args.sum.cols(),
             .first = args.first,
             .rows = rows,
             .begin = begin,
             .pixels = pixels});
}

}  // namespace espalier::kernels::ESPALIER_GPU
