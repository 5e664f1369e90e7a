#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/cpu/wire/whole.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPiece = 2048;   ///< values whose codes are unpacked at a time
constexpr int64_t kRange = 16384;  ///< values per task

/// The decoder of one bucket, from the bucket's header.
template <class Codec>
struct BucketDecoder {
  typename Codec::Decoder decoder;

  void prepare(const WireFormat& format, const std::byte* wire, int64_t carried_bytes) {
    const float* values = nullptr;
    if constexpr (requires { Codec::kSet; }) {
      values = wire::wire_tables().of(Codec::kSet).value;
    }
    decoder = typename Codec::Decoder(format, get_carried(wire, carried_bytes), values);
  }
  template <bool kAccumulate>
  void decode(const uint8_t* codes, int64_t n, float* y) const {
    decode_values<kAccumulate>(decoder, codes, n, y);
  }
};

template <>
struct BucketDecoder<wire::Percentiles> {
  float values[256];  ///< of each code

  void prepare(const WireFormat& format, const std::byte* wire, int64_t) {
    for (uint32_t code = 0; code < 1U << format.bits; ++code) {
      values[code] = wire::Percentiles::value(
          code, format.bits, [=](uint32_t k) { return float_of(get_word(wire + 4 * size_t{k})); });
    }
  }
  template <bool kAccumulate>
  void decode(const uint8_t* codes, int64_t n, float* y) const {
    const float* const of_code = values;
    decode_each<kAccumulate>(codes, n, y, [=](uint8_t code) { return of_code[code]; });
  }
};

/// Decodes values [first, first + n); first is a multiple of 8.
template <class Codec, bool kAccumulate>
void decode_range(const DecodeArgs& args, const WireLayout& layout, int64_t first, int64_t n) {
  const WireFormat& format = args.format;
  const std::byte* const codes = args.wire.data() + layout.codes;
  float* const y = elements<float>(args.y);
  BucketDecoder<Codec> bucket{};
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
        bucket.prepare(format, args.wire.data() + number * layout.carried, layout.carried);
        prepared = number;
      }
      const int64_t part = least(piece_end, (number + 1) * layout.bucket) - at;
      bucket.template decode<kAccumulate>(from + (at - first), part, y + at);
      at += part;
    }
  }
}

template <class Codec>
void decode_buckets(Stream& stream, const DecodeArgs& args) {
  const int64_t n = args.y.count();
  const WireLayout layout = wire_layout(args.format, n);
  for_ranges(stream.threads(), n, kRange, [&](int64_t first, int64_t length) {
    args.accumulate ? decode_range<Codec, true>(args, layout, first, length)
                    : decode_range<Codec, false>(args, layout, first, length);
  });
}

/// Unaligned elements. A struct, because templates drop the alignment of an alias.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  decltype(T::bits) bits;
  [[gnu::always_inline]] float value() const {
    const T one{bits};
    return load(&one);
  }
};
template <>
struct [[gnu::packed, gnu::may_alias]] Unaligned<float> {
  float bits;
  [[gnu::always_inline]] float value() const { return bits; }
};

template <class T>
void decode_plain(Stream& stream, const DecodeArgs& args) {
  float* const y = elements<float>(args.y);
  const auto* const wire = reinterpret_cast<const Unaligned<T>*>(args.wire.data());
  const auto value = [](Unaligned<T> x) { return x.value(); };
  for_ranges(stream.threads(), args.y.count(), kRange, [&](int64_t first, int64_t n) {
    args.accumulate ? decode_each<true>(wire + first, n, y + first, value)
                    : decode_each<false>(wire + first, n, y + first, value);
  });
}

}  // namespace

void decode(Stream& stream, const DecodeArgs& args) {
  verify(args);
  with_codec(args.format.code, [&]<class Codec>(Codec) {
    if constexpr (Codec::kEntry.form == WireForm::plain) {
      with_type(Codec::kType, [&]<class T>(T) { decode_plain<T>(stream, args); });
    } else if constexpr (Codec::kEntry.form == WireForm::whole) {
      decode_whole<Codec>(stream, args);
    } else {
      decode_buckets<Codec>(stream, args);
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
