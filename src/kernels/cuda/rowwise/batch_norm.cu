// Batch normalisation. Sums over pixels: a block sums the quads of up to 128 channels over a part
// of the rows, in double; the parts are then added in order. The division depends on the shape
// alone.
#include <algorithm>

#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/norm.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kTileQuads = 32;  ///< quads of channels that a block has, at most

/// Operands of all four operations; unused ones are null.
struct Operands {
  Elements x, y, dy, addend, dx;
  const float *mean, *variance, *weight, *bias, *sums;
  int64_t rows, cols;
  float share;  ///< 1 / pixels of all replicas
  bool rectify;
};

__device__ __forceinline__ float rstd_of(float variance) {
  return 1.0F / sqrtf(variance + kNormEpsilon);
}

/// A quad of channels of each row.
struct Place {
  int64_t row, channel, count;
};
__device__ __forceinline__ Place place_of_thread(int64_t rows, int64_t cols) {
  const int64_t quads = (cols + 3) / 4;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = quotient(number, quads);
  const int64_t channel = 4 * (number - row * quads);
  return {row, channel, row < rows ? least(4, cols - channel) : 0};
}

struct Parts {
  double* shares;  ///< [parts, 2, cols]
  int64_t count, rows_each;
  int64_t width;  ///< quads of a block: a power of two
};

/// Sums of a quad: [0] of x or g, [1] of x² or g (x - mean).
struct Sums {
  double x[2][4];
};

__device__ __forceinline__ void add_moments(const Operands& of, int64_t row, int64_t channel,
                                            int64_t count, Sums& sums) {
  const Quad x = load_quad(of.x, row * of.cols + channel, count);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double value = x.x[k];
    sums.x[0][k] += value;
    sums.x[1][k] += value * value;
  }
}

/// Also stores g.
__device__ __forceinline__ void add_gradients(const Operands& of, int64_t row, int64_t channel,
                                              int64_t count, Sums& sums) {
  const int64_t at = row * of.cols + channel;
  const Quad x = load_quad(of.x, at, count);
  const Quad mean = load_quad(of.mean, channel, count);
  Quad g = load_quad(of.dy, at, count);
  if (of.y.data != nullptr) {
    const Quad y = load_quad(of.y, at, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g.x[k] = y.x[k] <= 0.0F ? 0.0F : g.x[k];
    }
    store_quad(of.dy, at, count, g);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sums.x[0][k] += static_cast<double>(g.x[k]);
    sums.x[1][k] += static_cast<double>(g.x[k]) * static_cast<double>(x.x[k] - mean.x[k]);
  }
}

template <bool kGradient>
__global__ void __launch_bounds__(kThreads) sum_channels(Operands of, Parts parts) {
  __shared__ double sums[8][kThreads];
  const int64_t lane = threadIdx.x % parts.width;
  const int64_t side = threadIdx.x / parts.width;
  const int64_t sides = kThreads / parts.width;
  const int64_t channel = 4 * (blockIdx.x * parts.width + lane);
  const int64_t count = least(4, of.cols - channel);
  const int64_t end = least(of.rows, (blockIdx.y + 1) * parts.rows_each);
  Sums mine{};
  for (int64_t row = blockIdx.y * parts.rows_each + side; row < end && count > 0; row += sides) {
    if constexpr (kGradient) {
      add_gradients(of, row, channel, count, mine);
    } else {
      add_moments(of, row, channel, count, mine);
    }
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    sums[k][threadIdx.x] = mine.x[k / 4][k % 4];
  }
  __syncthreads();
  if (side > 0) {
    return;
  }
  for (int k = 0; k < 8; ++k) {
    double total = 0;
    for (int64_t other = 0; other < sides; ++other) {
      total += sums[k][other * parts.width + lane];
    }
    if (k % 4 < count) {
      parts.shares[(2 * blockIdx.y + k / 4) * of.cols + channel + k % 4] = total;
    }
  }
}

/// The total of column c of [2, cols].
__device__ __forceinline__ double total_of(const Parts& parts, int64_t cols, int64_t c) {
  double total = 0;
  for (int64_t part = 0; part < parts.count; ++part) {
    total += parts.shares[2 * part * cols + c];
  }
  return total;
}

__global__ void __launch_bounds__(kThreads)
    finish_moments(Parts parts, int64_t rows, int64_t cols, float* mean_out, float* variance_out) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= cols) {
    return;
  }
  const double share = 1.0 / static_cast<double>(rows);
  const double mean = total_of(parts, cols, c) * share;
  const double variance = total_of(parts, cols, cols + c) * share - mean * mean;
  mean_out[c] = static_cast<float>(mean);
  variance_out[c] = variance < 0 ? 0.0F : static_cast<float>(variance);
}

__global__ void __launch_bounds__(kThreads)
    finish_sums(Parts parts, int64_t cols, const float* variance, float* sums, Elements dweight,
                Elements dbias, bool accumulate) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= cols) {
    return;
  }
  const auto rstd = static_cast<double>(rstd_of(variance[c]));
  const auto sum = static_cast<float>(total_of(parts, cols, c));
  const auto slope = static_cast<float>(total_of(parts, cols, cols + c) * rstd);
  sums[c] = sum;
  sums[cols + c] = slope;
  store(dbias, c, (accumulate ? load(dbias, c) : 0.0F) + sum);
  store(dweight, c, (accumulate ? load(dweight, c) : 0.0F) + slope);
}

/// A thread computes a quad of channels of one row.
__global__ void __launch_bounds__(kThreads) normalise(Operands of) {
  const Place at = place_of_thread(of.rows, of.cols);
  if (at.count == 0) {
    return;
  }
  const int64_t i = at.row * of.cols + at.channel;
  const Quad x = load_quad(of.x, i, at.count);
  const Quad mean = load_quad(of.mean, at.channel, at.count);
  const Quad variance = load_quad(of.variance, at.channel, at.count);
  const Quad weight = load_quad(of.weight, at.channel, at.count);
  const Quad bias = load_quad(of.bias, at.channel, at.count);
  const Quad addend = of.addend.data != nullptr ? load_quad(of.addend, i, at.count) : Quad{};
  Quad y;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float value =
        rules::norm_value<true>(x.x[k], mean.x[k], rstd_of(variance.x[k]), weight.x[k], bias.x[k]) +
        addend.x[k];
    y.x[k] = of.rectify && value < 0.0F ? 0.0F : value;
  }
  store_quad(of.y, i, at.count, y);
}

__global__ void __launch_bounds__(kThreads) input_gradient(Operands of) {
  const Place at = place_of_thread(of.rows, of.cols);
  if (at.count == 0) {
    return;
  }
  const int64_t i = at.row * of.cols + at.channel;
  const Quad g = load_quad(of.dy, i, at.count);
  const Quad x = load_quad(of.x, i, at.count);
  const Quad mean = load_quad(of.mean, at.channel, at.count);
  const Quad variance = load_quad(of.variance, at.channel, at.count);
  const Quad weight = load_quad(of.weight, at.channel, at.count);
  const Quad sum = load_quad(of.sums, at.channel, at.count);
  const Quad slope = load_quad(of.sums + of.cols, at.channel, at.count);
  Quad dx;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float rstd = rstd_of(variance.x[k]);
    const float scale = weight.x[k] * of.share;
    dx.x[k] = rules::norm_gradient(g.x[k], weight.x[k], rules::normalised(x.x[k], mean.x[k], rstd),
                                   rstd, sum.x[k] * scale, slope.x[k] * scale);
  }
  store_quad(of.dx, i, at.count, dx);
}

struct Averages {
  const float *mean, *variance, *average_mean, *average_variance;
  Elements dmean, dvariance;
  int64_t cols;
  float unbiased, share;
  bool accumulate;
};

__device__ __forceinline__ void add_difference(const Averages& of, const Elements& out, int64_t c,
                                               float average, float batch) {
  store(out, c, (of.accumulate ? load(out, c) : 0.0F) + of.share * (average - batch));
}

__global__ void __launch_bounds__(kThreads) average_gradients(Averages of) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c < of.cols) {
    add_difference(of, of.dmean, c, of.average_mean[c], of.mean[c]);
    add_difference(of, of.dvariance, c, of.average_variance[c], of.unbiased * of.variance[c]);
  }
}

const float* floats(const Tensor& t) { return static_cast<const float*>(t.data); }

/// Launches the sums over pixels; the caller launches what finishes them.
template <bool kGradient>
Parts launch_sums(const char* name, Stream& stream, const Operands& of) {
  constexpr int64_t kBlocks = 512;  ///< resident on a large device
  const int64_t quads = divide_up(of.cols, 4);
  Parts parts{.shares = nullptr, .count = 1, .rows_each = 1, .width = 1};
  while (parts.width < kTileQuads && parts.width < quads) {
    parts.width *= 2;
  }
  const int64_t tiles = divide_up(quads, parts.width);
  const int64_t sides = kThreads / parts.width;
  const int64_t most_parts = std::max<int64_t>(1, kBlocks / std::max<int64_t>(1, tiles));
  parts.rows_each = std::max(sides, divide_up(of.rows, most_parts));
  parts.count = divide_up(of.rows, parts.rows_each);
  const int64_t elements = std::max<int64_t>(1, parts.count * 2 * of.cols);
  parts.shares =
      reinterpret_cast<double*>(stream.workspace(static_cast<size_t>(elements) * sizeof(double)));
  launch(sum_channels<kGradient>,
         {.name = name,
          .grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts.count)),
          .block = kThreads},
         stream, of, parts);
  return parts;
}

Launch launch_columns(const char* name, int64_t cols) {
  return {.name = name, .grid = blocks_for(cols, kThreads), .block = kThreads};
}
Launch launch_quads(const char* name, const Operands& of) {
  return {.name = name,
          .grid = blocks_for(of.rows * divide_up(of.cols, 4), kThreads),
          .block = kThreads};
}

}  // namespace

void batch_norm_statistics(Stream& stream, const BatchNormStatisticsArgs& args) {
  const Operands of{.x = elements(args.x), .rows = args.x.rows(), .cols = args.x.cols()};
  const Parts parts = launch_sums<false>("batch_norm_statistics", stream, of);
  launch(finish_moments, launch_columns("batch_norm_statistics", of.cols), stream, parts, of.rows,
         of.cols, static_cast<float*>(args.mean.data), static_cast<float*>(args.variance.data));
}

void batch_norm(Stream& stream, const BatchNormArgs& args) {
  const Operands of{.x = elements(args.x),
                    .y = elements(args.y),
                    .addend = elements(args.addend),
                    .mean = floats(args.mean),
                    .variance = floats(args.variance),
                    .weight = floats(args.weight),
                    .bias = floats(args.bias),
                    .rows = args.x.rows(),
                    .cols = args.x.cols(),
                    .rectify = args.rectify};
  launch(normalise, launch_quads("batch_norm", of), stream, of);
}

void batch_norm_sums(Stream& stream, const BatchNormSumsArgs& args) {
  const Operands of{.x = elements(args.x),
                    .y = elements(args.y),
                    .dy = elements(args.dy),
                    .mean = floats(args.mean),
                    .rows = args.x.rows(),
                    .cols = args.x.cols()};
  const Parts parts = launch_sums<true>("batch_norm_sums", stream, of);
  launch(finish_sums, launch_columns("batch_norm_sums", of.cols), stream, parts, of.cols,
         floats(args.variance), static_cast<float*>(args.sums.data), elements(args.dweight),
         elements(args.dbias), args.accumulate);
}

void batch_norm_backward(Stream& stream, const BatchNormBackwardArgs& args) {
  const Operands of{.x = elements(args.x),
                    .dy = elements(args.g),
                    .dx = elements(args.dx),
                    .mean = floats(args.mean),
                    .variance = floats(args.variance),
                    .weight = floats(args.weight),
                    .sums = floats(args.sums),
                    .rows = args.x.rows(),
                    .cols = args.x.cols(),
                    .share = 1.0F / static_cast<float>(args.count)};
  launch(input_gradient, launch_quads("batch_norm_backward", of), stream, of);
}

void batch_norm_average(Stream& stream, const BatchNormAverageArgs& args) {
  const auto count = static_cast<float>(args.count);
  const Averages of{.mean = floats(args.mean),
                    .variance = floats(args.variance),
                    .average_mean = floats(args.average_mean),
                    .average_variance = floats(args.average_variance),
                    .dmean = elements(args.dmean),
                    .dvariance = elements(args.dvariance),
                    .cols = args.mean.count(),
                    .unbiased = count / (count - 1),
                    .share = args.share,
                    .accumulate = args.accumulate};
  launch(average_gradients, launch_columns("batch_norm_average", of.cols), stream, of);
}

}  // namespace espalier::kernels::ESPALIER_GPU
