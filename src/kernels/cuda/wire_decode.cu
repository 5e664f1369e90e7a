// Values of codes: a thread reads eight of them, `bits` bytes. A kernel for each kind of code.
#include "src/kernels/cuda/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/wire_bucket.h"
#include "src/kernels/cuda/wire_pack.h"
#include "src/kernels/cuda/wire_topk.h"
#include "src/kernels/cuda/wire_values.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct MaxminDecoder {
  Range range;
  bool huge;  ///< sums may overflow on the way
  __device__ MaxminDecoder(const Message& message, const std::byte* wire)
      : range(read_range(message, wire)) {
    const float extent = range.unit * static_cast<float>((1 << message.bits) - 1);
    huge = !(extent < 0x1p126F && fabsf(range.least) < 0x1p126F);
  }
  __device__ __forceinline__ float value(unsigned code) const {
    const auto level = static_cast<float>(static_cast<int>(code));
    if (!huge) {
      return range.least + range.unit * level;
    }
    constexpr float kMost = 0.25F * kLargest;
    float sum = 0.25F * range.least + 0.25F * range.unit * level;
    sum = sum > kMost ? kMost : sum;  // NaN stays
    sum = sum < -kMost ? -kMost : sum;
    return 4.0F * sum;
  }
};

struct LinearDecoder {
  float scale;
  __device__ LinearDecoder(const Message&, const std::byte* wire) : scale(get_float(wire)) {}
  __device__ __forceinline__ float value(unsigned code) const {  // 127 (1 / 127) is 1
    return static_cast<float>(static_cast<int8_t>(code)) * (1.0F / 127.0F) * scale;
  }
};

struct MagnitudeDecoder {
  float scale;
  const float* values;
  __device__ MagnitudeDecoder(const Message& message, const std::byte* wire)
      : scale(get_float(wire)), values(message.tables->of(message.code).value) {}
  __device__ __forceinline__ float value(unsigned code) const { return values[code] * scale; }
};

/// The bucket's own magnitudes, one of them for sign; the highest bit of a code is the sign.
struct OwnDecoder {
  const std::byte* wire;
  unsigned sign;
  __device__ OwnDecoder(const Message& message, const std::byte* carried)
      : wire(carried), sign(1U << (message.bits - 1)) {}
  __device__ __forceinline__ float value(unsigned code) const {
    const float magnitude = get_float(wire + 4 * (code & (sign - 1)));
    return (code & sign) != 0 ? -magnitude : magnitude;
  }
};

template <class Decoder>
__global__ void __launch_bounds__(256) decode_eights(Message message, bool accumulate) {
  const int64_t i = 8 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (i >= message.n) {
    return;
  }
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
    const Decoder decoder(message, message.carried_by(number));
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

template <class Decoder>
void decode_as(Stream& stream, const Message& message, bool accumulate) {
  const Launch shape{.name = "decode", .grid = blocks_for(message.n, 8 * 256)};
  launch(decode_eights<Decoder>, shape, stream, message, accumulate);
}

void decode_buckets(Stream& stream, const DecodeArgs& args) {
  const Message message = message_of(stream, args.format, args.wire.data(), args.y);
  switch (args.format.code) {
    case WireCode::maxmin:
      return decode_as<MaxminDecoder>(stream, message, args.accumulate);
    case WireCode::fp8_e5m2:
      return decode_as<Fp8Decoder<5>>(stream, message, args.accumulate);
    case WireCode::fp8_e4m3:
      return decode_as<Fp8Decoder<4>>(stream, message, args.accumulate);
    case WireCode::linear8:
      return decode_as<LinearDecoder>(stream, message, args.accumulate);
    case WireCode::table:
    case WireCode::sign:
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
