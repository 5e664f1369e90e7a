// Values of codes. Where all is aligned a thread makes several quads of them, else eights, `bits`
// bytes each. A kernel for each kind of code.
#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/wire/bucket.h"
#include "src/kernels/cuda/wire/pack.h"
#include "src/kernels/cuda/wire/topk.h"
#include "src/kernels/cuda/wire/values.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kQuads = 4;  ///< of a thread
constexpr unsigned kThreads = 256;
constexpr int64_t kBlock = 4 * kQuads * kThreads;

struct MaxminDecoder {
  static constexpr bool kFp8 = false, kTable = false, kRange = true;
  static constexpr int kBits = 0;
  float least, unit;
  bool huge;  ///< sums may overflow on the way
  __device__ MaxminDecoder(const Message& message, const Carried& carried, const float*)
      : least(carried.least), unit(carried.scale) {
    const float extent = unit * static_cast<float>((1 << message.bits) - 1);
    huge = !(extent < 0x1p126F && fabsf(least) < 0x1p126F);
  }
  __device__ __forceinline__ float value(unsigned code) const {
    const auto level = static_cast<float>(static_cast<int>(code));
    if (!huge) {
      return least + unit * level;
    }
    constexpr float kMost = 0.25F * kLargest;
    float sum = 0.25F * least + 0.25F * unit * level;
    sum = sum > kMost ? kMost : sum;  // NaN stays
    sum = sum < -kMost ? -kMost : sum;
    return 4.0F * sum;
  }
  /// The same of four codes: one branch, as few buckets are huge.
  __device__ __forceinline__ Quad four(uint32_t codes) const {
    Quad q;
    if (!huge) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        q.x[k] = least + unit * static_cast<float>(static_cast<int>(codes >> (8 * k) & 255U));
      }
      return q;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] = value(codes >> (8 * k) & 255U);
    }
    return q;
  }
};

struct LinearDecoder {
  static constexpr bool kFp8 = false, kTable = false, kRange = false;
  static constexpr int kBits = 8;
  float scale;
  __device__ LinearDecoder(const Message&, const Carried& carried, const float*)
      : scale(carried.scale) {}
  __device__ __forceinline__ float value(unsigned code) const {  // 127 (1 / 127) is 1
    return static_cast<float>(static_cast<int8_t>(code)) * (1.0F / 127.0F) * scale;
  }
};

/// `values` of each code are in shared memory, where lanes that ask for different ones wait less.
struct MagnitudeDecoder {
  static constexpr bool kFp8 = false, kTable = true, kRange = false;
  static constexpr int kBits = 8;
  float scale;
  const float* values;
  __device__ MagnitudeDecoder(const Message&, const Carried& carried, const float* table)
      : scale(carried.scale), values(table) {}
  __device__ __forceinline__ float value(unsigned code) const { return values[code] * scale; }
};

template <int kExponentBits>
struct ScaledFp8 : Fp8Decoder<kExponentBits> {
  static constexpr bool kFp8 = true, kTable = false, kRange = false;
  static constexpr int kBits = 8;
  __device__ ScaledFp8(const Message&, const Carried& carried, const float*)
      : Fp8Decoder<kExponentBits>(carried.scale) {}
};

/// The bucket's own magnitudes; the highest bit of a code is the sign.
struct OwnDecoder {
  static constexpr bool kFp8 = false, kTable = false, kRange = false;
  static constexpr int kBits = 0;
  const std::byte* wire;
  unsigned sign;
  __device__ OwnDecoder(const Message& message, const Carried& carried, const float*)
      : wire(carried.wire), sign(1U << (message.bits - 1)) {}
  __device__ __forceinline__ float value(unsigned code) const {
    const float magnitude = get_float(wire + 4 * (code & (sign - 1)));
    return (code & sign) != 0 ? -magnitude : magnitude;
  }
};

struct SignDecoder {
  static constexpr bool kFp8 = false, kTable = false, kRange = false;
  static constexpr int kBits = 1;
  float magnitude;
  __device__ SignDecoder(const Message&, const Carried& carried, const float*)
      : magnitude(carried.scale) {}
  __device__ __forceinline__ float value(unsigned code) const {
    return __uint_as_float(__float_as_uint(magnitude) ^ code << 31);
  }
};

template <class Decoder>
__device__ __forceinline__ void decode_eight(const Message& message, bool accumulate, int64_t i,
                                             const float* table) {
  const int64_t count = least(8, message.n - i);
  const int bytes = static_cast<int>((count * message.bits + 7) / 8);
  const uint64_t codes =
      opened(load_bytes(message.wire + message.codes + i / 8 * message.bits, bytes), message.bits);
  Quad y[2] = {};
  if (accumulate) {
    y[0] = load_quad(message.x, i, count);
    y[1] = load_quad(message.x, i + 4, count - 4);
  }
  for (int64_t at = i; at < i + count;) {
    const int64_t number = quotient(at, message.bucket);
    const int64_t end = least(i + count, (number + 1) * message.bucket);
    const Decoder decoder(message, read_carried<Decoder::kRange>(message, number), table);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (i + k >= at && i + k < end) {
        const float value = decoder.value(static_cast<unsigned>(codes >> (8 * k)) & 255U);
        float& to = y[k / 4].x[k % 4];
        to = accumulate ? to + value : value;
      }
    }
    at = end;
  }
  store_quad(message.x, i, count, y[0]);
  store_quad(message.x, i + 4, count - 4, y[1]);
}

/// Values that a thread of a block has asked for, kQuads quads.
struct Asked {
  uint32_t codes[kQuads];
  Carried carried[kQuads];
  Quad y[kQuads];
};

/// From value `first` on, a block's quads apart; all there, and aligned.
template <class Decoder>
__device__ __forceinline__ int bits_of(const Message& message) {
  return Decoder::kBits == 0 ? message.bits : Decoder::kBits;
}

template <class Decoder>
__device__ __forceinline__ Asked ask(const Message& message, bool accumulate, int64_t first) {
  constexpr int64_t kStep = 4 * kThreads;
  Asked made{};
  load_fours(message.wire + message.codes, first / 4, kStep / 4, bits_of<Decoder>(message),
             made.codes);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    made.carried[j] =
        read_carried<Decoder::kRange, true>(message, (first + j * kStep) >> message.shift);
  }
  if (accumulate) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      made.y[j] = load_quad<true>(message.x, first + j * kStep, 4);
    }
  }
  return made;
}
template <class Decoder>
__device__ __forceinline__ Quad four_values(const Decoder& decoder, uint32_t codes) {
  if constexpr (Decoder::kRange || (Decoder::kFp8 && kConvertsFp8)) {
    return decoder.four(codes);
  } else {
    Quad q;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] = decoder.value(codes >> (8 * k) & 255U);
    }
    return q;
  }
}

template <class Decoder>
__device__ __forceinline__ void decode_quads(const Message& message, bool accumulate, int64_t first,
                                             const float* table, const Asked& asked) {
  constexpr int64_t kStep = 4 * kThreads;
  const int bits = bits_of<Decoder>(message);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const Decoder decoder(message, asked.carried[j], table);
    const uint32_t codes = bits == 8 ? asked.codes[j] : opened_four(asked.codes[j], bits);
    const Quad values = four_values(decoder, codes);
    Quad y = asked.y[j];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      y.x[k] = accumulate ? y.x[k] + values.x[k] : values.x[k];
    }
    store_quad<true>(message.x, first + j * kStep, 4, y);
  }
}

template <class Decoder>
__global__ void __launch_bounds__(kThreads) decode_values(Message message, bool accumulate) {
  __shared__ float table[Decoder::kTable ? 256 : 1];
  const int64_t begin = blockIdx.x * kBlock;
  const int64_t end = least(begin + kBlock, message.n);
  const int64_t first = begin + 4 * int64_t{threadIdx.x};
  const bool whole = message.whole && end - begin == kBlock;
  Asked asked;
  if (whole) {
    asked = ask<Decoder>(message, accumulate, first);
  }
  if constexpr (Decoder::kTable) {
    table[threadIdx.x] = message.table->value[threadIdx.x];
    __syncthreads();
  }
  if (whole) {
    decode_quads<Decoder>(message, accumulate, first, table, asked);
    return;
  }
#pragma unroll 1
  for (int64_t i = begin + 8 * int64_t{threadIdx.x}; i < end; i += 8 * int64_t{kThreads}) {
    decode_eight<Decoder>(message, accumulate, i, table);
  }
}

template <class Decoder>
void decode_as(Stream& stream, const Message& message, bool accumulate) {
  const Launch shape{.name = "decode", .grid = blocks_for(message.n, kBlock), .block = kThreads};
  launch(decode_values<Decoder>, shape, stream, message, accumulate);
}

void decode_buckets(Stream& stream, const DecodeArgs& args) {
  const Message message = message_of(stream, args.format, args.wire.data(), args.y);
  switch (args.format.code) {
    case WireCode::maxmin:
      return decode_as<MaxminDecoder>(stream, message, args.accumulate);
    case WireCode::fp8_e5m2:
      return decode_as<ScaledFp8<5>>(stream, message, args.accumulate);
    case WireCode::fp8_e4m3:
      return decode_as<ScaledFp8<4>>(stream, message, args.accumulate);
    case WireCode::linear8:
      return decode_as<LinearDecoder>(stream, message, args.accumulate);
    case WireCode::sign:
      return decode_as<SignDecoder>(stream, message, args.accumulate);
    case WireCode::table:
      return decode_as<OwnDecoder>(stream, message, args.accumulate);
    default:
      return decode_as<MagnitudeDecoder>(stream, message, args.accumulate);
  }
}

/// fp32, bf16 and fp16, at any address.
struct PlainDecode {
  float* y;
  const std::byte* wire;
  WireCode code;
  bool accumulate;

  /// The message, where it is aligned.
  __host__ __device__ Elements message() const {
    const DType type = code == WireCode::fp32   ? DType::fp32
                       : code == WireCode::bf16 ? DType::bf16
                                                : DType::fp16;
    return {const_cast<std::byte*>(wire), type};
  }
  bool aligned() const { return has_whole_quads(y) && has_whole_quads(message()); }
  struct Loaded {
    Quad wire, y;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    Loaded made{{}, accumulate ? load_quad<kWhole>(y, i, count) : Quad{}};
    if constexpr (kWhole) {
      made.wire = load_quad<true>(message(), i, count);
    } else if (code == WireCode::fp32) {
      for (int k = 0; k < count; ++k) {
        made.wire.x[k] = __uint_as_float(static_cast<unsigned>(load_bytes(wire + 4 * (i + k), 4)));
      }
    } else {
      const uint64_t halves = load_bytes(wire + 2 * i, static_cast<int>(2 * count));
      for (int k = 0; k < 4; ++k) {
        made.wire.x[k] =
            from_half(message().type, static_cast<unsigned>(halves >> 16 * k) & 0xffffU);
      }
    }
    return made;
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad q = from.wire;
    for (int k = 0; k < 4 && accumulate; ++k) {
      q.x[k] = from.y.x[k] + q.x[k];
    }
    store_quad<kWhole>(y, i, count, q);
  }
};

}  // namespace

void decode(Stream& stream, const DecodeArgs& args) {
  verify(args);
  const int64_t n = args.y.count();
  if (n == 0) {
    return;
  }
  switch (args.format.code) {
    case WireCode::fp32:
    case WireCode::bf16:
    case WireCode::fp16: {
      const PlainDecode plain{static_cast<float*>(args.y.data), args.wire.data(), args.format.code,
                              args.accumulate};
      return for_each_quad("decode", stream, plain, n);
    }
    case WireCode::topk:
      return decode_topk(stream, message_of(stream, args.format, args.wire.data(), args.y),
                         args.accumulate);
    default:
      return decode_buckets(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
