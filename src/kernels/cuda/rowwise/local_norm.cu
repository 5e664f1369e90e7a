// Local response normalisation. A thread computes a quad of channels of one pixel; neighbours come
// from the cache, and their scales are computed again.
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kThreads = 256;

struct Operands {
  Elements x, y, dy, dx;
  int64_t rows, cols;
  int64_t half;  ///< neighbours on each side
  float share, k;
};

/// A quad of channels of each row.
struct Place {
  int64_t row, channel, count;
};
__device__ __forceinline__ Place place_of_thread(const Operands& of) {
  const int64_t quads = (of.cols + 3) / 4;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = quotient(number, quads);
  const int64_t channel = 4 * (number - row * quads);
  return {row, channel, row < of.rows ? least(4, of.cols - channel) : 0};
}

/// The scale of a channel; `row`: number of the row's first element.
__device__ __forceinline__ float scale_of(const Operands& of, int64_t row, int64_t channel) {
  float sum = 0;
  const int64_t end = least(of.cols, channel + of.half + 1);
  for (int64_t c = most(0, channel - of.half); c < end; ++c) {
    const float x = load(of.x, row + c);
    sum += x * x;
  }
  return of.k + of.share * sum;
}

/// scale^(-3/4)
__device__ __forceinline__ float factor(float scale) {
  const float root = sqrtf(scale);
  return 1.0F / (root * sqrtf(root));
}

__global__ void __launch_bounds__(kThreads) normalise(Operands of) {
  const Place at = place_of_thread(of);
  if (at.count == 0) {
    return;
  }
  const int64_t row = at.row * of.cols;
  Quad y{};
  for (int k = 0; k < at.count; ++k) {
    y.x[k] = load(of.x, row + at.channel + k) * factor(scale_of(of, row, at.channel + k));
  }
  store_quad(of.y, row + at.channel, at.count, y);
}

__global__ void __launch_bounds__(kThreads) gradient(Operands of) {
  const Place at = place_of_thread(of);
  if (at.count == 0) {
    return;
  }
  const int64_t row = at.row * of.cols;
  Quad sums{};
  Quad dx{};
  const int64_t end = least(of.cols, at.channel + at.count + of.half);
  for (int64_t c = most(0, at.channel - of.half); c < end; ++c) {
    const float scale = scale_of(of, row, c);
    const float dy = load(of.dy, row + c);
    const float power = factor(scale);
    const float term = dy * load(of.x, row + c) * power / scale;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t apart = c - at.channel - k;
      sums.x[k] += apart >= -of.half && apart <= of.half ? term : 0.0F;
      dx.x[k] = apart == 0 ? dy * power : dx.x[k];
    }
  }
  const Quad x = load_quad(of.x, row + at.channel, at.count);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    dx.x[k] -= 1.5F * of.share * x.x[k] * sums.x[k];
  }
  store_quad(of.dx, row + at.channel, at.count, dx);
}

Launch launch_of(const char* name, const Operands& of) {
  return {.name = name,
          .grid = blocks_for(of.rows * divide_up(of.cols, 4), kThreads),
          .block = kThreads};
}

}  // namespace

void local_norm(Stream& stream, const LocalNormArgs& args) {
  const Operands of{.x = elements(args.x),
                    .y = elements(args.y),
                    .rows = args.x.rows(),
                    .cols = args.x.cols(),
                    .half = args.norm.half(),
                    .share = args.norm.share(),
                    .k = args.norm.k};
  launch(normalise, launch_of("local_norm", of), stream, of);
}

void local_norm_backward(Stream& stream, const LocalNormBackwardArgs& args) {
  const Operands of{.x = elements(args.x),
                    .dy = elements(args.dy),
                    .dx = elements(args.dx),
                    .rows = args.x.rows(),
                    .cols = args.x.cols(),
                    .half = args.norm.half(),
                    .share = args.norm.share(),
                    .k = args.norm.k};
  launch(gradient, launch_of("local_norm_backward", of), stream, of);
}

}  // namespace espalier::kernels::ESPALIER_GPU
