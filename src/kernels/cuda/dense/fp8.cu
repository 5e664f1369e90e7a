// Two passes over each operand. In the first pass each block writes the largest magnitude of its
// part, as an integer. In the second pass every block computes the maximum of those, while its own
// elements are being loaded. So no memory needs zeroing, and no atomics are needed.
#include "src/kernels/cuda/dense/fp8.h"

#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/rules/wire/fp8.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kMeasuring = 512;  ///< threads of a block in the first pass
constexpr int64_t kMaxParts = 512;    ///< upper bound of those blocks per operand
constexpr unsigned kThreads = 256;    ///< threads of a block in the second pass
constexpr float kMinScale = 0x1p-126F;

/// Tiles of transposed operands. kTileRows rows of the operand become kTileRows bytes of a row of
/// codes, 128, so that whole cache lines are written. A thread rounds 4 rows of 8 elements.
constexpr int64_t kTileRows = 128, kTileCols = 64;
constexpr int kPitch = kTileRows / 4 + 1;  ///< words; one padding word avoids bank conflicts

/// One operand.
struct Side {
  Elements x;
  int64_t rows = 0, cols = 0, stride = 0;
  void* to = nullptr;
  int64_t parts = 1;  ///< blocks that measure it
  bool wide = false;  ///< true: E5M2, false: E4M3
  bool transposes = false;
};

/// Both operands. The first blocks of a launch process a, the others b.
struct Sides {
  Side side[2];
  int64_t blocks_of_a;
  int32_t* found;  ///< [2, kMaxParts]: bits of the largest magnitude, one per measuring block
  float* scales;   ///< see scale_place
};

/// Operand of a block, and the block's number among those of that operand.
struct Place {
  unsigned side;
  int64_t block;
};
__device__ __forceinline__ Place place_in(const Sides& args) {
  const bool of_b = blockIdx.x >= args.blocks_of_a;
  return {of_b ? 1U : 0U, blockIdx.x - (of_b ? args.blocks_of_a : 0)};
}

/// Each scale occupies its own 64 bytes, as do the two factors behind them.
__device__ __host__ constexpr int64_t scale_place(unsigned side) { return 16 * int64_t{side}; }

__device__ __forceinline__ constexpr float most_of(bool wide) { return wide ? 57344.0F : 448.0F; }

struct Eight {
  float x[8];
};

/// Elements i … i + count - 1, at most 8; the rest is zero.
__device__ __forceinline__ Eight load_eight(const Elements& e, int64_t i, int64_t count) {
  Eight all;
  const uint16_t* half = static_cast<const uint16_t*>(e.data) + i;
  if (e.type == DType::bf16 && count >= 8 && aligned(half, 16)) {
    const uint4 v = *reinterpret_cast<const uint4*>(half);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      all.x[k] = from_bf16(k % 2 == 0 ? words[k / 2] & 0xffffU : words[k / 2] >> 16);
    }
    return all;
  }
  const Quad low = load_quad(e, i, count);
  const Quad high = load_quad(e, i + 4, count - 4);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    all.x[k] = k < 4 ? low.x[k % 4] : high.x[k % 4];
  }
  return all;
}

/// Loads one of a row's groups of 8 elements; the last may be shorter.
__device__ __forceinline__ Eight load_group(const Side& side, int64_t group, int64_t in_row) {
  const int64_t row = quotient(group, in_row);
  const int64_t col = 8 * (group - row * in_row);
  return load_eight(side.x, row * side.stride + col, side.cols - col);
}

__device__ __forceinline__ int block_largest(int value) {
  value = warp_max(value);
  return warp_max(from_warps(value, 0));
}

__global__ void __launch_bounds__(kMeasuring) measure_operands(Sides args) {
  const Place place = place_in(args);
  const Side& side = args.side[place.side];
  const int64_t in_row = (side.cols + 7) / 8;
  const int64_t groups = side.rows * in_row;
  int largest = 0;
#pragma unroll 4
  for (int64_t i = place.block * kMeasuring + threadIdx.x; i < groups;
       i += side.parts * kMeasuring) {
    const Eight eight = load_group(side, i, in_row);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int magnitude = __float_as_int(eight.x[k]) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = block_largest(largest);
  if (threadIdx.x == 0) {
    args.found[place.side * kMaxParts + place.block] = largest;
  }
}

/// Returns one over the scale of an operand; called by a whole block. The first block also writes
/// the scale for the product.
__device__ __forceinline__ float find_inverse(const Sides& args, const Place& place) {
  const Side& side = args.side[place.side];
  int largest = 0;
  for (int64_t i = threadIdx.x; i < side.parts; i += kThreads) {
    const int part = args.found[place.side * kMaxParts + i];
    largest = part > largest ? part : largest;
  }
  largest = block_largest(largest);
  float scale = __int_as_float(largest) / most_of(side.wide);
  scale = largest == 0 ? 1.0F : scale < kMinScale ? kMinScale : scale;
  scale = static_cast<uint32_t>(largest) >= kInfiniteBits ? not_a_number() : scale;
  if (place.block == 0 && threadIdx.x == 0) {
    args.scales[scale_place(place.side)] = scale;
  }
  return 1.0F / scale;
}

template <int kExponentBits>
__device__ __forceinline__ unsigned code_as(float x, float inverse) {
  using Numbers = wire::Fp8Numbers<kExponentBits>;
  return typename Numbers::Encoder({1.0F, inverse}, Numbers::kMax).template code<false>(x, 0);
}
__device__ __forceinline__ unsigned code_of(bool wide, float x, float inverse) {
  return wide ? code_as<5>(x, inverse) : code_as<4>(x, inverse);
}

/// Two codes, the first in the lower byte. For finite numbers the device instruction gives the same
/// bits: to nearest even, saturating at the largest number.
__device__ __forceinline__ uint32_t two_codes(bool wide, float first, float second, float inverse) {
  if constexpr (kConvertsFp8) {
    const float low = first * inverse;
    const float high = second * inverse;
    return wide ? to_fp8_pair<5>(low, high) : to_fp8_pair<4>(low, high);
  } else {
    return code_of(wide, first, inverse) | code_of(wide, second, inverse) << 8;
  }
}
__device__ __forceinline__ uint32_t four_codes(bool wide, const float (&x)[4], float inverse) {
  return two_codes(wide, x[0], x[1], inverse) | two_codes(wide, x[2], x[3], inverse) << 16;
}

/// Rounds 16 elements of a row per thread.
__device__ void round_rows(const Sides& args, const Place& place) {
  const Side& side = args.side[place.side];
  const int64_t in_row = side.cols / 8;
  const int64_t group = 2 * (place.block * kThreads + threadIdx.x);
  const bool any = group < side.rows * in_row;
  const Eight low = any ? load_group(side, group, in_row) : Eight{};
  const Eight high = any ? load_group(side, group + 1, in_row) : Eight{};
  const float inverse = find_inverse(args, place);
  if (any) {
    const float x[4][4] = {{low.x[0], low.x[1], low.x[2], low.x[3]},
                           {low.x[4], low.x[5], low.x[6], low.x[7]},
                           {high.x[0], high.x[1], high.x[2], high.x[3]},
                           {high.x[4], high.x[5], high.x[6], high.x[7]}};
    static_cast<uint4*>(side.to)[group / 2] =
        make_uint4(four_codes(side.wide, x[0], inverse), four_codes(side.wide, x[1], inverse),
                   four_codes(side.wide, x[2], inverse), four_codes(side.wide, x[3], inverse));
  }
}

/// Rounds a tile of the operand; the codes are in column order.
__device__ void round_tile(const Sides& args, const Place& place) {
  __shared__ uint32_t words[kTileCols * kPitch];
  const Side& side = args.side[place.side];
  const int64_t across = (side.cols + kTileCols - 1) / kTileCols;
  const int64_t down = quotient(place.block, across);
  const int64_t first_row = down * kTileRows;
  const int64_t first_col = (place.block - down * across) * kTileCols;
  const int my_col = 8 * static_cast<int>(threadIdx.x % 8);
  const int my_word = static_cast<int>(threadIdx.x / 8);
  const int64_t row = first_row + 4 * my_word;
  const int64_t col = first_col + my_col;
  const bool any = row < side.rows && col < side.cols;
  Eight rows[4] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    rows[k] = any ? load_eight(side.x, (row + k) * side.stride + col, 8) : Eight{};
  }
  const float inverse = find_inverse(args, place);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float column[4] = {rows[0].x[j], rows[1].x[j], rows[2].x[j], rows[3].x[j]};
    words[(my_col + j) * kPitch + my_word] = four_codes(side.wide, column, inverse);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int j = static_cast<int>(threadIdx.x / 32); j < kTileCols; j += kThreads / 32) {
    if (first_col + j < side.cols && first_row + 4 * lane < side.rows) {
      auto* to = static_cast<uint8_t*>(side.to) + (first_col + j) * side.rows + first_row;
      reinterpret_cast<uint32_t*>(to)[lane] = words[j * kPitch + lane];
    }
  }
}

__global__ void __launch_bounds__(kThreads) round_codes(Sides args) {
  const Place place = place_in(args);
  if (args.side[place.side].transposes) {
    round_tile(args, place);
  } else {
    round_rows(args, place);
  }
}

/// Rounds a group of 8 elements per thread.
__global__ void __launch_bounds__(kThreads) round_numbers(Sides args) {
  const Place place = place_in(args);
  const Side& side = args.side[place.side];
  const int64_t in_row = (side.cols + 7) / 8;
  const int64_t group = place.block * kThreads + threadIdx.x;
  const bool any = group < side.rows * in_row;
  const Eight from = any ? load_group(side, group, in_row) : Eight{};
  const float inverse = find_inverse(args, place);
  if (!any) {
    return;
  }
  const int64_t row = quotient(group, in_row);
  const int64_t col = 8 * (group - row * in_row);
  const Elements to{side.to, DType::bf16};
  for (int k = 0; k < 8 && col + k < side.cols; ++k) {
    const unsigned code = code_of(side.wide, from.x[k], inverse);
    store(to, row * side.cols + col + k,
          side.wide ? wire::Fp8Numbers<5>::Decoder(1.0F).value(code)
                    : wire::Fp8Numbers<4>::Decoder(1.0F).value(code));
  }
}

__global__ void __launch_bounds__(32) join_scales(float* scales, float keep) {
  if (threadIdx.x == 0) {
    scales[scale_place(2)] = scales[scale_place(0)] * scales[scale_place(1)];
    scales[scale_place(2) + 1] = keep;
  }
}

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t operand_bytes(const Tensor& x) { return rounded_up(2 * static_cast<size_t>(x.count())); }

constexpr size_t kScaleBytes = 3 * 64;
constexpr size_t kFoundBytes = 2 * kMaxParts * sizeof(int32_t);

int64_t groups_of(const Side& side) { return side.rows * divide_up(side.cols, 8); }

Side side_of(const Tensor& x, Float8 format, void* to) {
  Side side{.x = elements(x),
            .rows = x.rows(),
            .cols = x.cols(),
            .stride = x.stride,
            .to = to,
            .wide = format == Float8::e5m2};
  const int64_t wanted = divide_up(groups_of(side), 2 * kMeasuring);
  side.parts = wanted < kMaxParts ? wanted : kMaxParts;
  return side;
}

/// A launch for both operands; `of_each` returns the number of blocks for one of them.
template <class OfEach>
Launch over_both(const char* name, Sides& sides, unsigned threads, const OfEach& of_each) {
  sides.blocks_of_a = of_each(sides.side[0]);
  return {.name = name,
          .grid = blocks_for(sides.blocks_of_a + of_each(sides.side[1]), 1),
          .block = threads};
}

/// Measures both operands. Layout of `memory`: [a][b][scales][found].
Sides measured(Stream& stream, const GemmArgs& args, std::byte* memory) {
  std::byte* const b = memory + operand_bytes(args.a);
  std::byte* const scales = b + operand_bytes(args.b);
  Sides sides{.side = {side_of(args.a, args.round_a, memory), side_of(args.b, args.round_b, b)},
              .blocks_of_a = 0,
              .found = reinterpret_cast<int32_t*>(scales + rounded_up(kScaleBytes)),
              .scales = reinterpret_cast<float*>(scales)};
  const Launch shape =
      over_both("fp8_measure", sides, kMeasuring, [](const Side& side) { return side.parts; });
  launch(measure_operands, shape, stream, sides);
  return sides;
}

RoundedOperands operands_of(const Sides& sides) {
  return {.a = sides.side[0].to,
          .b = sides.side[1].to,
          .scale_a = sides.scales + scale_place(0),
          .scale_b = sides.scales + scale_place(1),
          .factors = sides.scales + scale_place(2)};
}

}  // namespace

size_t fp8_workspace(const GemmArgs& args) {
  return operand_bytes(args.a) + operand_bytes(args.b) + rounded_up(kScaleBytes) + kFoundBytes;
}

RoundedOperands round_to_codes(Stream& stream, const GemmArgs& args, std::byte* memory) {
  Sides sides = measured(stream, args, memory);
  sides.side[0].transposes = args.transpose_a;
  sides.side[1].transposes = !args.transpose_b;
  const Launch shape = over_both("fp8_round", sides, kThreads, [](const Side& side) {
    return side.transposes ? divide_up(side.rows, kTileRows) * divide_up(side.cols, kTileCols)
                           : divide_up(groups_of(side), 2 * kThreads);
  });
  launch(round_codes, shape, stream, sides);
  return operands_of(sides);
}

RoundedOperands round_to_bf16(Stream& stream, const GemmArgs& args, std::byte* memory) {
  Sides sides = measured(stream, args, memory);
  const Launch shape = over_both("fp8_round_to_bf16", sides, kThreads, [](const Side& side) {
    return divide_up(groups_of(side), kThreads);
  });
  launch(round_numbers, shape, stream, sides);
  launch(join_scales, {.name = "fp8_scales", .grid = 1, .block = 32}, stream, sides.scales,
         args.accumulate || args.addend ? 1.0F : 0.0F);
  return operands_of(sides);
}

}  // namespace espalier::kernels::ESPALIER_GPU
