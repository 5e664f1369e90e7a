#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/wire/bucket.h"
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/topk.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPiece = 2048;   ///< values whose codes were unpacked
constexpr int64_t kRange = 16384;  ///< values of a task

/// Numbers at any address. Structures, since a template forgets the alignment of a mere alias.
struct [[gnu::packed, gnu::may_alias]] UnalignedFloat {
  float value;
};
struct [[gnu::packed, gnu::may_alias]] UnalignedHalf {
  uint16_t value;
};

/// y (+)= value(code)
template <bool kAccumulate, class Code, class Value>
[[gnu::always_inline]] inline void decode_each(const Code* __restrict codes, int64_t n,
                                               float* __restrict y, const Value& value) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float one = value(codes[i]);
    y[i] = kAccumulate ? y[i] + one : one;
  }
}

template <bool kAccumulate>
void decode_maxmin(const BucketDecoder& bucket, const uint8_t* codes, int64_t n, float* y) {
  const float least = bucket.least;
  const float unit = bucket.unit;
  if (!bucket.huge) {
    decode_each<kAccumulate>(codes, n, y, [=](uint8_t code) {
      return least + unit * static_cast<float>(static_cast<int32_t>(code));
    });
    return;
  }
  constexpr float kMost = 0.25F * kLargest;
  const float fourth = 0.25F * least;
  const float step = 0.25F * unit;
  decode_each<kAccumulate>(codes, n, y, [=](uint8_t code) {
    float sum = fourth + step * static_cast<float>(static_cast<int32_t>(code));
    sum = sum > kMost ? kMost : sum;  // NaN stays
    sum = sum < -kMost ? -kMost : sum;
    return 4.0F * sum;
  });
}

template <int kExponentBits, bool kAccumulate>
void decode_fp8(const BucketDecoder& bucket, const uint8_t* codes, int64_t n, float* y) {
  constexpr int kMantissaBits = 7 - kExponentBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr uint32_t kRebias = (127U - kBias) << 23;
  constexpr float kUnit =
      __builtin_bit_cast(float, (128U - kBias) << 23) / (1 << kMantissaBits);  // of subnormals
  // Beyond the largest: E5M2 has an infinity and NaN, E4M3 one NaN.
  constexpr uint32_t kLast = kExponentBits == 5 ? 0x7bU : 0x7eU;
  const float scale = bucket.scale;
  decode_each<kAccumulate>(codes, n, y, [=](uint8_t code) {
    const uint32_t magnitude = code & 0x7fU;
    const uint32_t moved = magnitude << (23 - kMantissaBits);
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * kUnit;
    uint32_t bits =
        magnitude < (1U << kMantissaBits) ? __builtin_bit_cast(uint32_t, small) : moved + kRebias;
    // The E4M3 NaN has all bits of the mantissa set.
    bits = magnitude > kLast ? moved | kInfinite : bits;
    bits |= (code & 0x80U) << 24;
    return __builtin_bit_cast(float, bits) * scale;
  });
}

template <bool kAccumulate>
void decode_values(const WireFormat& format, const BucketDecoder& bucket, const uint8_t* codes,
                   int64_t n, float* y) {
  const float scale = bucket.scale;
  const float* const values = bucket.value;
  switch (format.code) {
    case WireCode::maxmin:
      return decode_maxmin<kAccumulate>(bucket, codes, n, y);
    case WireCode::fp8_e5m2:
      return decode_fp8<5, kAccumulate>(bucket, codes, n, y);
    case WireCode::fp8_e4m3:
      return decode_fp8<4, kAccumulate>(bucket, codes, n, y);
    case WireCode::linear8:  // 127 (1 / 127) is 1
      return decode_each<kAccumulate>(codes, n, y, [=](uint8_t code) {
        return static_cast<float>(static_cast<int8_t>(code)) * (1.0F / 127.0F) * scale;
      });
    default:
      return decode_each<kAccumulate>(codes, n, y,
                                      [=](uint8_t code) { return values[code] * scale; });
  }
}

/// Values [first, first + n), first a multiple of 8.
template <bool kAccumulate>
void decode_range(const DecodeArgs& args, const WireLayout& layout, int64_t first, int64_t n) {
  const WireFormat& format = args.format;
  const std::byte* const codes = args.wire.data() + layout.codes;
  float* const y = elements<float>(args.y);
  BucketDecoder bucket;
  uint8_t staged[kPiece];
  int64_t prepared = -1;
  for (const int64_t end = first + n; first < end; first += kPiece) {
    const int64_t piece_end = least(end, first + kPiece);
    const std::byte* const in = codes + first / 8 * format.bits;
    const auto* from = reinterpret_cast<const uint8_t*>(in);
    if (format.bits < 8) {
      unpack(in, piece_end - first, format.bits, staged);
      from = staged;
    }
    for (int64_t at = first; at < piece_end;) {
      const int64_t number = at / layout.bucket;
      if (number != prepared) {
        prepare(format, args.wire.data() + number * layout.carried, bucket);
        prepared = number;
      }
      const int64_t part = least(piece_end, (number + 1) * layout.bucket) - at;
      decode_values<kAccumulate>(format, bucket, from + (at - first), part, y + at);
      at += part;
    }
  }
}

void decode_buckets(Stream& stream, const DecodeArgs& args) {
  const int64_t n = args.y.count();
  const WireLayout layout = wire_layout(args.format, n);
  for_ranges(stream.threads(), n, kRange, [&](int64_t first, int64_t length) {
    args.accumulate ? decode_range<true>(args, layout, first, length)
                    : decode_range<false>(args, layout, first, length);
  });
}

template <class Wire, class Convert>
void decode_plain(Stream& stream, const DecodeArgs& args, const Convert& convert) {
  float* const y = elements<float>(args.y);
  const auto* const wire = reinterpret_cast<const Wire*>(args.wire.data());
  for_ranges(stream.threads(), args.y.count(), kRange, [&](int64_t first, int64_t n) {
    args.accumulate ? decode_each<true>(wire + first, n, y + first, convert)
                    : decode_each<false>(wire + first, n, y + first, convert);
  });
}

}  // namespace

void decode_values(const WireFormat& format, const BucketDecoder& bucket, const uint8_t* codes,
                   int64_t n, float* y) {
  decode_values<false>(format, bucket, codes, n, y);
}

void decode(Stream& stream, const DecodeArgs& args) {
  verify(args);
  switch (args.format.code) {
    case WireCode::fp32:
      return decode_plain<UnalignedFloat>(stream, args, [](UnalignedFloat x) { return x.value; });
    case WireCode::bf16:
      return decode_plain<UnalignedHalf>(stream, args, [](UnalignedHalf x) {
        return __builtin_bit_cast(float, uint32_t{x.value} << 16);
      });
    case WireCode::fp16:
      return decode_plain<UnalignedHalf>(stream, args,
                                         [](UnalignedHalf x) { return to_float(fp16{x.value}); });
    case WireCode::topk:
      return decode_topk(stream, args);
    default:
      return decode_buckets(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
