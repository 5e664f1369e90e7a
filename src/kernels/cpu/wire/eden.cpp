// Every stage of the transform has the same geometry: neighbours go to the two halves of another
// array. A stage is equivalent to a butterfly of the next stride in place, and vectorises at any
// stride.
#include "src/kernels/cpu/simd/philox.h"
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/cpu/wire/whole.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

using wire::Eden;

constexpr int64_t kMax = Eden::kMaxBucket;

/// Memory of one bucket.
struct Rotation {
  alignas(64) float a[kMax];
  alignas(64) float b[kMax];
  alignas(64) uint32_t signs[kMax / 32];
  uint8_t codes[kMax];

  void draw(uint32_t seed, int64_t p) {
    draw_words(seed, 0, divide_up(divide_up(p, 32), kDrawnWords) * kDrawnWords, signs);
  }
};

/// H x for the p values in `x`; returns the array of the result, `x` or `spare`.
float* transform(float* x, float* spare, int64_t p) {
  const int64_t half = p / 2;
  for (int64_t stride = 1; stride < p; stride *= 2) {
    const float* const __restrict from = x;
    float* const __restrict to = spare;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = from[2 * i];
      const float b = from[2 * i + 1];
      to[i] = a + b;
      to[i + half] = a - b;
    }
    spare = x;
    x = to;
  }
  return x;
}

/// Sum of x[i] y[i], in the order that rules/wire/eden.h defines.
double product(const float* x, const float* y, int64_t p) {
  double sums[Eden::kSums] = {};
  for (int64_t i = 0; i < p; i += Eden::kSums) {
    const int64_t n = least(Eden::kSums, p - i);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
    }
  }
  for (int half = Eden::kSums / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

template <int kBits>
void codes_of(const float* __restrict r, int64_t p, float factor, uint8_t* __restrict codes) {
  float middle[8] = {};
  for (int k = 0; k + 1 < 1 << (kBits - 1); ++k) {
    middle[k] = Eden::middle(kBits, k);
  }
#pragma omp simd
  for (int64_t i = 0; i < p; ++i) {
    codes[i] =
        static_cast<uint8_t>(Eden::code(r[i] * factor, kBits, [&](int k) { return middle[k]; }));
  }
}

void codes_of(const float* r, int64_t p, int bits, float factor, uint8_t* codes) {
  bits == 1   ? codes_of<1>(r, p, factor, codes)
  : bits == 2 ? codes_of<2>(r, p, factor, codes)
  : bits == 3 ? codes_of<3>(r, p, factor, codes)
              : codes_of<4>(r, p, factor, codes);
}

void values_of(const uint8_t* __restrict codes, int64_t p, int bits, float* __restrict q) {
  float value[16] = {};
  for (uint32_t code = 0; code < 1U << bits; ++code) {
    value[code] = Eden::value(code, bits);
  }
#pragma omp simd
  for (int64_t i = 0; i < p; ++i) {
    q[i] = value[codes[i]];
  }
}

void encode_bucket(const WireFormat& format, uint32_t seed, const float* x, int64_t n,
                   std::byte* wire) {
  const int64_t p = Eden::padded(n);
  put_word(wire + 4, seed);
  Measured found;
  measure<Eden::kFind>(x, n, found);
  if (wire::is_bad(found) || found.largest == 0) {
    put_word(wire, wire::is_bad(found) ? kNaNBits : 0U);
    __builtin_memset(wire + Eden::kHeader, 0,
                     static_cast<size_t>(Eden::bucket_bytes(format, n) - Eden::kHeader));
    return;
  }
  Rotation made;
  made.draw(seed, p);
  const wire::Scaling to = Eden::scaling_of(wire::largest_of(found));
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    made.a[i] =
        Eden::with_sign(wire::scaled(x[i], to), made.signs[i / 32], static_cast<int>(i % 32));
  }
  for (int64_t i = n; i < p; ++i) {
    made.a[i] = 0;
  }
  float* const r = transform(made.a, made.b, p);
  float* const q = r == made.a ? made.b : made.a;
  const double squares = product(r, r, p);
  codes_of(r, p, format.bits, Eden::to_normal(squares, p), made.codes);
  values_of(made.codes, p, format.bits, q);
  put_word(wire, bits_of(Eden::scale_of(squares, product(r, q, p), p, to)));
  pack(made.codes, p, format.bits, wire + Eden::kHeader);
}

template <bool kAccumulate>
void decode_bucket(const WireFormat& format, const std::byte* wire, float* __restrict y,
                   int64_t n) {
  const int64_t p = Eden::padded(n);
  const float scale = float_of(get_word(wire));
  Rotation made;
  made.draw(get_word(wire + 4), p);
  unpack(wire + Eden::kHeader, p, format.bits, made.codes);
  values_of(made.codes, p, format.bits, made.a);
  const float* const t = transform(made.a, made.b, p);
  const float inverse_root = Eden::inverse_root(p);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float one = Eden::decoded(
        Eden::with_sign(t[i], made.signs[i / 32], static_cast<int>(i % 32)), inverse_root, scale);
    y[i] = kAccumulate ? y[i] + one : one;
  }
}

}  // namespace

template <>
void encode_whole<Eden>(Stream& stream, const EncodeArgs& args) {
  const float* const x = elements<float>(args.x);
  for_buckets(stream.threads(), args.format, args.x.count(),
              [&](int64_t first, int64_t n, int64_t at) {
                encode_bucket(args.format, Eden::seed_of(args.key, args.first + first), x + first,
                              n, args.wire.data() + at);
              });
}

template <>
void decode_whole<Eden>(Stream& stream, const DecodeArgs& args) {
  float* const y = elements<float>(args.y);
  for_buckets(stream.threads(), args.format, args.y.count(),
              [&](int64_t first, int64_t n, int64_t at) {
                const std::byte* const wire = args.wire.data() + at;
                args.accumulate ? decode_bucket<true>(args.format, wire, y + first, n)
                                : decode_bucket<false>(args.format, wire, y + first, n);
              });
}

}  // namespace espalier::kernels::ESPALIER_ISA
