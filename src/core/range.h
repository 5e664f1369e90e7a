#pragma once
// A range of elements (or bytes) of an array.
#include <cstdint>

namespace espalier {

/// [first, first + count).
struct Range {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

}  // namespace espalier
