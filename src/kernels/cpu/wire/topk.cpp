// Finds the kept-th largest magnitude bit by bit: counts the magnitudes that are not below a
// candidate, and keeps its last bit if there are at least `kept`. Counting processes 16 values at
// once. A candidate that separates exactly `kept` values ends the search, after some 20 bits for
// normal numbers.
#include "src/kernels/cpu/wire/pack.h"
#include "src/kernels/cpu/wire/values.h"
#include "src/kernels/cpu/wire/whole.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

using wire::Topk;

[[gnu::always_inline]] inline uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffffU; }

int64_t count_from(const float* x, int64_t n, uint32_t bits) {
  const auto least_bits = static_cast<int32_t>(bits);
  int32_t count = 0;  // n is at most 65,536
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) {
    count += static_cast<int32_t>(magnitude_bits(x[i])) >= least_bits ? 1 : 0;
  }
  return count;
}

/// Magnitudes above `bits` are kept, and the first `ties` equal magnitudes.
struct Threshold {
  uint32_t bits = 0;
  int64_t ties = 0;
};

/// `largest`: the bits of the largest magnitude.
Threshold threshold_of(const float* x, int64_t n, int64_t kept, uint32_t largest) {
  Threshold found;
  int64_t present = n;  // number of magnitudes from found.bits up, at least `kept`
  for (int bit = 30; bit >= 0 && present > kept; --bit) {
    const uint32_t bits = found.bits | 1U << bit;
    const int64_t count = bits > largest ? 0 : count_from(x, n, bits);
    if (count >= kept) {
      found.bits = bits;
      present = count;
    }
  }
  found.ties = present == kept ? n : kept - count_from(x, n, found.bits + 1);
  return found;
}

void encode_bucket(const float* x, int64_t n, int64_t kept, std::byte* wire) {
  Measured found;
  measure<Topk::kFind>(x, n, found);
  if (wire::is_bad(found)) {
    for (int64_t k = 0; k < kept; ++k) {
      put_word(wire + 4 * k, Topk::entry(k, Topk::kNaN));
    }
    return;
  }
  Threshold threshold = threshold_of(x, n, kept, static_cast<uint32_t>(found.largest));
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = magnitude_bits(x[i]);
    if (magnitude < threshold.bits) {
      continue;
    }
    if (magnitude == threshold.bits && threshold.ties-- <= 0) {
      continue;
    }
    put_word(wire, Topk::entry(i, Topk::rounded_value(x[i])));
    wire += 4;
  }
}

/// True if positions ascend within the bucket and values are finite.
bool is_valid(const std::byte* wire, int64_t kept, int64_t n) {
  int32_t before = -1;
  for (int64_t k = 0; k < kept; ++k) {
    const uint32_t entry = get_word(wire + 4 * k);
    if (!Topk::follows(entry, before, n)) {
      return false;
    }
    before = Topk::place_of(entry);
  }
  return true;
}

void decode_bucket(const std::byte* wire, int64_t kept, bool accumulate, float* y, int64_t n) {
  const bool valid = is_valid(wire, kept, n);
  if (!valid || !accumulate) {
    const float fill = valid ? 0.0F : not_a_number();
    for (int64_t i = 0; i < n; ++i) {
      y[i] = fill;
    }
  }
  for (int64_t k = 0; valid && k < kept; ++k) {
    const uint32_t entry = get_word(wire + 4 * k);
    float& to = y[Topk::place_of(entry)];
    to = accumulate ? to + Topk::value_of(entry) : Topk::value_of(entry);
  }
}

}  // namespace

template <>
void encode_whole<Topk>(Stream& stream, const EncodeArgs& args) {
  const float* const x = elements<float>(args.x);
  for_buckets(stream.threads(), args.format, args.x.count(),
              [&](int64_t first, int64_t n, int64_t at) {
                encode_bucket(x + first, n, least(args.format.kept, n), args.wire.data() + at);
              });
}

template <>
void decode_whole<Topk>(Stream& stream, const DecodeArgs& args) {
  float* const y = elements<float>(args.y);
  for_buckets(stream.threads(), args.format, args.y.count(),
              [&](int64_t first, int64_t n, int64_t at) {
                decode_bucket(args.wire.data() + at, least(args.format.kept, n), args.accumulate,
                              y + first, n);
              });
}

}  // namespace espalier::kernels::ESPALIER_ISA
