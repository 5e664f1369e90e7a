// Codes of values: a thread makes eight of them, `bits` bytes; their bucket carries already what it
// does. A kernel for each code, so that none pays for another's registers.
#include "src/kernels/cuda/elementwise.h"
#include "src/kernels/cuda/philox.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/wire_measure.h"
#include "src/kernels/cuda/wire_pack.h"
#include "src/kernels/cuda/wire_topk.h"
#include "src/kernels/cuda/wire_values.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Eight {
  float x[8];
  uint32_t word[8];
};

/// Codes of values [low, high) of eight, which are all in bucket `number`.
template <class Coder, bool kRandom>
__device__ __forceinline__ uint64_t codes_of(const Message& message, int64_t number,
                                             const Eight& values, int low, int high) {
  const std::byte* wire = message.carried_by(number);
  const float first = message.half_meta ? from_fp16(get_half(wire)) : get_float(wire);
  if (first != first) {  // a value was not finite: codes are zero
    return 0;
  }
  const Coder coder(message, wire);
  uint64_t codes = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint64_t code = coder.template code<kRandom>(values.x[k], values.word[k]);
    codes |= k >= low && k < high ? code << (8 * k) : 0;
  }
  return codes;
}

template <class Coder, bool kRandom>
__global__ void __launch_bounds__(256) encode_eights(Message message, uint64_t key, int64_t first) {
  const int64_t i = 8 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (i >= message.n) {
    return;
  }
  const int64_t count = least(8, message.n - i);
  const Quad a = load_quad(message.x, i, count);
  const Quad b = load_quad(message.x, i + 4, count - 4);
  Eight values{};
  Words words[2] = {};
  if constexpr (kRandom) {
    words[0] = words_of_quad(key, first + i);
    words[1] = words_of_quad(key, first + i + 4);
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
    codes |= codes_of<Coder, kRandom>(message, number, values, static_cast<int>(at - i),
                                      static_cast<int>(end - i));
    at = end;
  }
  const int bytes = static_cast<int>((count * message.bits + 7) / 8);
  store_bytes(message.wire + message.codes + i / 8 * message.bits, closed(codes, message.bits),
              bytes);
}

template <class Coder, bool kMayBeRandom>
void encode_as(Stream& stream, const Message& message, const EncodeArgs& args) {
  const Launch shape{.name = "encode", .grid = blocks_for(message.n, 8 * 256)};
  if constexpr (kMayBeRandom) {
    if (args.key != 0) {
      launch(encode_eights<Coder, true>, shape, stream, message, args.key, args.first);
      return;
    }
  }
  launch(encode_eights<Coder, false>, shape, stream, message, args.key, args.first);
}

void encode_buckets(Stream& stream, const EncodeArgs& args) {
  const Message message = message_of(stream, args.format, args.wire.data(), args.x);
  measure_buckets(stream, message);
  switch (args.format.code) {
    case WireCode::linear8:
      return encode_as<LinearCoder, true>(stream, message, args);
    case WireCode::maxmin:
      return encode_as<MaxminCoder, true>(stream, message, args);
    case WireCode::fp8_e5m2:
      return encode_as<Fp8Coder<5>, true>(stream, message, args);
    case WireCode::fp8_e4m3:
      return encode_as<Fp8Coder<4>, true>(stream, message, args);
    case WireCode::dynamic8:
      return encode_as<MagnitudeCoder<false>, true>(stream, message, args);
    case WireCode::dynamic8_bnb:
      return encode_as<MagnitudeCoder<true>, true>(stream, message, args);
    case WireCode::table:
      return encode_as<TableCoder, false>(stream, message, args);
    case WireCode::sign:
      return encode_as<SignCoder, false>(stream, message, args);
    default:  // static8, mantissa8
      return encode_as<MagnitudeCoder<false>, false>(stream, message, args);
  }
}

/// fp32, bf16 and fp16, at any address.
struct PlainEncode {
  const float* x;
  std::byte* wire;
  WireCode code;

  /// The message, where it is aligned.
  __host__ __device__ Elements message() const {
    const DType type = code == WireCode::fp32   ? DType::fp32
                       : code == WireCode::bf16 ? DType::bf16
                                                : DType::fp16;
    return {wire, type};
  }
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
    } else if (code == WireCode::fp32) {
      for (int k = 0; k < count; ++k) {
        store_bytes(wire + 4 * (i + k), __float_as_uint(q.x[k]), 4);
      }
    } else {
      uint64_t halves = 0;
      for (int k = 0; k < 4; ++k) {
        halves |= uint64_t{to_half_bits(message().type, q.x[k])} << 16 * k;
      }
      store_bytes(wire + 2 * i, halves, static_cast<int>(2 * count));
    }
  }
};

}  // namespace

Message message_of(Stream& stream, const WireFormat& format, const void* wire, const Tensor& x) {
  const WireLayout layout = wire_layout(format, x.count());
  return {.wire = static_cast<std::byte*>(const_cast<void*>(wire)),
          .x = static_cast<float*>(x.data),
          .n = x.count(),
          .bucket = layout.bucket,
          .buckets = layout.buckets,
          .carried = layout.carried,
          .codes = layout.codes,
          .code = format.code,
          .bits = format.bits,
          .kept = format.kept,
          .half_meta = format.half_meta,
          .tables = wire_tables(stream)};
}

const WireTables* wire_tables(Stream& stream) {
  if (stream.arena().dry()) {
    return nullptr;
  }
  static const WireTables tables = [] {
    WireTables made{magnitude_table(WireCode::dynamic8),
                    magnitude_table(WireCode::dynamic8_bnb),
                    magnitude_table(WireCode::static8),
                    magnitude_table(WireCode::mantissa8),
                    {}};
    const auto powers = powers_of_ten();
    require(powers.size() == WireTables::kPowers, "every power of ten that floats have",
            powers.size());
    std::copy(powers.begin(), powers.end(), made.powers_of_ten);
    return made;
  }();
  return static_cast<const WireTables*>(queue_of(stream).constant(&tables, sizeof tables));
}

void encode(Stream& stream, const EncodeArgs& args) {
  verify(args);
  const int64_t n = args.x.count();
  if (n == 0) {
    return;
  }
  switch (args.format.code) {
    case WireCode::fp32:
    case WireCode::bf16:
    case WireCode::fp16: {
      const PlainEncode plain{static_cast<const float*>(args.x.data), args.wire.data(),
                              args.format.code};
      return for_each_quad("encode", stream, plain, n);
    }
    case WireCode::topk:
      return encode_topk(stream, message_of(stream, args.format, args.wire.data(), args.x));
    default:
      return encode_buckets(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
