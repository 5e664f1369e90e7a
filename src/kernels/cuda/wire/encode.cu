// Encodes values to codes, after the carried bytes of their buckets were written. If everything is
// aligned, a thread encodes several quads; otherwise groups of eight codes, `bits` bytes each. Each
// codec has its own kernel, so that none needs the registers of another.
#include <bit>

#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/wire/values.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kQuads = 4;  ///< quads per thread
constexpr unsigned kThreads = 256;
constexpr int64_t kBlock = 4 * kQuads * kThreads;

/// Parameters of random rounding.
struct Draw {
  uint64_t key;
  int64_t first;
};

struct Eight {
  float x[8];
  uint32_t word[8];
};

/// Codes of values [low, high) of a group of eight, all in bucket `number`.
template <class Codec, bool kRandom>
__device__ __forceinline__ uint64_t codes_of(const Message& message, int64_t number,
                                             const Eight& values, int low, int high) {
  const BucketWords carried = read_carried<Codec>(message, number);
  if (is_bad<Codec>(message, carried)) {
    return 0;
  }
  const BucketEncoder<Codec> coder(message, carried);
  uint64_t codes = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint64_t code = coder.template code<kRandom>(values.x[k], values.word[k]) & 255U;
    codes |= k >= low && k < high ? code << (8 * k) : 0;
  }
  return codes;
}

template <class Codec, bool kRandom>
__device__ __forceinline__ void encode_eight(const Message& message, const Draw& draw, int64_t i) {
  const int64_t count = least(8, message.n - i);
  const Quad a = load_quad(message.x, i, count);
  const Quad b = load_quad(message.x, i + 4, count - 4);
  Eight values{};
  Words words[2] = {};
  if constexpr (kRandom) {
    words[0] = words_of_quad(draw.key, draw.first + i);
    words[1] = words_of_quad(draw.key, draw.first + i + 4);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    values.x[k] = a.x[k];
    values.x[4 + k] = b.x[k];
    values.word[k] = words[0].word[k];
    values.word[4 + k] = words[1].word[k];
  }
  uint64_t codes = 0;
  for (int64_t at = i; at < i + count;) {
    const int64_t number = quotient(at, message.bucket);
    const int64_t end = least(i + count, (number + 1) * message.bucket);
    codes |= codes_of<Codec, kRandom>(message, number, values, static_cast<int>(at - i),
                                      static_cast<int>(end - i));
    at = end;
  }
  const int bytes = static_cast<int>((count * message.format.bits + 7) / 8);
  store_bytes(message.wire + message.codes + i / 8 * message.format.bits,
              closed(codes, message.format.bits), bytes);
}

/// Encodes kQuads quads from value `first` on, one block of quads apart. All are complete and
/// aligned.
template <class Codec, bool kRandom>
__device__ __forceinline__ void encode_quads(const Message& message, const Draw& draw,
                                             int64_t first) {
  constexpr int64_t kStep = 4 * kThreads;
  const int bits = bits_of_code<Codec>(message);
  Quad values[kQuads];
  BucketWords carried[kQuads];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    values[j] = load_quad<true>(message.x, first + j * kStep, 4);
    carried[j] = read_carried<Codec, true>(message, (first + j * kStep) >> message.shift);
  }
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const BucketEncoder<Codec> coder(message, carried[j]);
    Words words{};
    if constexpr (kRandom) {
      words = words_of_quad(draw.key, draw.first + first + j * kStep);
    }
    uint32_t codes = four_codes<Codec, kRandom>(coder, values[j], words);
    codes = is_bad<Codec>(message, carried[j]) ? 0U : codes;
    store_four(message.wire + message.codes, (first + j * kStep) / 4, bits, codes);
  }
}

template <class Codec, bool kRandom>
__global__ void __launch_bounds__(kThreads) encode_values(Message message, Draw draw) {
  const int64_t begin = blockIdx.x * kBlock;
  const int64_t end = least(begin + kBlock, message.n);
  if (message.whole && end - begin == kBlock) {
    encode_quads<Codec, kRandom>(message, draw, begin + 4 * int64_t{threadIdx.x});
    return;
  }
#pragma unroll 1
  for (int64_t i = begin + 8 * int64_t{threadIdx.x}; i < end; i += 8 * int64_t{kThreads}) {
    encode_eight<Codec, kRandom>(message, draw, i);
  }
}

template <class Codec>
void encode_buckets(Stream& stream, const Message& message, const EncodeArgs& args) {
  measure_buckets<Codec>(stream, message);
  const Launch shape{.name = "encode", .grid = blocks_for(message.n, kBlock), .block = kThreads};
  const Draw draw{args.key, args.first};
  if constexpr (Codec::kEntry.random) {
    if (args.key != 0) {
      launch(encode_values<Codec, true>, shape, stream, message, draw);
      return;
    }
  }
  launch(encode_values<Codec, false>, shape, stream, message, draw);
}

/// Encodes fp32, bf16 and fp16 messages at any address.
struct PlainEncode {
  const float* x;
  std::byte* wire;
  DType type;

  /// The message as elements, if it is aligned.
  __host__ __device__ Elements message() const { return {wire, type}; }
  bool aligned() const { return has_whole_quads(x) && has_whole_quads(message()); }
  using Loaded = Quad;
  template <bool kWhole>
  __device__ __forceinline__ Quad load(int64_t i, int64_t count) const {
    return load_quad<kWhole>(x, i, count);
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Quad& q) const {
    if constexpr (kWhole) {
      store_quad<true>(message(), i, count, q);
    } else if (type == DType::fp32) {
      for (int k = 0; k < count; ++k) {
        store_bytes(wire + 4 * (i + k), __float_as_uint(q.x[k]), 4);
      }
    } else {
      uint64_t halves = 0;
      for (int k = 0; k < 4; ++k) {
        halves |= uint64_t{to_half_bits(type, q.x[k])} << 16 * k;
      }
      store_bytes(wire + 2 * i, halves, static_cast<int>(2 * count));
    }
  }
};

}  // namespace

Message message_of(Stream& stream, const WireFormat& format, const void* wire, const Tensor& x) {
  const WireLayout layout = wire_layout(format, x.count());
  const auto bucket = static_cast<uint64_t>(layout.bucket);
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       (reinterpret_cast<uintptr_t>(wire) | static_cast<uintptr_t>(layout.carried) |
                        static_cast<uintptr_t>(layout.codes)) %
                               4 ==
                           0;
  return {.wire = static_cast<std::byte*>(const_cast<void*>(wire)),
          .x = static_cast<float*>(x.data),
          .n = x.count(),
          .bucket = layout.bucket,
          .buckets = layout.buckets,
          .carried = layout.carried,
          .codes = layout.codes,
          .format = format,
          .tables = wire_tables(stream),
          .whole = aligned && (layout.buckets == 1 || (std::has_single_bit(bucket) && bucket >= 4)),
          .shift = layout.buckets == 1 ? 63 : std::countr_zero(bucket)};
}

const wire::WireTables* wire_tables(Stream& stream) {
  if (stream.arena().dry()) {
    return nullptr;
  }
  const wire::WireTables& tables = wire::wire_tables();
  return static_cast<const wire::WireTables*>(queue_of(stream).constant(&tables, sizeof tables));
}

void encode(Stream& stream, const EncodeArgs& args) {
  verify(args);
  const int64_t n = args.x.count();
  if (n == 0) {
    return;
  }
  with_codec(args.format.code, [&]<class Codec>(Codec) {
    if constexpr (Codec::kEntry.form == WireForm::plain) {
      const PlainEncode plain{static_cast<const float*>(args.x.data), args.wire.data(),
                              Codec::kType};
      for_each_quad("encode", stream, plain, n);
    } else {
      const Message message = message_of(stream, args.format, args.wire.data(), args.x);
      if constexpr (Codec::kEntry.form == WireForm::whole) {
        encode_whole<Codec>(stream, message, args);
      } else {
        encode_buckets<Codec>(stream, message, args);
      }
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_GPU
