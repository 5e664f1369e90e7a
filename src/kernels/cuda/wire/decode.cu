// Decodes codes to values. If everything is aligned, a thread decodes several quads; otherwise
// groups of eight codes, `bits` bytes each. Each codec has its own kernel.
#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/cuda/wire/values.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kQuads = 4;  ///< quads per thread
constexpr unsigned kThreads = 256;
constexpr int64_t kBlock = 4 * kQuads * kThreads;

template <class Codec>
__device__ __forceinline__ void decode_eight(const Message& message, bool accumulate, int64_t i,
                                             const float* table) {
  const int64_t count = least(8, message.n - i);
  const int bytes = static_cast<int>((count * message.format.bits + 7) / 8);
  const uint64_t codes =
      opened(load_bytes(message.wire + message.codes + i / 8 * message.format.bits, bytes),
             message.format.bits);
  Quad y[2] = {};
  if (accumulate) {
    y[0] = load_quad(message.x, i, count);
    y[1] = load_quad(message.x, i + 4, count - 4);
  }
  for (int64_t at = i; at < i + count;) {
    const int64_t number = quotient(at, message.bucket);
    const int64_t end = least(i + count, (number + 1) * message.bucket);
    const BucketDecoder<Codec> decoder(message, read_carried<Codec>(message, number), table);
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

/// The kQuads quads that a thread loads.
struct Loads {
  uint32_t codes[kQuads];
  BucketWords carried[kQuads];
  Quad y[kQuads];
};

/// Loads quads from value `first` on, one block of quads apart. All are complete and aligned.
template <class Codec>
__device__ __forceinline__ Loads load_all(const Message& message, bool accumulate, int64_t first) {
  constexpr int64_t kStep = 4 * kThreads;
  Loads made{};
  load_fours(message.wire + message.codes, first / 4, kStep / 4, bits_of_code<Codec>(message),
             made.codes);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    made.carried[j] = read_carried<Codec, true>(message, (first + j * kStep) >> message.shift);
  }
  if (accumulate) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      made.y[j] = load_quad<true>(message.x, first + j * kStep, 4);
    }
  }
  return made;
}
template <class Codec>
__device__ __forceinline__ void decode_quads(const Message& message, bool accumulate, int64_t first,
                                             const float* table, const Loads& loads) {
  constexpr int64_t kStep = 4 * kThreads;
  const int bits = bits_of_code<Codec>(message);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const BucketDecoder<Codec> decoder(message, loads.carried[j], table);
    const uint32_t codes = bits == 8 ? loads.codes[j] : opened_four(loads.codes[j], bits);
    const Quad values = four_values<Codec>(decoder, codes);
    Quad y = loads.y[j];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      y.x[k] = accumulate ? y.x[k] + values.x[k] : values.x[k];
    }
    store_quad<true>(message.x, first + j * kStep, 4, y);
  }
}

template <class Codec>
__global__ void __launch_bounds__(kThreads) decode_values(Message message, bool accumulate) {
  __shared__ float table[kHasTable<Codec> ? 256 : 1];
  const int64_t begin = blockIdx.x * kBlock;
  const int64_t end = least(begin + kBlock, message.n);
  const int64_t first = begin + 4 * int64_t{threadIdx.x};
  const bool whole = message.whole && end - begin == kBlock;
  Loads loads;
  if (whole) {
    loads = load_all<Codec>(message, accumulate, first);
  }
  if constexpr (kHasTable<Codec>) {
    table[threadIdx.x] = message.tables->of(Codec::kSet).value[threadIdx.x];
    __syncthreads();
  }
  if (whole) {
    decode_quads<Codec>(message, accumulate, first, table, loads);
    return;
  }
#pragma unroll 1
  for (int64_t i = begin + 8 * int64_t{threadIdx.x}; i < end; i += 8 * int64_t{kThreads}) {
    decode_eight<Codec>(message, accumulate, i, table);
  }
}

/// Decodes fp32, bf16 and fp16 messages at any address.
struct PlainDecode {
  float* y;
  const std::byte* wire;
  DType type;
  bool accumulate;

  /// The message as elements, if it is aligned.
  __host__ __device__ Elements message() const { return {const_cast<std::byte*>(wire), type}; }
  bool aligned() const { return has_whole_quads(y) && has_whole_quads(message()); }
  struct Loaded {
    Quad wire, y;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    Loaded made{{}, accumulate ? load_quad<kWhole>(y, i, count) : Quad{}};
    if constexpr (kWhole) {
      made.wire = load_quad<true>(message(), i, count);
    } else if (type == DType::fp32) {
      for (int k = 0; k < count; ++k) {
        made.wire.x[k] = __uint_as_float(static_cast<unsigned>(load_bytes(wire + 4 * (i + k), 4)));
      }
    } else {
      const uint64_t halves = load_bytes(wire + 2 * i, static_cast<int>(2 * count));
      for (int k = 0; k < 4; ++k) {
        made.wire.x[k] = from_half(type, static_cast<unsigned>(halves >> 16 * k) & 0xffffU);
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
  with_codec(args.format.code, [&]<class Codec>(Codec) {
    if constexpr (Codec::kEntry.form == WireForm::plain) {
      const PlainDecode plain{static_cast<float*>(args.y.data), args.wire.data(), Codec::kType,
                              args.accumulate};
      for_each_quad("decode", stream, plain, n);
    } else {
      const Message message = message_of(stream, args.format, args.wire.data(), args.y);
      if constexpr (Codec::kEntry.form == WireForm::whole) {
        decode_whole<Codec>(stream, message, args.accumulate);
      } else {
        const Launch shape{.name = "decode", .grid = blocks_for(n, kBlock), .block = kThreads};
        launch(decode_values<Codec>, shape, stream, message, args.accumulate);
      }
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_GPU
