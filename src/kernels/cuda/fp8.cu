// Two passes over each operand. The first leaves the largest magnitude of each of its blocks, as an
// integer; every block of the second finds the largest of those by itself, while what it rounds is
// on its way. So nothing has to be zeroed, and no atomics are needed.
#include "src/kernels/cuda/fp8.h"

#include "src/kernels/cuda/reduce.h"
#include "src/kernels/cuda/wire_values.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kMeasuring = 512;  ///< threads of a block of the first pass
constexpr int64_t kMostParts = 512;   ///< such blocks of an operand
constexpr unsigned kThreads = 256;    ///< of a block of the second
constexpr float kLeastScale = 0x1p-126F;

/// Tiles that are transposed: kTileRows of the operand become as many bytes of a row of codes, 128,
/// so that whole lines are written. A thread rounds 4 rows of 8 elements.
constexpr int64_t kTileRows = 128, kTileCols = 64;
constexpr int kPitch = kTileRows / 4 + 1;  ///< words; one more, for the banks of shared memory

/// An operand.
struct Side {
  Elements x;
  int64_t rows = 0, cols = 0, stride = 0;
  void* to = nullptr;
  bool wide = false;  ///< E5M2, else E4M3
  bool transposes = false;
};

struct Sides {
  Side side[2];
  int32_t* found;  ///< [2, parts]: bits of the largest magnitude of each block
  int64_t parts;
  float* scales;  ///< see scale_place
};

/// Each scale has 64 bytes of its own, as have the two factors behind them.
__device__ __host__ constexpr int64_t scale_place(unsigned side) { return 16 * int64_t{side}; }

struct Eight {
  float x[8];
};

/// Elements i … i + count - 1 of at most 8; the rest zero.
__device__ __forceinline__ Eight load_eight(const Elements& e, int64_t i, int64_t count) {
  Eight all;
  const uint16_t* half = static_cast<const uint16_t*>(e.data) + i;
  if (e.half && count >= 8 && aligned(half, 16)) {
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

/// Groups of 8 elements that a row is cut into; the last may be shorter.
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
  const Side& side = args.side[blockIdx.y];
  const int64_t in_row = (side.cols + 7) / 8;
  const int64_t groups = side.rows * in_row;
  int largest = 0;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kMeasuring + threadIdx.x; i < groups;
       i += args.parts * kMeasuring) {
    const Eight eight = load_group(side, i, in_row);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int magnitude = __float_as_int(eight.x[k]) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = block_largest(largest);
  if (threadIdx.x == 0) {
    args.found[blockIdx.y * args.parts + blockIdx.x] = largest;
  }
}

/// The scale of an operand, by a whole block; its first block leaves it for the product.
__device__ __forceinline__ float find_scale(const Sides& args) {
  int largest = 0;
  for (int64_t i = threadIdx.x; i < args.parts; i += kThreads) {
    const int part = args.found[blockIdx.y * args.parts + i];
    largest = part > largest ? part : largest;
  }
  largest = block_largest(largest);
  const float most = args.side[blockIdx.y].wide ? 57344.0F : 448.0F;
  float scale = __int_as_float(largest) / most;
  scale = largest == 0 ? 1.0F : scale < kLeastScale ? kLeastScale : scale;
  scale = static_cast<uint32_t>(largest) >= kInfinite ? not_a_number() : scale;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    args.scales[scale_place(blockIdx.y)] = scale;
  }
  return scale;
}

template <int kExponentBits>
__device__ __forceinline__ Fp8Coder<kExponentBits> coder_of(float scale) {
  return {{1.0F, 1.0F / scale}, kExponentBits == 5 ? 57344.0F : 448.0F};
}

/// Four codes, the first in the lowest byte. From compute capability 8.9 on by the instruction for
/// it, which has the same bits of finite numbers: to nearest even, and at most the largest.
template <int kExponentBits>
__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float scale) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const float inverse = 1.0F / scale;
  uint16_t low, high;
  if constexpr (kExponentBits == 5) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;"
        : "=h"(low)
        : "f"(x[0] * inverse), "f"(x[1] * inverse));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;"
        : "=h"(high)
        : "f"(x[2] * inverse), "f"(x[3] * inverse));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(low)
        : "f"(x[0] * inverse), "f"(x[1] * inverse));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(high)
        : "f"(x[2] * inverse), "f"(x[3] * inverse));
  }
  return low | static_cast<uint32_t>(high) << 16;
#else
  const Fp8Coder<kExponentBits> coder = coder_of<kExponentBits>(scale);
  uint32_t codes = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    codes |= coder.template code<false>(x[k], 0) << (8 * k);
  }
  return codes;
#endif
}

/// 16 elements of a row for each thread.
template <int kExponentBits>
__device__ void round_rows(const Sides& args) {
  const Side& side = args.side[blockIdx.y];
  const int64_t in_row = side.cols / 8;
  const int64_t group = 2 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  const bool any = group < side.rows * in_row;
  const Eight low = any ? load_group(side, group, in_row) : Eight{};
  const Eight high = any ? load_group(side, group + 1, in_row) : Eight{};
  const float scale = find_scale(args);
  if (any) {
    const float q[4][4] = {{low.x[0], low.x[1], low.x[2], low.x[3]},
                           {low.x[4], low.x[5], low.x[6], low.x[7]},
                           {high.x[0], high.x[1], high.x[2], high.x[3]},
                           {high.x[4], high.x[5], high.x[6], high.x[7]}};
    static_cast<uint4*>(side.to)[group / 2] =
        make_uint4(four_codes<kExponentBits>(q[0], scale), four_codes<kExponentBits>(q[1], scale),
                   four_codes<kExponentBits>(q[2], scale), four_codes<kExponentBits>(q[3], scale));
  }
}

/// A tile of the operand, whose codes come in the order of its columns.
template <int kExponentBits>
__device__ void round_tile(const Sides& args) {
  __shared__ uint32_t words[kTileCols * kPitch];
  const Side& side = args.side[blockIdx.y];
  const int64_t tiles = (side.cols + kTileCols - 1) / kTileCols;
  const int64_t down = quotient(blockIdx.x, tiles);
  const int64_t first_row = down * kTileRows;
  const int64_t first_col = (blockIdx.x - down * tiles) * kTileCols;
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
  const float scale = find_scale(args);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float column[4] = {rows[0].x[j], rows[1].x[j], rows[2].x[j], rows[3].x[j]};
    words[(my_col + j) * kPitch + my_word] = four_codes<kExponentBits>(column, scale);
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

template <int kExponentBits>
__device__ __forceinline__ void round_part(const Sides& args) {
  if (args.side[blockIdx.y].transposes) {
    round_tile<kExponentBits>(args);
  } else {
    round_rows<kExponentBits>(args);
  }
}

__global__ void __launch_bounds__(kThreads) round_codes(Sides args) {
  if (args.side[blockIdx.y].wide) {
    round_part<5>(args);
  } else {
    round_part<4>(args);
  }
}

template <int kExponentBits>
__device__ __forceinline__ float rounded_number(float x, float scale) {
  const unsigned code = coder_of<kExponentBits>(scale).template code<false>(x, 0);
  return Fp8Decoder<kExponentBits>(1.0F).value(code);
}

/// A group of 8 for each thread.
__global__ void __launch_bounds__(kThreads) round_numbers(Sides args) {
  const Side& side = args.side[blockIdx.y];
  const int64_t in_row = (side.cols + 7) / 8;
  const int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool any = group < side.rows * in_row;
  const Eight from = any ? load_group(side, group, in_row) : Eight{};
  const float scale = find_scale(args);
  if (!any) {
    return;
  }
  const int64_t row = quotient(group, in_row);
  const int64_t col = 8 * (group - row * in_row);
  const Elements to{side.to, true};
  for (int k = 0; k < 8 && col + k < side.cols; ++k) {
    store(to, row * side.cols + col + k,
          side.wide ? rounded_number<5>(from.x[k], scale) : rounded_number<4>(from.x[k], scale));
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
constexpr size_t kFoundBytes = 2 * kMostParts * sizeof(int32_t);

int64_t groups_of(const Side& side) { return side.rows * divide_up(side.cols, 8); }

Side side_of(const Tensor& x, Float8 format, void* to) {
  return {.x = elements(x),
          .rows = x.rows(),
          .cols = x.cols(),
          .stride = x.stride,
          .to = to,
          .wide = format == Float8::e5m2};
}

/// Both operands, measured, in `memory`: [a][b][scales][found].
Sides measured(Stream& stream, const GemmArgs& args, std::byte* memory) {
  std::byte* const b = memory + operand_bytes(args.a);
  std::byte* const scales = b + operand_bytes(args.b);
  Sides sides{.side = {side_of(args.a, args.round_a, memory), side_of(args.b, args.round_b, b)},
              .found = reinterpret_cast<int32_t*>(scales + rounded_up(kScaleBytes)),
              .parts = 1,
              .scales = reinterpret_cast<float*>(scales)};
  for (const Side& side : sides.side) {
    const int64_t wanted = divide_up(groups_of(side), 2 * kMeasuring);
    const int64_t parts = wanted < kMostParts ? wanted : kMostParts;
    sides.parts = parts > sides.parts ? parts : sides.parts;
  }
  launch(measure_operands,
         {.name = "fp8_measure", .grid = {blocks_for(sides.parts, 1), 2}, .block = kMeasuring},
         stream, sides);
  return sides;
}

RoundedOperands operands_of(const Sides& sides) {
  return {.a = sides.side[0].to,
          .b = sides.side[1].to,
          .scale_a = sides.scales + scale_place(0),
          .scale_b = sides.scales + scale_place(1),
          .factors = sides.scales + scale_place(2)};
}

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace

size_t fp8_workspace(const GemmArgs& args) {
  return operand_bytes(args.a) + operand_bytes(args.b) + rounded_up(kScaleBytes) + kFoundBytes;
}

RoundedOperands round_to_codes(Stream& stream, const GemmArgs& args, std::byte* memory) {
  Sides sides = measured(stream, args, memory);
  sides.side[0].transposes = args.transpose_a;
  sides.side[1].transposes = !args.transpose_b;
  int64_t blocks = 1;
  for (const Side& side : sides.side) {
    blocks = larger(blocks, side.transposes
                                ? divide_up(side.rows, kTileRows) * divide_up(side.cols, kTileCols)
                                : divide_up(groups_of(side), 2 * kThreads));
  }
  launch(round_codes, {.name = "fp8_round", .grid = {blocks_for(blocks, 1), 2}, .block = kThreads},
         stream, sides);
  return operands_of(sides);
}

RoundedOperands round_to_bf16(Stream& stream, const GemmArgs& args, std::byte* memory) {
  const Sides sides = measured(stream, args, memory);
  const int64_t groups = larger(groups_of(sides.side[0]), groups_of(sides.side[1]));
  launch(
      round_numbers,
      {.name = "fp8_round_to_bf16", .grid = {blocks_for(groups, kThreads), 2}, .block = kThreads},
      stream, sides);
  launch(join_scales, {.name = "fp8_scales", .grid = 1, .block = 32}, stream, sides.scales,
         args.accumulate ? 1.0F : 0.0F);
  return operands_of(sides);
}

}  // namespace espalier::kernels::ESPALIER_GPU
