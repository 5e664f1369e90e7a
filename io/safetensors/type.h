#pragma once
// Element types of safetensors files.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace espalier::io {

/// In the order of the reference implementation, which stores tensors of later types first.
enum class SafetensorsType : uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

/// "BF16"
std::string_view name_of(SafetensorsType type);
/// Empty if no type has this name.
std::optional<SafetensorsType> safetensors_type(std::string_view name);
/// "BOOL, F4, …"
std::string safetensors_type_names();
/// Of an element; 4 and 6 for the types of less than a byte.
uint64_t bits_of(SafetensorsType type);
/// Whether values are converted to and from fp32: F64, F32, F16 and BF16. The bytes of all types
/// are read and written.
bool is_convertible(SafetensorsType type);
/// Bytes of a tensor; empty if they are no whole number, or its elements or their bits do not fit
/// 64 bits. Extents are not negative.
std::optional<uint64_t> safetensors_bytes(SafetensorsType type, std::span<const int64_t> shape);

}  // namespace espalier::io
