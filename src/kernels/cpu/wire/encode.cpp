// Small buckets are measured and encoded one by one, while they are in cache. Large buckets are
// first measured in parallel pieces; then their codes are made in separate ranges. Pieces begin at
// multiples of 8 values, so that no two threads write to one byte.
#include "src/kernels/cpu/simd/philox.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/cpu/wire/whole.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPiece = 2048;       ///< values whose codes are packed together
constexpr int64_t kLargeUnit = 65536;  ///< values; larger buckets are measured in parts
constexpr int64_t kRange = 16384;      ///< values per task

/// The encoder of one bucket, from the bucket's header: the decoder reads the same, rounded
/// numbers.
template <class Codec>
struct BucketEncoder {
  typename Codec::Encoder encoder;
  bool bad;  ///< a value was not finite: codes are zero

  void prepare(const WireFormat& format, const std::byte* wire, int64_t carried_bytes) {
    const Carried carried = get_carried(wire, carried_bytes);
    const float first = format.half_meta ? from_half(carried.word[0] & 0xffffU) : carried.scale();
    bad = first != first;
    if (!bad) {
      encoder = typename Codec::Encoder(format, carried, wire::wire_tables());
    }
  }
  template <bool kRandom>
  void encode(const float* x, int64_t n, const uint32_t* words, uint8_t* codes) const {
    encode_values<kRandom>(encoder, x, n, words, codes);
  }
};

template <int kSteps>
void encode_percentiles(const float* middle, const float* __restrict x, int64_t n,
                        uint8_t* __restrict codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(
        wire::Percentiles::code(x[i], kSteps, [=](int32_t k) { return middle[k]; }));
  }
}

template <>
struct BucketEncoder<wire::Percentiles> {
  float middle[128];  ///< between the bucket's magnitudes
  int bits;
  bool bad;

  void prepare(const WireFormat& format, const std::byte* wire, int64_t) {
    const float first = float_of(get_word(wire));
    bits = format.bits;
    bad = first != first;
    for (int k = 0; !bad && k + 1 < 1 << (bits - 1); ++k) {
      middle[k] = wire::Percentiles::middle_of(float_of(get_word(wire + 4 * k)),
                                               float_of(get_word(wire + 4 * k + 4)));
    }
  }
  template <bool>
  void encode(const float* x, int64_t n, const uint32_t*, uint8_t* codes) const {
    static constexpr decltype(&encode_percentiles<0>) kBySteps[] = {
        encode_percentiles<0>, encode_percentiles<1>, encode_percentiles<2>, encode_percentiles<3>,
        encode_percentiles<4>, encode_percentiles<5>, encode_percentiles<6>, encode_percentiles<7>};
    kBySteps[bits - 1](middle, x, n, codes);
  }
};

/// Radix sort, least significant digit first: 31 bits in three digits, so the result is in `spare`.
void sort_bits(uint32_t* keys, uint32_t* spare, int64_t n) {
  constexpr int kDigit = 11;
  constexpr uint32_t kMask = (1U << kDigit) - 1;
  for (int shift = 0; shift < 31; shift += kDigit) {
    uint32_t begin[kMask + 2] = {};
    for (int64_t i = 0; i < n; ++i) {
      ++begin[((keys[i] >> shift) & kMask) + 1];
    }
    for (uint32_t digit = 0; digit < kMask; ++digit) {
      begin[digit + 1] += begin[digit];
    }
    for (int64_t i = 0; i < n; ++i) {
      spare[begin[(keys[i] >> shift) & kMask]++] = keys[i];
    }
    uint32_t* const sorted = spare;
    spare = keys;
    keys = sorted;
  }
}

/// Writes the header of a bucket of codec "table": 2^(bits-1) magnitudes; NaN if `bad`.
void carry_percentiles(int bits, bool bad, const float* x, int64_t n, std::byte* wire) {
  const int64_t count = int64_t{1} << (bits - 1);
  uint32_t keys[wire::Percentiles::kMaxNumbers];
  uint32_t sorted[wire::Percentiles::kMaxNumbers];
  const int64_t stride = wire::Percentiles::stride_of(n);
  const int64_t taken = divide_up(n, stride);
  for (int64_t i = 0; i < taken; ++i) {
    keys[i] = bits_of(magnitude_of(x[i * stride]));
  }
  if (!bad) {
    sort_bits(keys, sorted, taken);
  }
  for (int64_t k = 1; k <= count; ++k) {
    const uint32_t found = bad ? kNaNBits : sorted[wire::Percentiles::place_of(k, taken, count)];
    __builtin_memcpy(wire + 4 * (k - 1), &found, sizeof found);
  }
}

template <class Codec>
struct Message {
  const EncodeArgs& args;
  WireLayout layout;
  const float* x;
  int64_t n;
  uint64_t key;

  explicit Message(const EncodeArgs& of)
      : args(of),
        layout(wire_layout(of.format, of.x.count())),
        x(elements<float>(of.x)),
        n(of.x.count()),
        key(Codec::kEntry.random ? of.key : 0) {}
  std::byte* carried(int64_t bucket) const { return args.wire.data() + bucket * layout.carried; }
  int64_t end_of(int64_t bucket) const { return least(n, (bucket + 1) * layout.bucket); }

  /// Writes the header of bucket `number`.
  void carry(const Measured& found, int64_t number) const {
    const int64_t begin = number * layout.bucket;
    const int64_t count = end_of(number) - begin;
    if constexpr (std::is_same_v<Codec, wire::Percentiles>) {
      carry_percentiles(args.format.bits, wire::is_bad(found), x + begin, count, carried(number));
    } else {
      put_carried(carried(number), Codec::carry(args.format, found, count, wire::wire_tables()),
                  layout.carried);
    }
  }
};

/// Encodes values [first, first + n); first is a multiple of 8. The headers of their buckets are
/// already written.
template <class Codec>
[[gnu::noinline]] void encode_range(const Message<Codec>& message, int64_t first, int64_t n) {
  const WireFormat& format = message.args.format;
  auto* const codes = message.args.wire.data() + message.layout.codes;
  BucketEncoder<Codec> bucket{};
  Words<kPiece> words;
  uint8_t staged[kPiece];
  int64_t prepared = -1;
  for (const int64_t end = first + n; first < end; first += kPiece) {
    const int64_t piece_end = least(end, first + kPiece);
    std::byte* const out = codes + first / 8 * format.bits;
    uint8_t* const into = format.bits == 8 ? reinterpret_cast<uint8_t*>(out) : staged;
    for (int64_t at = first; at < piece_end;) {
      const int64_t number = at / message.layout.bucket;
      if (number != prepared) {
        bucket.prepare(format, message.carried(number), message.layout.carried);
        prepared = number;
      }
      const int64_t part = least(piece_end, message.end_of(number)) - at;
      uint8_t* const to = into + (at - first);
      if (bucket.bad) {
        __builtin_memset(to, 0, static_cast<size_t>(part));
      } else if (Codec::kEntry.random && message.key != 0) {
        bucket.template encode<Codec::kEntry.random>(
            message.x + at, part, words.draw(message.key, message.args.first + at, part), to);
      } else {
        bucket.template encode<false>(message.x + at, part, nullptr, to);
      }
      at += part;
    }
    if (into == staged) {
      pack(staged, piece_end - first, format.bits, out);
    }
  }
}

template <class Codec>
void encode_small(const Message<Codec>& message, int64_t unit, int threads) {
  const int64_t together = divide_up(kBlock, unit) * unit;
  const int64_t bucket = message.layout.bucket;
  for_ranges(threads, message.n, together, [&](int64_t first, int64_t n) {
    for (int64_t at = first; at < first + n; at += bucket) {
      Measured found;
      measure<Codec::kFind>(message.x + at, least(bucket, message.n - at), found);
      message.carry(found, at / bucket);
    }
    encode_range(message, first, n);
  });
}

template <class Codec>
void encode_large(Stream& stream, const Message<Codec>& message) {
  const int64_t bucket = message.layout.bucket;
  const int64_t parts = divide_up(bucket, kBlock);
  auto* found = reinterpret_cast<Measured*>(cpu::workspace(
      stream, sizeof(Measured) * static_cast<size_t>(message.layout.buckets * parts)));
  if (cpu::is_dry(stream)) {
    return;
  }
  for_blocks(stream.threads(), message.layout.buckets * parts, message.n, [&](int64_t i) {
    const int64_t begin = i / parts * bucket + i % parts * kBlock;
    const int64_t length = least(kBlock, message.end_of(i / parts) - begin);
    Measured one;
    if (length > 0) {
      measure<Codec::kFind>(message.x + begin, length, one);
    }
    found[i] = one;
  });
  for_blocks(stream.threads(), message.layout.buckets, message.n, [&](int64_t number) {
    Measured all;
    for (int64_t i = 0; i < parts; ++i) {
      join(all, found[number * parts + i]);
    }
    message.carry(all, number);
  });
  for_ranges(stream.threads(), message.n, kRange,
             [&](int64_t first, int64_t n) { encode_range(message, first, n); });
}

template <class Codec>
void encode_buckets(Stream& stream, const EncodeArgs& args) {
  const Message<Codec> message(args);
  if (message.n == 0) {
    return;
  }
  // The smallest number of values in whole buckets and whole bytes.
  const int64_t bucket = message.layout.bucket;
  const int64_t unit = bucket == message.n ? bucket : bucket % 8 == 0 ? bucket : 8 * bucket;
  if (unit > kLargeUnit) {
    encode_large(stream, message);
  } else if (!cpu::is_dry(stream)) {
    encode_small(message, unit, stream.threads());
  }
}

/// Unaligned elements of type fp32, bf16 or fp16. The template argument is a struct, because
/// templates drop the alignment of a type argument.
template <class T>
struct WireElement {
  using Element [[gnu::aligned(1), gnu::may_alias]] = uint16_t;
};
template <>
struct WireElement<float> {
  using Element [[gnu::aligned(1), gnu::may_alias]] = float;
};

template <class T>
void encode_plain(Stream& stream, const EncodeArgs& args) {
  using Element = typename WireElement<T>::Element;
  for_ranges(stream.threads(), args.x.count(), kRange, [&](int64_t first, int64_t n) {
    const float* const x = elements<float>(args.x) + first;
    Element* const wire = reinterpret_cast<Element*>(args.wire.data()) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      T value;
      store(&value, x[i]);
      if constexpr (sizeof(T) == 4) {
        wire[i] = value;
      } else {
        wire[i] = value.bits;
      }
    }
  });
}

}  // namespace

void encode(Stream& stream, const EncodeArgs& args) {
  verify(args);
  with_codec(args.format.code, [&]<class Codec>(Codec) {
    if (Codec::kEntry.form != WireForm::codes && cpu::is_dry(stream)) {
      return;  // no workspace
    }
    if constexpr (Codec::kEntry.form == WireForm::plain) {
      with_type(Codec::kType, [&]<class T>(T) { encode_plain<T>(stream, args); });
    } else if constexpr (Codec::kEntry.form == WireForm::whole) {
      encode_whole<Codec>(stream, args);
    } else {
      encode_buckets<Codec>(stream, args);
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
