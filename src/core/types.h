#pragma once
// Element types and shapes.
//   bf16   the upper half of an fp32
//   fp16   IEEE 754 binary16: 5 bits of exponent, up to 65,504; multiples of 2^-24 below 2^-14
// Rounding is to nearest, ties to even.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace espalier {

struct bf16 {
  uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

/// Rounds to nearest even; a NaN stays a (quiet) NaN.
inline bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return bf16{static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

struct fp16 {
  uint16_t bits = 0;
  bool operator==(const fp16&) const = default;
};

// The functions below are always inlined, so that each kernel compiles them for its instruction
// set.

[[gnu::always_inline]] inline float to_float(fp16 x) {
  const uint32_t magnitude = x.bits & 0x7fffU;
  // Normal numbers: bias 15 becomes 127.
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  const uint32_t small =
      __builtin_bit_cast(uint32_t, static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  uint32_t bits = magnitude < 0x400U ? small : normal;
  bits = magnitude >= 0x7c00U ? (magnitude << 13) | 0x7f800000U : bits;
  return __builtin_bit_cast(float, bits | (static_cast<uint32_t>(x.bits) & 0x8000U) << 16);
}

/// Infinite from 65,520 on; a NaN becomes a quiet NaN of its sign.
[[gnu::always_inline]] inline fp16 to_fp16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Normal numbers: 13 bits are rounded away.
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Below 2^-14: adding 2^-1 leaves multiples of 2^-24 in the low bits.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
  const uint32_t small = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000U;
  uint32_t half = magnitude < 0x38800000U ? small : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  return fp16{static_cast<uint16_t>(half | (bits >> 16 & 0x8000U))};
}

/// x rounded to T: float, bf16 or fp16.
template <class T>
[[gnu::always_inline]] inline T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else if constexpr (std::is_same_v<T, fp16>) {
    return to_fp16(x);
  } else {
    return x;
  }
}

enum class DType : uint8_t { fp32, bf16, fp16, int32, uint16, uint8, uint64 };

/// True for fp32, bf16 and fp16: "any" in the comments of kernels and messages.
inline bool is_number(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

/// Calls `body` with a number of this type: float, bf16 or fp16.
template <class Body>
void with_number(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(bf16{});
  } else if (dtype == DType::fp16) {
    body(fp16{});
  } else {
    body(float{});
  }
}

size_t size_of(DType dtype);
std::string_view name_of(DType dtype);
/// Throws Failure that lists the known names.
DType dtype_by_name(std::string_view name);

template <class T>
constexpr DType dtype_of() {
  return std::is_same_v<T, float>      ? DType::fp32
         : std::is_same_v<T, bf16>     ? DType::bf16
         : std::is_same_v<T, fp16>     ? DType::fp16
         : std::is_same_v<T, int32_t>  ? DType::int32
         : std::is_same_v<T, uint16_t> ? DType::uint16
         : std::is_same_v<T, uint8_t>  ? DType::uint8
                                       : DType::uint64;
}

/// Up to four extents, row-major, last one contiguous.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[static_cast<size_t>(axis)]; }
  /// Product of all extents; 1 for rank 0.
  int64_t count() const;
  /// All extents but the last, multiplied: the rows of the matrix view.
  int64_t rows() const;
  /// The last extent (1 for rank 0).
  int64_t cols() const;
  std::span<const int64_t> extents() const { return {extents_.data(), static_cast<size_t>(rank_)}; }
  std::string text() const;  ///< "[384, 1152]"
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace espalier
