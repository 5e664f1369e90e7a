// 8-bit codes: a warp a block of kQuantizeBlock numbers.
#include "src/kernels/cuda/dynamic_code.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
static_assert(kQuantizeBlock == 2 * 4 * 32);

struct Codes {
  float* x;
  uint8_t* codes;
  float* scales;
  int64_t n;
};

/// Where this lane's two quads begin; the second 128 further on.
struct LaneQuads {
  int64_t block, first;
  __device__ LaneQuads()
      : block(int64_t{blockIdx.x} * kWarps + threadIdx.x / 32),
        first(block * kQuantizeBlock + 4 * (threadIdx.x % 32)) {}
};

template <DynamicMap kMap>
__global__ void __launch_bounds__(32 * kWarps) quantize_block(Codes args) {
  const LaneQuads at;
  if (at.block * kQuantizeBlock >= args.n) {
    return;
  }
  const int64_t count = args.n - at.first;
  const Quad a = load_quad(args.x, at.first, count);
  const Quad b = load_quad(args.x, at.first + 128, count - 128);
  const CodeScale scale = warp_scale(a, b);
  store_codes(args.codes, at.first, count, encode_quad<kMap>(a, scale.inverse));
  store_codes(args.codes, at.first + 128, count - 128, encode_quad<kMap>(b, scale.inverse));
  if (threadIdx.x % 32 == 0) {
    args.scales[at.block] = scale.scale;
  }
}

template <DynamicMap kMap>
__global__ void __launch_bounds__(32 * kWarps) dequantize_block(Codes args) {
  const LaneQuads at;
  if (at.block * kQuantizeBlock >= args.n) {
    return;
  }
  const int64_t count = args.n - at.first;
  const float scale = args.scales[at.block];
  const unsigned a = load_codes(args.codes, at.first, count);
  const unsigned b = load_codes(args.codes, at.first + 128, count - 128);
  store_quad(args.x, at.first, count, decode_quad<kMap>(a, scale));
  store_quad(args.x, at.first + 128, count - 128, decode_quad<kMap>(b, scale));
}

template <class Args>
void run(Stream& stream, const char* name, void (*kernel)(Codes), const Args& args) {
  const int64_t n = args.x.count();
  const Codes codes{static_cast<float*>(args.x.data), static_cast<uint8_t*>(args.codes.data),
                    static_cast<float*>(args.scales.data), n};
  launch(kernel,
         {.name = name, .grid = blocks_for(n, kWarps * kQuantizeBlock), .block = 32 * kWarps},
         stream, codes);
}

}  // namespace

void quantize(Stream& stream, const QuantizeArgs& args) {
  verify(args);
  run(stream, "quantize",
      args.map == DynamicMap::with_sign ? quantize_block<DynamicMap::with_sign>
                                        : quantize_block<DynamicMap::without_sign>,
      args);
}

void dequantize(Stream& stream, const DequantizeArgs& args) {
  verify(args);
  run(stream, "dequantize",
      args.map == DynamicMap::with_sign ? dequantize_block<DynamicMap::with_sign>
                                        : dequantize_block<DynamicMap::without_sign>,
      args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
