#include "io/safetensors/type.h"

#include <algorithm>
#include <array>

namespace espalier::io {
namespace {

struct SafetensorsTypeRow {
  std::string_view name;
  uint64_t bits;
};

/// By SafetensorsType.
constexpr std::array<SafetensorsTypeRow, 22> kSafetensorsTypes{
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

static_assert(kSafetensorsTypes.size() == static_cast<size_t>(SafetensorsType::u64) + 1);

}  // namespace

std::string_view name_of(SafetensorsType type) {
  return kSafetensorsTypes.at(static_cast<size_t>(type)).name;
}

std::optional<SafetensorsType> safetensors_type(std::string_view name) {
  const auto* row = std::ranges::find(kSafetensorsTypes, name, &SafetensorsTypeRow::name);
  if (row == kSafetensorsTypes.end()) {
    return {};
  }
  return static_cast<SafetensorsType>(row - kSafetensorsTypes.begin());
}

std::string safetensors_type_names() {
  std::string names;
  for (const SafetensorsTypeRow& row : kSafetensorsTypes) {
    names += names.empty() ? "" : ", ";
    names += row.name;
  }
  return names;
}

uint64_t bits_of(SafetensorsType type) {
  return kSafetensorsTypes.at(static_cast<size_t>(type)).bits;
}

bool is_convertible(SafetensorsType type) {
  return type == SafetensorsType::f64 || type == SafetensorsType::f32 ||
         type == SafetensorsType::f16 || type == SafetensorsType::bf16;
}

std::optional<uint64_t> safetensors_bytes(SafetensorsType type, std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count)) {
      return {};
    }
  }
  uint64_t bits = 0;
  constexpr uint64_t kByte = 8;
  if (__builtin_mul_overflow(count, bits_of(type), &bits) || bits % kByte != 0) {
    return {};
  }
  return bits / kByte;
}

}  // namespace espalier::io
