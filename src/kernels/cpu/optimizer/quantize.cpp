#include "src/kernels/cpu/optimizer/dynamic_code.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Calls body(block, first, n) for the blocks that share a scale.
template <class Body>
void for_scales(int threads, int64_t count, const Body& body) {
  for_ranges(threads, count, kBlock, [&](int64_t begin, int64_t length) {
    for (int64_t first = begin; first < begin + length; first += kQuantizeBlock) {
      body(first / kQuantizeBlock, first, least(kQuantizeBlock, begin + length - first));
    }
  });
}

/// Calls body<map>().
template <class Body>
void with_map(DynamicMap map, const Body& body) {
  map == DynamicMap::with_sign ? body.template operator()<DynamicMap::with_sign>()
                               : body.template operator()<DynamicMap::without_sign>();
}

}  // namespace

void quantize(Stream& stream, const QuantizeArgs& args) {
  const float* x = elements<float>(args.x);
  auto* codes = elements<uint8_t>(args.codes);
  float* scales = elements<float>(args.scales);
  with_map(args.map, [&]<DynamicMap kMap>() {
    for_scales(stream.threads(), args.x.count(), [&](int64_t block, int64_t first, int64_t n) {
      scales[block] = encode<kMap>(x + first, n, codes + first);
    });
  });
}

void dequantize(Stream& stream, const DequantizeArgs& args) {
  const auto* codes = elements<uint8_t>(args.codes);
  const float* scales = elements<float>(args.scales);
  float* x = elements<float>(args.x);
  with_map(args.map, [&]<DynamicMap kMap>() {
    for_scales(stream.threads(), args.x.count(), [&](int64_t block, int64_t first, int64_t n) {
      decode<kMap>(codes + first, scales[block], n, x + first);
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
