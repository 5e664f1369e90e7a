#pragma once
// Wire formats: encodings of fp32 values as bytes. rules/wire/codecs.h lists the codecs, and each
// codec's file there defines its bytes.
//
//   message = [header of each bucket][codes, `bits` each, packed without gaps from the lowest bit
//             of the first byte up]
//
// Codecs that encode a bucket as a whole (topk, eden) write buckets one after another instead. A
// bucket has `bucket` values; the last may be shorter. Numbers in a bucket's header are
// little-endian, at any address.
//
// Every codec keeps these rules:
//   zeros       a bucket of zeros decodes to zeros
//   not finite  a bucket with a NaN or an infinity decodes to NaN in all elements (fp32, bf16,
//               fp16: in that element alone), so the norm of the decoded gradient shows it
//   finite      any finite fp32 can be encoded, including subnormal numbers and ranges beyond the
//               largest float; none becomes infinite, except in bf16 and fp16
//   decoding    accepts any bytes
//   rounding    without a key, to the nearest value (halfway between two magnitudes: to the
//               smaller; without such magnitudes: to even). With a key, stochastic: to one of the
//               two neighbours, so that the expectation is the value itself, if the codec supports
//               it (WireCodec::random). Random numbers are Philox(key, element)
//   bytes       do not depend on threads, instruction sets or devices
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Enumerators are in rules/wire/codecs.h; only sources that name one include it. 0: fp32.
enum class WireCode : uint8_t;
/// "fp8-e5m2", "dynamic8-bnb", …
std::string_view name_of(WireCode code);

struct WireFormat {
  WireCode code = WireCode{};
  int bits = 32;           ///< of a code; 0 for topk
  int64_t bucket = 0;      ///< values; 0: the message is one bucket (unused by fp32, bf16, fp16)
  int64_t kept = 0;        ///< topk: values kept in each bucket
  bool half_meta = false;  ///< maxmin: bucket headers are fp16

  bool operator==(const WireFormat&) const = default;
};

/// Bytes of a message of n values.
size_t wire_bytes(const WireFormat& format, int64_t n);

/// x → wire.
struct EncodeArgs {
  Tensor x;                   ///< fp32 [n], contiguous
  std::span<std::byte> wire;  ///< wire_bytes(format, n), any alignment
  WireFormat format;
  uint64_t key = 0;   ///< 0: to nearest
  int64_t first = 0;  ///< number of x[0], for random rounding
};

/// y = the decoded values; with `accumulate`, y += the decoded values.
struct DecodeArgs {
  std::span<const std::byte> wire;
  Tensor y;  ///< fp32 [n], contiguous
  WireFormat format;
  bool accumulate = false;
};

}  // namespace espalier::kernels
