// 8-bit codes: one warp per block of kQuantizeBlock numbers.
#include "src/kernels/cuda/optimizer/dynamic_code.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
static_assert(kQuantizeBlock == 2 * 4 * 32);

struct Codes {
  float* x;
  uint8_t* codes;
  float* scales;
  int64_t n;
  bool whole;  ///< all quads are aligned
};

/// Blocks that a warp processes in sequence.
constexpr int kBlocksEach = 4;

template <bool kWhole, DynamicMap kMap>
__device__ __forceinline__ void quantize_block(const Codes& args, const CodeTable<kMap>& table,
                                               int64_t block, int64_t first) {
  const int64_t count = args.n - first;
  const Quad a = load_quad<kWhole>(args.x, first, count);
  const Quad b = load_quad<kWhole>(args.x, first + 128, count - 128);
  const BlockScale scale = warp_scale(a, b);
  store_codes<kWhole>(args.codes, first, count, table.encode(a, scale.inverse));
  store_codes<kWhole>(args.codes, first + 128, count - 128, table.encode(b, scale.inverse));
  if (threadIdx.x % 32 == 0) {
    args.scales[block] = scale.scale;
  }
}

template <bool kWhole, DynamicMap kMap>
__device__ __forceinline__ void dequantize_block(const Codes& args, const CodeTable<kMap>& table,
                                                 int64_t block, int64_t first) {
  const int64_t count = args.n - first;
  const float scale = args.scales[block];
  const unsigned a = load_codes<kWhole>(args.codes, first, count);
  const unsigned b = load_codes<kWhole>(args.codes, first + 128, count - 128);
  store_quad<kWhole>(args.x, first, count, table.decode(a, scale));
  store_quad<kWhole>(args.x, first + 128, count - 128, table.decode(b, scale));
}

/// Calls visit(block, first, whole) for the blocks of a warp: `first` is the index of this lane's
/// first quad; `whole` is true if the block's quads are whole.
template <class Visit>
__device__ __forceinline__ void for_blocks(const Codes& args, const Visit& visit) {
  int64_t block = int64_t{blockIdx.x} * kBlocksEach * kWarps + threadIdx.x / 32;
  for (int i = 0; i < kBlocksEach && block * kQuantizeBlock < args.n; ++i, block += kWarps) {
    visit(block, block * kQuantizeBlock + 4 * (threadIdx.x % 32),
          args.whole && (block + 1) * kQuantizeBlock <= args.n);
  }
}

template <DynamicMap kMap>
__global__ void __launch_bounds__(32 * kWarps) quantize_blocks(Codes args) {
  __shared__ CodeTable<kMap> table;
  table.fill();
  __syncthreads();
  for_blocks(args, [&](int64_t block, int64_t first, bool whole) {
    if (whole) {
      quantize_block<true>(args, table, block, first);
    } else {
      quantize_block<false>(args, table, block, first);
    }
  });
}

template <DynamicMap kMap>
__global__ void __launch_bounds__(32 * kWarps) dequantize_blocks(Codes args) {
  __shared__ CodeTable<kMap> table;
  table.fill();
  __syncthreads();
  for_blocks(args, [&](int64_t block, int64_t first, bool whole) {
    if (whole) {
      dequantize_block<true>(args, table, block, first);
    } else {
      dequantize_block<false>(args, table, block, first);
    }
  });
}

template <class Args>
void run(Stream& stream, const char* name, void (*kernel)(Codes), const Args& args) {
  const int64_t n = args.x.count();
  Codes codes{.x = static_cast<float*>(args.x.data),
              .codes = static_cast<uint8_t*>(args.codes.data),
              .scales = static_cast<float*>(args.scales.data),
              .n = n};
  codes.whole = has_whole_quads(codes.x) && has_whole_quads(codes.codes);
  launch(kernel,
         {.name = name,
          .grid = blocks_for(n, kBlocksEach * kWarps * kQuantizeBlock),
          .block = 32 * kWarps},
         stream, codes);
}

}  // namespace

void quantize(Stream& stream, const QuantizeArgs& args) {
  run(stream, "quantize",
      args.map == DynamicMap::with_sign ? quantize_blocks<DynamicMap::with_sign>
                                        : quantize_blocks<DynamicMap::without_sign>,
      args);
}

void dequantize(Stream& stream, const DequantizeArgs& args) {
  run(stream, "dequantize",
      args.map == DynamicMap::with_sign ? dequantize_blocks<DynamicMap::with_sign>
                                        : dequantize_blocks<DynamicMap::without_sign>,
      args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
