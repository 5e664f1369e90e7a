#pragma once
// How floats travel: codes of fewer bits, and what each bucket of values carries beside them. One
// message = [what buckets carry, bucket after bucket][codes, `bits` each, packed without gaps from
// the lowest bit of the first byte up]. B = values of a bucket (the last may be shorter), L =
// 2^bits - 1.
//
//   code            bits  a bucket carries        value of a code
//   fp32 bf16 fp16  32 16 16  nothing             itself; to nearest even, beyond the largest: Inf
//   fp8_e5m2        8     scale, a power of two   number * scale; E5M2 (largest 57344)
//   fp8_e4m3        8     scale, a power of two   number * scale; E4M3 without Inf (largest 448)
//   dynamic8        8     largest magnitude       dynamic tree with its root split at 0.45: 126
//                                                 magnitudes 10^-5 ... 1, zero and +-1 (Dettmers)
//   dynamic8_bnb    8     largest magnitude       the map of bitsandbytes (dynamic_map.h), its index
//   static8         8     power of ten            +- 10^-e times one of 16 leaves of (0.1, 1),
//                                                 e = 0 ... 7; zero in place of the smallest
//   mantissa8       8     power of ten            +- m 10^-e, m = 0 ... 15, e = 0 ... 7
//   linear8         8     largest magnitude       i / 127 times it, i = -127 ... 127 (int8)
//   maxmin          1-8   unit, least value       least + unit * level; unit = (max - min) / L
//   table           1-8   2^(bits-1) magnitudes   sign, and one of the percentiles 99 k / 2^(bits-1)
//                                                 of the magnitudes, k = 1 ... 2^(bits-1) (AdaPrec)
//   sign            1     mean magnitude          + or - that (1: -)
//   topk            -     its `kept` largest      per value kept: uint16 place in the bucket, bf16
//                                                 value; the others are zero
//
// What a bucket carries is fp32, little-endian, at any address; with `half_meta` unit and least
// value of maxmin are fp16, the least rounded down and the unit up. Codes with magnitudes are their
// rank, from zero up, and the sign in the highest bit (wire_tables.h). The scale of fp8 is the
// least power of two, the power of ten the least one (10^-37 ... 10^38), with which the largest
// magnitude is within the numbers, or within 1: that rule gives the ratios of Dettmers' table 2.
// Percentiles are of 2,048 values at most, evenly spaced in the bucket. topk keeps the lower place
// of equal magnitudes, in ascending places; of a short last bucket at most as many values as it
// has.
//
// A bucket of zeros decodes to zeros; of a constant, by maxmin, to the constant. A bucket with a
// NaN or an infinity decodes to NaN, all of it (fp32, bf16, fp16: the value alone): the norm of
// what was sent then tells. So does one whose range is beyond what half_meta can say. Any other
// fp32 is encoded, subnormal numbers and ranges beyond the largest float too, and no finite number
// becomes infinite (but in bf16 and fp16). Near the largest float fp8 ends at 7/8 of it, static8
// and mantissa8 at about 10^38, maxmin with one bit at least + the largest float. Decoders accept
// any bytes; places of topk that do not ascend within their bucket, or values that are not finite,
// make the bucket NaN.
//
// Rounding is to the nearest value (in the middle of two magnitudes to the smaller, else to even);
// with a key at random to one of the two neighbours, so that the mean is the value itself (maxmin,
// linear8, dynamic8, dynamic8_bnb, fp8; others round to nearest). But -1 is not in dynamic8_bnb:
// what lies beyond -0.993 of the largest magnitude becomes that. Random numbers are Philox(key,
// element), and all arithmetic is the same everywhere: bytes do not depend on threads or
// instruction sets.
//
// Sources: Dettmers, ICLR 2016, section 3; Markov and others, "CGX", Middleware 2022 (maxmin: QSGD
// in buckets); Oyama, AdaPrec, 2017 (table, fp8); Micikevicius and others, "FP8 formats", 2022.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/core/tensor.h"

namespace espalier::kernels {

enum class WireCode : uint8_t {
  fp32,
  bf16,
  fp16,
  fp8_e5m2,
  fp8_e4m3,
  dynamic8,
  dynamic8_bnb,
  static8,
  mantissa8,
  linear8,
  maxmin,
  table,
  sign,
  topk,
};
inline constexpr int kWireCodes = 14;
/// Most values of a bucket of topk.
inline constexpr int64_t kTopkBucket = 65536;

/// "fp8-e5m2", "dynamic8-bnb", …
std::string_view name_of(WireCode code);
/// Of a code with one number of bits; 0 of maxmin, table (1 to 8) and topk.
int wire_bits(WireCode code);

struct WireFormat {
  WireCode code = WireCode::fp32;
  int bits = 32;       ///< a code; of topk 0
  int64_t bucket = 0;  ///< values; 0: all values of a message are one (fp32, bf16, fp16: no matter)
  int64_t kept = 0;    ///< of topk: values a bucket of at most 65,536
  bool half_meta = false;  ///< of maxmin

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

/// y = the values of the codes, or y += with `accumulate`.
struct DecodeArgs {
  std::span<const std::byte> wire;
  Tensor y;  ///< fp32 [n], contiguous
  WireFormat format;
  bool accumulate = false;
};

}  // namespace espalier::kernels
