// Small buckets are measured and encoded one after the other, while they are in cache. Of large
// ones first all pieces are measured, side by side, then the codes are made in ranges of their own.
// Pieces begin at multiples of 8 values, so that no two threads write to one byte.
#include "src/kernels/cpu/simd/philox.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/topk.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPiece = 2048;       ///< values whose codes wait to be packed
constexpr int64_t kLargeUnit = 65536;  ///< values: beyond, buckets are measured in parts
constexpr int64_t kRange = 16384;      ///< values of a task

/// Codes that are rounded at random when there is a key.
bool may_be_random(WireCode code) {
  return code != WireCode::static8 && code != WireCode::mantissa8 && code != WireCode::table &&
         code != WireCode::sign;
}

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
        key(may_be_random(of.format.code) ? of.key : 0) {}
  std::byte* carried(int64_t bucket) const { return args.wire.data() + bucket * layout.carried; }
  int64_t end_of(int64_t bucket) const { return least(n, (bucket + 1) * layout.bucket); }
};

/// Makes the codes of values [first, first + n), first a multiple of 8; their buckets carry already
/// what they do.
void encode_range(const Message& message, int64_t first, int64_t n) {
  const WireFormat& format = message.args.format;
  auto* const codes = message.args.wire.data() + message.layout.codes;
  BucketEncoder bucket;
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
        prepare(format, message.carried(number), bucket);
        prepared = number;
      }
      const int64_t part = least(piece_end, message.end_of(number)) - at;
      const uint32_t* const drawn =
          message.key == 0 ? nullptr : words.draw(message.key, message.args.first + at, part);
      encode_values(format, bucket, message.x + at, part, drawn, into + (at - first));
      at += part;
    }
    if (into == staged) {
      pack(staged, piece_end - first, format.bits, out);
    }
  }
}

void encode_small(const Message& message, int64_t unit, int threads) {
  const int64_t together = divide_up(kBlock, unit) * unit;
  const int64_t bucket = message.layout.bucket;
  for_ranges(threads, message.n, together, [&](int64_t first, int64_t n) {
    for (int64_t at = first; at < first + n; at += bucket) {
      const int64_t length = least(bucket, message.n - at);
      Measured found;
      measure(message.args.format.code, message.x + at, length, found);
      carry(message.args.format, found, message.x + at, length, message.carried(at / bucket));
    }
    encode_range(message, first, n);
  });
}

void encode_large(Stream& stream, const Message& message) {
  const WireFormat& format = message.args.format;
  const int64_t bucket = message.layout.bucket;
  const int64_t parts = divide_up(bucket, kBlock);
  auto* found = reinterpret_cast<Measured*>(cpu::workspace(
      stream, sizeof(Measured) * static_cast<size_t>(message.layout.buckets * parts)));
  for_blocks(stream.threads(), message.layout.buckets * parts, message.n, [&](int64_t i) {
    const int64_t begin = i / parts * bucket + i % parts * kBlock;
    const int64_t length = least(kBlock, message.end_of(i / parts) - begin);
    Measured one;
    if (length > 0) {
      measure(format.code, message.x + begin, length, one);
    }
    found[i] = one;
  });
  for_blocks(stream.threads(), message.layout.buckets, message.n, [&](int64_t number) {
    Measured all;
    for (int64_t i = 0; i < parts; ++i) {
      join(all, found[number * parts + i]);
    }
    const int64_t begin = number * bucket;
    carry(format, all, message.x + begin, message.end_of(number) - begin, message.carried(number));
  });
  for_ranges(stream.threads(), message.n, kRange,
             [&](int64_t first, int64_t n) { encode_range(message, first, n); });
}

void encode_buckets(Stream& stream, const EncodeArgs& args) {
  const Message message(args);
  if (message.n == 0) {
    return;
  }
  // The least number of values that is of whole buckets and whole bytes.
  const int64_t bucket = message.layout.bucket;
  const int64_t unit = bucket == message.n ? bucket : bucket % 8 == 0 ? bucket : 8 * bucket;
  if (unit <= kLargeUnit) {
    encode_small(message, unit, stream.threads());
  } else {
    encode_large(stream, message);
  }
}

/// What fp32, bf16 and fp16 write, at any address. Not the elements themselves are arguments of
/// templates: those forget the alignment.
struct WireFloat {
  using Element [[gnu::aligned(1), gnu::may_alias]] = float;
};
struct WireHalf {
  using Element [[gnu::aligned(1), gnu::may_alias]] = uint16_t;
};

template <class Wire, class Convert>
void encode_plain(Stream& stream, const EncodeArgs& args, const Convert& convert) {
  for_ranges(stream.threads(), args.x.count(), kRange, [&](int64_t first, int64_t n) {
    const float* const x = elements<float>(args.x) + first;
    typename Wire::Element* const wire =
        reinterpret_cast<typename Wire::Element*>(args.wire.data()) + first;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      wire[i] = convert(x[i]);
    }
  });
}

}  // namespace

void encode(Stream& stream, const EncodeArgs& args) {
  verify(args);
  switch (args.format.code) {
    case WireCode::fp32:
      return encode_plain<WireFloat>(stream, args, [](float x) { return x; });
    case WireCode::bf16:
      return encode_plain<WireHalf>(stream, args, [](float x) {
        bf16 value;
        store(&value, x);
        return value.bits;
      });
    case WireCode::fp16:
      return encode_plain<WireHalf>(stream, args, [](float x) { return to_fp16(x).bits; });
    case WireCode::topk:
      return encode_topk(stream, args);
    default:
      return encode_buckets(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
