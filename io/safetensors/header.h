#pragma once
// The header of a safetensors file: names, types, shapes and places of its tensors.
//
//   8 bytes    N, little-endian
//   N bytes    JSON: {"__metadata__": {TEXT: TEXT}, NAME: {"dtype": "F32", "shape": [2, 3],
//              "data_offsets": [BEGIN, END]}, …}, padded with spaces; offsets count from its end
//   the rest   the data
//
// Files may come from anywhere. The rules are those of the reference implementation, above all:
// the tensors cover the data without holes and overlaps. Members of a tensor other than the three
// are skipped. Refused although the reference implementation reads it, and no known program writes
// it: names that stand twice, JSON that does not begin with "{", more than 64 extents, extents of
// 2^63 or more, a tensor as a list of its three values.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors/type.h"

namespace espalier::io {

/// Bytes of a header, at most: the reference implementation's limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
/// Key of the header's texts; no tensor has this name.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsTensor {
  std::string name{};
  SafetensorsType type = SafetensorsType::f32;
  std::vector<int64_t> shape{};  ///< any rank; empty: one element
  uint64_t begin = 0;            ///< its data are bytes [begin, end) after the header
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t count() const;           ///< elements
  std::string shape_text() const;  ///< "[384, 1152]"
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors{};  ///< in the order of their data
  std::map<std::string, std::string> metadata{};
};

/// Of a file with `data_bytes` bytes after its header. Throws Failure, which begins with `file` and
/// names the tensor, unless the tensors cover the data.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           std::string_view file);

/// The first bytes of a file: N, the JSON of `header`, and spaces, a multiple of 8 bytes. As the
/// reference implementation writes them, with texts in the order of their keys. Throws Failure,
/// which begins with `file`, if a text is not UTF-8, or the header is longer than readers accept.
std::string safetensors_header_text(const SafetensorsHeader& header, std::string_view file);

/// End of messages about files that break the format's rules.
inline constexpr std::string_view kSafetensorsFix =
    "the file is damaged or was written wrongly: download or export it again";

}  // namespace espalier::io
