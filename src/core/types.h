#pragma once
// Element types and shapes. bf16 is the upper half of an fp32; rounding is to nearest, ties to
// even.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

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

/// An fp32 number as bf16, rounded to nearest (ties away from zero), and the 16 bits that rounding
/// took away: bits of the number = (high << 16) + (int16) low, for every number. Every NaN becomes
/// the same one.
struct SplitFloat {
  bf16 high;
  uint16_t low = 0;
};
inline SplitFloat split(float x) {
  const uint32_t bits = x != x ? 0x7fc00000U : std::bit_cast<uint32_t>(x);
  return {bf16{static_cast<uint16_t>((bits + 0x8000U) >> 16)}, static_cast<uint16_t>(bits)};
}
inline float join(bf16 high, uint16_t low) {
  const auto rest = static_cast<uint32_t>(int32_t{static_cast<int16_t>(low)});
  return std::bit_cast<float>((uint32_t{high.bits} << 16) + rest);
}

enum class DType : uint8_t { fp32, bf16, int32, uint16, uint8, uint64 };

size_t size_of(DType dtype);
std::string_view name_of(DType dtype);
/// Throws Failure that lists the known names.
DType dtype_by_name(std::string_view name);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::fp32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::int32;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::uint16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::uint8;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::uint64;
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
