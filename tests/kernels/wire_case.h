#pragma once
// Helpers for tests of wire codes: formats, calls on plain vectors, and a decoder in double
// precision that reads a message as the header describes it, bit by bit and byte by byte.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "src/kernels/rules/dynamic_map.h"
#include "src/kernels/rules/wire/codecs.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The table that defines messages in tests: all others have its bytes (wire_tables_test.cpp).
inline const Kernels& first_table() { return *computing_tables().front(); }

inline WireFormat wire_format(WireCode code, int64_t bucket = 0, int bits = 0) {
  const WireCodec& codec = codec_of(code);
  WireFormat format{.code = code, .bits = bits == 0 ? codec.bits : bits, .bucket = bucket};
  if (codec.most_bucket > 0) {
    format.bucket = bucket == 0 ? 1024 : std::min(bucket, codec.most_bucket);
  }
  if (codec.numbers == WireNumbers::share) {
    format.kept = (format.bucket + 15) / 16;
  } else if (codec.numbers == WireNumbers::bits && bits == 0) {
    format.bits = 4;
  }
  return format;
}

inline std::string text(const WireFormat& f) {
  return fmt::format("{} bits {} bucket {} kept {} half {:d}", name_of(f.code), f.bits, f.bucket,
                     f.kept, f.half_meta);
}

inline std::vector<WireCode> all_codes() {
  std::vector<WireCode> codes;
  for (size_t i = 0; i < wire_codecs().size(); ++i) {
    codes.push_back(static_cast<WireCode>(i));
  }
  return codes;
}

/// Every code with each of these bucket sizes, and every number of bits.
inline std::vector<WireFormat> all_formats(const std::vector<int64_t>& buckets) {
  std::vector<WireFormat> formats;
  for (const int64_t bucket : buckets) {
    for (const WireCode code : all_codes()) {
      const WireCodec& codec = codec_of(code);
      const bool some_bits = codec.numbers == WireNumbers::bits;
      for (int bits = some_bits ? 1 : 0; bits <= (some_bits ? codec.most_bits : 0); ++bits) {
        formats.push_back(wire_format(code, bucket, bits));
        if (codec.half_meta) {
          formats.push_back(formats.back());
          formats.back().half_meta = true;
        }
      }
    }
  }
  return formats;
}

struct Rounding {
  uint64_t key = 0;
  int64_t first = 0;
};

/// The message ends at a guard page.
inline Bytes encode(const Kernels& kernels, const WireFormat& format, const Floats& x,
                    Rounding rounding = {}, int threads = 1) {
  Arena arena;
  Stream stream(arena, threads);
  const auto n = static_cast<int64_t>(x.size());
  const Guarded values(x.size() * sizeof(float));
  if (n > 0) {
    std::memcpy(values.data(), x.data(), x.size() * sizeof(float));
  }
  const size_t bytes = wire_bytes(format, n);
  const Guarded wire(bytes);
  kernels.encode(stream, {.x = Tensor(values.data(), DType::fp32, {n}),
                          .wire = {wire.data(), bytes},
                          .format = format,
                          .key = rounding.key,
                          .first = rounding.first});
  return {wire.data(), wire.data() + bytes};
}

inline Floats decode(const Kernels& kernels, const WireFormat& format, const Bytes& message,
                     const Floats& start, bool accumulate = false, int threads = 1) {
  Arena arena;
  Stream stream(arena, threads);
  const auto n = static_cast<int64_t>(start.size());
  const Guarded wire(message.size());
  const Guarded values(start.size() * sizeof(float));
  if (n > 0) {
    std::memcpy(wire.data(), message.data(), message.size());
    std::memcpy(values.data(), start.data(), start.size() * sizeof(float));
  }
  kernels.decode(stream, {.wire = {wire.data(), message.size()},
                          .y = Tensor(values.data(), DType::fp32, {n}),
                          .format = format,
                          .accumulate = accumulate});
  const auto* y = reinterpret_cast<const float*>(values.data());
  return {y, y + n};
}

inline Floats decode(const Kernels& kernels, const WireFormat& format, const Bytes& message,
                     size_t n) {
  return decode(kernels, format, message, Floats(n, 77.0F));
}

/// Normally distributed numbers, some replaced by zero.
inline Floats normal_numbers(size_t n, unsigned seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Floats x(n);
  for (float& value : x) {
    value = random() % 40 == 0 ? 0.0F : size * normal(random);
  }
  return x;
}

/// Numbers of many magnitudes and both signs.
inline Floats wide_numbers(size_t n, unsigned seed, float decades = 9) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-decades, 0);
  Floats x(n);
  for (float& value : x) {
    value = std::pow(10.0F, exponent(random)) * (random() % 2 == 0 ? 1.0F : -1.0F);
  }
  return x;
}

namespace reference {

inline void leaves(double low, double high, int decisions, Values& into) {
  const double middle = (low + high) / 2;
  if (decisions == 0) {
    into.push_back(middle);
  } else {
    leaves(low, middle, decisions - 1, into);
    leaves(middle, high, decisions - 1, into);
  }
}

/// Ascending magnitudes of a code with a table.
inline Values magnitudes(WireCode code) {
  Values made{0};
  for (int e = 7; e >= 0 && code == WireCode::static8; --e) {
    Values decade;
    leaves(0.1, 0.45, 3, decade);
    leaves(0.45, 1, 3, decade);
    for (const double leaf : decade) {
      made.push_back(leaf / std::pow(10, e));
    }
  }
  if (code == WireCode::static8) {
    made.erase(made.begin() + 1);  // zero replaces the smallest magnitude
  }
  for (int e = 5; e >= 0 && code == WireCode::dynamic8; --e) {
    Values decade;
    leaves(0.1, 0.45, 5 - e, decade);
    leaves(0.45, 1, 5 - e, decade);
    for (const double leaf : decade) {
      made.push_back(leaf / std::pow(10, e));
    }
  }
  if (code == WireCode::dynamic8) {
    made.push_back(1);
  }
  for (int e = 7; e >= 0 && code == WireCode::mantissa8; --e) {
    for (int m = 1; m <= 15; ++m) {
      made.push_back(m / std::pow(10, e));
    }
  }
  std::sort(made.begin(), made.end());
  made.erase(std::unique(made.begin(), made.end()), made.end());
  return made;
}

inline double fp8(int code, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (code & 127) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = code < 128 ? 1 : -1;
  if (exponent_bits == 5 && exponent == 31) {
    return mantissa == 0 ? sign * kInf : kNan;
  }
  if (exponent_bits == 4 && (code & 127) == 127) {
    return kNan;
  }
  const double significand = mantissa / std::ldexp(1, mantissa_bits) + (exponent > 0 ? 1 : 0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}

inline double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double sign = bits < 0x8000 ? 1 : -1;
  const double significand = (bits & 1023) / 1024.0 + (exponent > 0 ? 1 : 0);
  if (exponent == 31) {
    return (bits & 1023) == 0 ? sign * kInf : kNan;
  }
  return sign * std::ldexp(significand, std::max(exponent, 1) - 15);
}

template <class T>
T take(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Bytes of metadata of one bucket; not for topk.
inline int64_t carried(const WireFormat& f) {
  if (f.code <= WireCode::fp16) {
    return 0;
  }
  if (f.code == WireCode::maxmin) {
    return f.half_meta ? 4 : 8;
  }
  return f.code == WireCode::table ? 4 << (f.bits - 1) : 4;
}

/// The value of each code in a bucket with this metadata.
inline Values values(const WireFormat& f, const std::byte* meta) {
  Values made(size_t{1} << f.bits);
  const Values table = magnitudes(f.code);
  const auto& map = dynamic_map(DynamicMap::with_sign);
  const double scale = f.code == WireCode::maxmin ? 0 : take<float>(meta);
  const double unit = f.half_meta ? half(take<uint16_t>(meta)) : take<float>(meta);
  for (size_t code = 0; code < made.size(); ++code) {
    const auto number = static_cast<int>(code);
    switch (f.code) {
      case WireCode::maxmin:
        made[code] =
            (f.half_meta ? half(take<uint16_t>(meta + 2)) : take<float>(meta + 4)) + unit * number;
        break;
      case WireCode::table: {
        const int index = number % (1 << (f.bits - 1));
        made[code] = take<float>(meta + size_t{4} * index) * (index == number ? 1 : -1);
        break;
      }
      case WireCode::sign:
        made[code] = number == 0 ? scale : -scale;
        break;
      case WireCode::linear8:
        made[code] = scale * static_cast<int8_t>(number) / 127;
        break;
      case WireCode::fp8_e5m2:
      case WireCode::fp8_e4m3:
        made[code] = scale * fp8(number, f.code == WireCode::fp8_e5m2 ? 5 : 4);
        break;
      case WireCode::dynamic8_bnb:
        made[code] = scale * map[code];
        break;
      default:
        made[code] =
            scale * table[std::min(code & 127, table.size() - 1)] * (number < 128 ? 1 : -1);
    }
  }
  return made;
}

/// Code number i of a message, read bit by bit.
inline size_t code_at(const std::byte* codes, int64_t i, int bits) {
  size_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int64_t place = i * bits + bit;
    code |= static_cast<size_t>(codes[place / 8] >> (place % 8) & std::byte{1}) << bit;
  }
  return code;
}

}  // namespace reference
}  // namespace espalier::kernels
