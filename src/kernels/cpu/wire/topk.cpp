// The kept-th largest magnitude is found bit by bit: count what is not below a number, and keep its
// last bit if these are enough. Counting is what vectors do best, 16 values at once; a number that
// separates exactly `kept` values ends the search, of normal numbers after some 20 bits.
#include "src/kernels/cpu/wire/topk.h"

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/wire/bucket.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr uint16_t kNaN16 = 0x7fc0;
constexpr uint16_t kLargest16 = 0x7f7f;

/// One value kept.
struct Entry {
  uint16_t place, value;
};

[[gnu::always_inline]] inline uint32_t magnitude_of(float x) {
  return __builtin_bit_cast(uint32_t, x) & 0x7fffffffU;
}

int64_t count_from(const float* x, int64_t n, uint32_t bits) {
  const auto least_bits = static_cast<int32_t>(bits);
  int32_t count = 0;  // n is at most 65,536
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) {
    count += static_cast<int32_t>(magnitude_of(x[i])) >= least_bits ? 1 : 0;
  }
  return count;
}

/// Magnitudes above `bits` are kept, and the first `ties` of those that are equal.
struct Threshold {
  uint32_t bits = 0;
  int64_t ties = 0;
};

/// `largest`: the bits of the largest magnitude.
Threshold threshold_of(const float* x, int64_t n, int64_t kept, uint32_t largest) {
  Threshold found;
  int64_t present = n;  // magnitudes from found.bits up, at least `kept`
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

/// To nearest even, but no finite number becomes infinite.
uint16_t rounded(float x) {
  bf16 value;
  store(&value, x);
  const uint16_t sign = value.bits & 0x8000U;
  return (value.bits & 0x7fffU) > kLargest16 ? static_cast<uint16_t>(kLargest16 | sign)
                                             : value.bits;
}

void put(std::byte* wire, int64_t number, Entry entry) {
  __builtin_memcpy(wire + 4 * number, &entry, sizeof entry);
}
Entry get(const std::byte* wire, int64_t number) {
  Entry entry;
  __builtin_memcpy(&entry, wire + 4 * number, sizeof entry);
  return entry;
}

void encode_bucket(const float* x, int64_t n, int64_t kept, std::byte* wire) {
  Measured found;
  measure(WireCode::topk, x, n, found);
  if (static_cast<uint32_t>(found.largest) >= kInfinite) {
    for (int64_t k = 0; k < kept; ++k) {
      put(wire, k, {static_cast<uint16_t>(k), kNaN16});
    }
    return;
  }
  Threshold threshold = threshold_of(x, n, kept, static_cast<uint32_t>(found.largest));
  int64_t k = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = magnitude_of(x[i]);
    if (magnitude < threshold.bits) {
      continue;
    }
    if (magnitude == threshold.bits && threshold.ties-- <= 0) {
      continue;
    }
    put(wire, k++, {static_cast<uint16_t>(i), rounded(x[i])});
  }
}

/// Places ascend within the bucket, values are finite.
bool sound(const std::byte* wire, int64_t kept, int64_t n) {
  int64_t before = -1;
  for (int64_t k = 0; k < kept; ++k) {
    const Entry entry = get(wire, k);
    if (entry.place <= before || entry.place >= n || (entry.value & 0x7fffU) > kLargest16) {
      return false;
    }
    before = entry.place;
  }
  return true;
}

void decode_bucket(const std::byte* wire, int64_t kept, bool accumulate, float* y, int64_t n) {
  const bool good = sound(wire, kept, n);
  if (!good || !accumulate) {
    const float fill = good ? 0.0F : __builtin_nanf("");
    for (int64_t i = 0; i < n; ++i) {
      y[i] = fill;
    }
  }
  for (int64_t k = 0; good && k < kept; ++k) {
    const Entry entry = get(wire, k);
    const float value = __builtin_bit_cast(float, uint32_t{entry.value} << 16);
    y[entry.place] = accumulate ? y[entry.place] + value : value;
  }
}

/// body(first value, values, kept, their bytes) for each bucket.
template <class Body>
void for_buckets(int threads, const WireFormat& format, int64_t n, const Body& body) {
  const WireLayout layout = wire_layout(format, n);
  for_blocks(threads, layout.buckets, n, [&](int64_t number) {
    const int64_t first = number * layout.bucket;
    const int64_t length = least(layout.bucket, n - first);
    body(first, length, least(format.kept, length), number * layout.carried);
  });
}

}  // namespace

void encode_topk(Stream& stream, const EncodeArgs& args) {
  const float* const x = elements<float>(args.x);
  for_buckets(stream.threads(), args.format, args.x.count(),
              [&](int64_t first, int64_t n, int64_t kept, int64_t at) {
                encode_bucket(x + first, n, kept, args.wire.data() + at);
              });
}

void decode_topk(Stream& stream, const DecodeArgs& args) {
  float* const y = elements<float>(args.y);
  for_buckets(stream.threads(), args.format, args.y.count(),
              [&](int64_t first, int64_t n, int64_t kept, int64_t at) {
                decode_bucket(args.wire.data() + at, kept, args.accumulate, y + first, n);
              });
}

}  // namespace espalier::kernels::ESPALIER_ISA
