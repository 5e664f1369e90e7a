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

template <bool kEncodes, bool kWhole, DynamicMap kMap>
__device__ __forceinline__ void code_block(const Codes& args, const CodeTable<kMap>& table,
                                           int64_t block, int64_t first) {
  if constexpr (kEncodes) {
    quantize_block<kWhole>(args, table, block, first);
  } else {
    dequantize_block<kWhole>(args, table, block, first);
  }
}

template <DynamicMap kMap, bool kEncodes>
__global__ void __launch_bounds__(32 * kWarps) code_blocks(Codes args) {
  __shared__ CodeTable<kMap> table;
  table.fill();
  __syncthreads();
  int64_t block = int64_t{blockIdx.x} * kBlocksEach * kWarps + threadIdx.x / 32;
  for (int i = 0; i < kBlocksEach && block * kQuantizeBlock < args.n; ++i, block += kWarps) {
    const int64_t first = block * kQuantizeBlock + 4 * (threadIdx.x % 32);  // of this lane
    if (args.whole && (block + 1) * kQuantizeBlock <= args.n) {
      code_block<kEncodes, true>(args, table, block, first);
    } else {
      code_block<kEncodes, false>(args, table, block, first);
    }
  }
}

template <bool kEncodes, class Args>
void run(Stream& stream, const char* name, const Args& args) {
  const int64_t n = args.x.count();
  Codes codes{.x = static_cast<float*>(args.x.data),
              .codes = static_cast<uint8_t*>(args.codes.data),
              .scales = static_cast<float*>(args.scales.data),
              .n = n};
  codes.whole = has_whole_quads(codes.x) && has_whole_quads(codes.codes);
  launch(args.map == DynamicMap::with_sign ? code_blocks<DynamicMap::with_sign, kEncodes>
                                           : code_blocks<DynamicMap::without_sign, kEncodes>,
         {.name = name,
          .grid = blocks_for(n, kBlocksEach * kWarps * kQuantizeBlock),
          .block = 32 * kWarps},
         stream, codes);
}

}  // namespace

void quantize(Stream& stream, const QuantizeArgs& args) { run<true>(stream, "quantize", args); }

void dequantize(Stream& stream, const DequantizeArgs& args) {
  run<false>(stream, "dequantize", args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
