// Rotary position embedding. A thread rotates a quad of pairs of each of up to kHeadsEach heads of
// a row: it loads the quads of all of them, and their cosines and sines once, before it stores any.
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kHeadsEach = 4;

struct Rotation {
  Elements x;
  const float *cosines, *sines;
  const int32_t* positions;  ///< null: position of row r is r % tokens
  int64_t rows, tokens, heads, head_width, half, stride, cosine_stride, sine_stride;
  float sign;  ///< of the angle
};

template <bool kWhole>
__device__ __forceinline__ void rotate(const Rotation& of, int64_t row, int64_t head, int64_t i) {
  const int64_t count = of.half - i;
  const int64_t position = of.positions != nullptr ? int64_t{of.positions[row]} : row % of.tokens;
  const int64_t first = row * of.stride + head * of.head_width + i;
  RawQuad low[kHeadsEach];
  RawQuad high[kHeadsEach];
#pragma unroll
  for (int j = 0; j < kHeadsEach; ++j) {
    if (head + j < of.heads) {
      low[j] = load_raw<kWhole>(of.x, first + j * of.head_width, count);
      high[j] = load_raw<kWhole>(of.x, first + j * of.head_width + of.half, count);
    }
  }
  const Quad cosine = load_quad<kWhole>(of.cosines, position * of.cosine_stride + i, count);
  const Quad sine = load_quad<kWhole>(of.sines, position * of.sine_stride + i, count);
#pragma unroll
  for (int j = 0; j < kHeadsEach; ++j) {
    if (head + j < of.heads) {
      const Quad a = quad_of(of.x.type, low[j]);
      const Quad b = quad_of(of.x.type, high[j]);
      Quad to_low;
      Quad to_high;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float s = of.sign * sine.x[k];
        to_low.x[k] = a.x[k] * cosine.x[k] - b.x[k] * s;
        to_high.x[k] = b.x[k] * cosine.x[k] + a.x[k] * s;
      }
      store_quad<kWhole>(of.x, first + j * of.head_width, count, to_low);
      store_quad<kWhole>(of.x, first + j * of.head_width + of.half, count, to_high);
    }
  }
}

__global__ void __launch_bounds__(kThreads) rotate_heads(Rotation of, bool whole) {
  const int64_t quads = (of.half + 3) / 4;
  const int64_t groups = (of.heads + kHeadsEach - 1) / kHeadsEach;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t group = quotient(number, quads);
  const int64_t row = quotient(group, groups);
  if (row >= of.rows) {
    return;
  }
  const int64_t head = kHeadsEach * (group - row * groups);
  const int64_t i = 4 * (number - group * quads);
  if (whole) {
    rotate<true>(of, row, head, i);
  } else {
    rotate<false>(of, row, head, i);
  }
}

}  // namespace

void rotary(Stream& stream, const RotaryArgs& args) {
  const int64_t half = args.width / 2;
  const int64_t head_width = args.x.cols() / args.heads;
  const int64_t threads = args.x.rows() * divide_up(args.heads, kHeadsEach) * divide_up(half, 4);
  const Rotation rotation{.x = elements(args.x),
                          .cosines = static_cast<const float*>(args.cosines.data),
                          .sines = static_cast<const float*>(args.sines.data),
                          .positions = static_cast<const int32_t*>(args.positions.data),
                          .rows = args.x.rows(),
                          .tokens = args.x.shape[args.x.shape.rank() - 2],
                          .heads = args.heads,
                          .head_width = head_width,
                          .half = half,
                          .stride = args.x.stride,
                          .cosine_stride = args.cosines.stride,
                          .sine_stride = args.sines.stride,
                          .sign = args.inverse ? -1.0F : 1.0F};
  const bool whole = half % 4 == 0 && head_width % 4 == 0 &&
                     has_whole_quads(rotation.x, args.x.stride) &&
                     has_whole_quads(elements(args.cosines), args.cosines.stride) &&
                     has_whole_quads(elements(args.sines), args.sines.stride);
  launch(rotate_heads, {.name = "rotary", .grid = blocks_for(threads, kThreads), .block = kThreads},
         stream, rotation, whole);
}

}  // namespace espalier::kernels::ESPALIER_GPU
