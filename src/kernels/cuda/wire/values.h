#pragma once
// Converts values to codes and back, one value or one quad at a time, by a codec's rules
// (rules/wire/). Fp8 uses the device's instructions if it has them.
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/cuda/wire/message.h"
#include "src/kernels/cuda/wire/pack.h"

namespace espalier::kernels::ESPALIER_GPU {

template <class Codec>
struct BucketEncoder {
  typename Codec::Encoder encoder;
  __device__ BucketEncoder(const Message& message, const BucketWords& carried)
      : encoder(message.format, carried.words, *message.tables) {}
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t word) const {
    return encoder.template code<kRandom>(x, word);
  }
};
template <>
struct BucketEncoder<wire::Percentiles> {
  const std::byte* carried;
  int steps;
  __device__ BucketEncoder(const Message& message, const BucketWords& of)
      : carried(of.wire), steps(message.format.bits - 1) {}
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t) const {
    return wire::Percentiles::code(x, steps, [this](int k) {
      return wire::Percentiles::middle_of(get_float(carried + 4 * k),
                                          get_float(carried + 4 * k + 4));
    });
  }
};

/// `values` of the codes are in shared memory, where divergent reads cost less.
template <class Codec>
struct BucketDecoder {
  typename Codec::Decoder decoder;
  __device__ BucketDecoder(const Message& message, const BucketWords& carried, const float* values)
      : decoder(message.format, carried.words, values) {}
  __device__ __forceinline__ float value(unsigned code) const { return decoder.value(code); }
};
template <>
struct BucketDecoder<wire::Percentiles> {
  const std::byte* carried;
  int bits;
  __device__ BucketDecoder(const Message& message, const BucketWords& of, const float*)
      : carried(of.wire), bits(message.format.bits) {}
  __device__ __forceinline__ float value(unsigned code) const {
    return wire::Percentiles::value(code, bits,
                                    [this](uint32_t k) { return get_float(carried + 4 * k); });
  }
};

template <class Codec>
inline constexpr bool kHasTable = requires {
  Codec::kSet;
};
/// Bits of a code; a compile-time constant for codecs with a fixed size.
template <class Codec>
__device__ __forceinline__ int bits_of_code(const Message& message) {
  return Codec::kEntry.bits == 0 ? message.format.bits : Codec::kEntry.bits;
}

/// Four codes of one bucket.
template <class Codec, bool kRandom>
__device__ __forceinline__ uint32_t four_codes(const BucketEncoder<Codec>& bucket, const Quad& q,
                                               const Words& words) {
  if constexpr (requires { Codec::kExponentBits; } && kConvertsFp8 && !kRandom) {
    const auto& [to, top] = bucket.encoder;
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = fminf(fmaxf(wire::scaled(q.x[k], to), -top), top);
    }
    return to_fp8_pair<Codec::kExponentBits>(v[0], v[1]) |
           to_fp8_pair<Codec::kExponentBits>(v[2], v[3]) << 16;
  } else {
    uint32_t code[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      code[k] = bucket.template code<kRandom>(q.x[k], words.word[k]);
    }
    return pack_bytes(code[0], code[1], code[2], code[3]);
  }
}

/// The values of four codes of one bucket.
template <class Codec>
__device__ __forceinline__ Quad four_values(const BucketDecoder<Codec>& bucket, uint32_t codes) {
  Quad q;
  if constexpr (requires { Codec::kExponentBits; } && kConvertsFp8) {
    q = quad_of(DType::fp16, make_uint2(from_fp8_pair<Codec::kExponentBits>(codes & 0xffffU),
                                        from_fp8_pair<Codec::kExponentBits>(codes >> 16)));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] *= bucket.decoder.scale;
    }
  } else {
    bool usual = false;
    if constexpr (requires { bucket.decoder.huge; }) {  // one branch: few buckets are huge
      usual = !bucket.decoder.huge;
      if (usual) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          q.x[k] = bucket.decoder.usual_value(codes >> (8 * k) & 255U);
        }
      }
    }
    if (!usual) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        q.x[k] = bucket.value(codes >> (8 * k) & 255U);
      }
    }
  }
  return q;
}

}  // namespace espalier::kernels::ESPALIER_GPU
