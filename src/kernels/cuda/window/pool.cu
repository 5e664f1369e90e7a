#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/window/covering.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Forward {
  Windows windows;
  Pool kind;
  Elements x, y;
  uint8_t* from;
  int64_t channels, rows;
};

/// A thread computes four channels of one output pixel.
__global__ void __launch_bounds__(256) pool_windows(Forward args) {
  const Windows& w = args.windows;
  const Place at = place_of_thread(args.rows, args.channels);
  if (at.count == 0) {
    return;
  }
  const OutPixel out(w, at.pixel);
  Quad result{};
  int from[4] = {};
  bool begun = false;
  for (int64_t i = 0; i < w.extent; ++i) {
    const int64_t row = out.row + i;
    for (int64_t j = 0; row >= 0 && row < w.height && j < w.extent; ++j) {
      const int64_t column = out.column + j;
      if (column < 0 || column >= w.width) {
        continue;
      }
      const int64_t pixel = (out.image * w.height + row) * w.width + column;
      const Quad values = load_quad(args.x, pixel * args.channels + at.channel, at.count);
      for (int k = 0; k < 4; ++k) {
        if (args.kind == Pool::mean) {
          result.x[k] += values.x[k];
        } else if (!begun || values.x[k] > result.x[k] || values.x[k] != values.x[k]) {
          result.x[k] = values.x[k];
          from[k] = static_cast<int>(i * w.extent + j);
        }
      }
      begun = true;
    }
  }
  const int64_t to = at.pixel * args.channels + at.channel;
  for (int k = 0; k < 4; ++k) {
    if (args.kind == Pool::mean) {
      result.x[k] *= 1.0F / static_cast<float>(w.extent * w.extent);
    } else if (k < at.count) {
      args.from[to + k] = static_cast<uint8_t>(from[k]);
    }
  }
  store_quad(args.y, to, at.count, result);
}

struct Backward {
  Windows windows;
  Pool kind;
  Elements dy, dx;
  const uint8_t* from;
  int64_t channels, pixels;
};

/// A thread computes four channels of one input pixel.
__global__ void __launch_bounds__(256) pool_gradient(Backward args) {
  const Place at = place_of_thread(args.pixels, args.channels);
  if (at.count == 0) {
    return;
  }
  const float share = 1.0F / static_cast<float>(args.windows.extent * args.windows.extent);
  Quad sum{};
  for_covering(args.windows, at.pixel, [&](int64_t out, int64_t place) {
    const int64_t first = out * args.channels + at.channel;
    const Quad dy = load_quad(args.dy, first, at.count);
    for (int k = 0; k < at.count; ++k) {
      if (args.kind == Pool::mean) {
        sum.x[k] += dy.x[k] * share;
      } else if (args.from[first + k] == place) {
        sum.x[k] += dy.x[k];
      }
    }
  });
  store_quad(args.dx, at.pixel * args.channels + at.channel, at.count, sum);
}

}  // namespace

void pool(Stream& stream, const PoolArgs& args) {
  launch(pool_windows, window_launch("pool", args.y.rows(), args.y.cols()), stream,
         Forward{.windows = Windows(args.window),
                 .kind = args.kind,
                 .x = elements(args.x),
                 .y = elements(args.y),
                 .from = static_cast<uint8_t*>(args.from.data),
                 .channels = args.y.cols(),
                 .rows = args.y.rows()});
}

void pool_backward(Stream& stream, const PoolBackwardArgs& args) {
  launch(pool_gradient, window_launch("pool_backward", args.dx.rows(), args.dx.cols()), stream,
         Backward{.windows = Windows(args.window),
                  .kind = args.kind,
                  .dy = elements(args.dy),
                  .dx = elements(args.dx),
                  .from = static_cast<const uint8_t*>(args.from.data),
                  .channels = args.dx.cols(),
                  .pixels = args.dx.rows()});
}

}  // namespace espalier::kernels::ESPALIER_GPU
