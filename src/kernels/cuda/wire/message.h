#pragma once
// A message on the device: its parts, and access to words at any address. One thread computes the
// bytes that a bucket carries, from the results of a pass over its values. Encoder and decoder use
// only those carried bytes. Sources that include this are compiled without contraction
// (sources.cmake).
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::kernels::ESPALIER_GPU {

using wire::Carried;
using wire::Measured;

/// The device's copy of the tables; null on a dry arena.
const wire::WireTables* wire_tables(Stream& stream);

/// A message as kernels access it.
struct Message {
  std::byte* wire;
  float* x;  ///< values
  int64_t n, bucket, buckets, carried, codes;
  WireFormat format;
  const wire::WireTables* tables;
  /// True if values are aligned to 16 bytes, and carried bytes and codes to 4, and a bucket has
  /// 2^shift >= 4 values or there is one bucket (shift 63).
  bool whole;
  int shift;

  __device__ std::byte* carried_by(int64_t number) const { return wire + number * carried; }
};
Message message_of(Stream& stream, const WireFormat& format, const void* wire, const Tensor& x);

// Access to words at any address.

__device__ __forceinline__ uint32_t get_half(const std::byte* p) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p);
  return static_cast<uint32_t>(bytes[0] | bytes[1] << 8);
}
template <bool kAligned = false>
__device__ __forceinline__ uint32_t get_word(const std::byte* p) {
  if (kAligned || aligned(p, 4)) {
    return *reinterpret_cast<const uint32_t*>(p);
  }
  return get_half(p) | get_half(p + 2) << 16;
}
template <bool kAligned = false>
__device__ __forceinline__ float get_float(const std::byte* p) {
  return float_of(get_word<kAligned>(p));
}
__device__ __forceinline__ void put_word(std::byte* p, uint32_t word) {
  if (aligned(p, 4)) {
    *reinterpret_cast<uint32_t*>(p) = word;
    return;
  }
  for (int b = 0; b < 4; ++b) {
    p[b] = static_cast<std::byte>(word >> (8 * b));
  }
}

/// The carried bytes of one bucket.
struct BucketWords {
  const std::byte* wire;
  Carried words;
};
template <class Codec, bool kAligned = false>
__device__ __forceinline__ BucketWords read_carried(const Message& message, int64_t number) {
  const std::byte* wire = message.carried_by(number);
  Carried words{{get_word<kAligned>(wire), 0U}};
  if constexpr (Codec::kFind == Find::range) {
    words.word[1] = message.format.half_meta ? 0U : get_word<kAligned>(wire + 4);
  }
  return {wire, words};
}
/// True if the bucket has a non-finite value; its codes are then zero.
template <class Codec>
__device__ __forceinline__ bool is_bad(const Message& message, const BucketWords& carried) {
  float first = carried.words.scale();
  if constexpr (Codec::kEntry.half_meta) {
    first = message.format.half_meta ? kernels::from_half(carried.words.word[0] & 0xffffU) : first;
  }
  return first != first;
}

/// Writes the carried bytes of every bucket of the message.
template <class Codec>
void measure_buckets(Stream& stream, const Message& message);

/// Codecs of WireForm::whole: each defines these two functions in its own file.
template <class Codec>
void encode_whole(Stream& stream, const Message& message, const EncodeArgs& args);
template <class Codec>
void decode_whole(Stream& stream, const Message& message, bool accumulate);

#define ESPALIER_WIRE_CODEC(code, Codec)                                                           \
  template <>                                                                                      \
  void measure_buckets<wire::Codec>(Stream & stream, const Message& message);                      \
  template <>                                                                                      \
  void encode_whole<wire::Codec>(Stream & stream, const Message& message, const EncodeArgs& args); \
  template <>                                                                                      \
  void decode_whole<wire::Codec>(Stream & stream, const Message& message, bool accumulate);
ESPALIER_WIRE_CODECS(ESPALIER_WIRE_CODEC)
#undef ESPALIER_WIRE_CODEC

}  // namespace espalier::kernels::ESPALIER_GPU
