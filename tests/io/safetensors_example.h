#pragma once
// Safetensors files in a folder of a test: texts of headers, and a small model of all types.
#include <cstring>
#include <string>
#include <vector>

#include "io/files/raw_file.h"
#include "io/safetensors/writer.h"
#include "src/core/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::io {

/// The bytes of a file: length, header, `data_bytes` bytes 0, 1, 2, …
inline std::string safetensors_file(const std::string& header, size_t data_bytes) {
  std::string out;
  for (size_t i = 0; i < 8; ++i) {
    out += static_cast<char>(header.size() >> (8 * i));
  }
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) {
    out += static_cast<char>(i);
  }
  return out;
}

inline void write_bytes_of_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Every type, ranks 0 to 6, an empty tensor, and names that JSON escapes.
inline std::vector<SafetensorsEntry> all_types() {
  return {{.name = "w.f32", .type = SafetensorsType::f32, .shape = {3, 5}},
          {.name = "w.f16", .type = SafetensorsType::f16, .shape = {7}},
          {.name = "w.bf16", .type = SafetensorsType::bf16, .shape = {1, 2, 3, 1, 1, 2}},
          {.name = "w.f64", .type = SafetensorsType::f64, .shape = {}},
          {.name = "i64", .type = SafetensorsType::i64, .shape = {2}},
          {.name = "i32", .type = SafetensorsType::i32, .shape = {3}},
          {.name = "i16", .type = SafetensorsType::i16, .shape = {3}},
          {.name = "i8", .type = SafetensorsType::i8, .shape = {3}},
          {.name = "u64", .type = SafetensorsType::u64, .shape = {1}},
          {.name = "u32", .type = SafetensorsType::u32, .shape = {1}},
          {.name = "u16", .type = SafetensorsType::u16, .shape = {1}},
          {.name = "u8", .type = SafetensorsType::u8, .shape = {5}},
          {.name = "mask", .type = SafetensorsType::boolean, .shape = {2, 2}},
          {.name = "fp8", .type = SafetensorsType::f8_e4m3, .shape = {3}},
          {.name = "fp8.wide", .type = SafetensorsType::f8_e5m2, .shape = {3}},
          {.name = "empty", .type = SafetensorsType::f32, .shape = {4, 0, 2}},
          {.name = "a \"b\"\\\n\x01 \x7f é", .type = SafetensorsType::u8, .shape = {1}}};
}

/// The same bytes for the same tensor in every test.
inline std::vector<std::byte> bytes_of(const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(*safetensors_bytes(entry.type, entry.shape));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(37 * i + 11 * entry.name.size() + 1);
  }
  return bytes;
}

inline void write_all_types(const std::filesystem::path& path,
                            const SafetensorsOptions& options = {}) {
  const std::vector<SafetensorsEntry> entries = all_types();
  SafetensorsWriter writer(path, entries, options);
  for (const SafetensorsEntry& entry : entries) {
    writer.write_bytes(entry.name, bytes_of(entry));
  }
  writer.commit();
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::vector<std::string> files() const { return testing::names_in(folder_); }

  const testing::TempDir folder_;
  const std::filesystem::path path_ = folder_ / "model.safetensors";
};

}  // namespace espalier::io
