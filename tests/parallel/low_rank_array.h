#pragma once
// An array with several matrices, of many shapes, that are sent as factors.
#include <array>
#include <vector>

#include "parallel/reduction/powersgd/factors.h"
#include "parallel/wire/wire.h"

namespace espalier::parallel {

struct Mixed {
  int64_t count = 0;
  std::vector<LowRankMatrix> matrices;
  std::vector<Range> between;
};

inline Mixed mixed_array() {
  Mixed mixed;
  uint64_t key = 7;
  const std::vector<std::array<int64_t, 3>> shapes{{40, 24, 4}, {1, 50, 3},  {50, 1, 2}, {1, 1, 1},
                                                   {7, 90, 16}, {64, 64, 1}, {3, 3, 8}};
  for (const auto& [rows, cols, rank] : shapes) {
    mixed.between.push_back({.first = mixed.count, .count = 37});
    mixed.count += 37 + 5;  // and padding
    mixed.matrices.push_back(
        {.first = mixed.count, .rows = rows, .cols = cols, .rank = rank, .key = ++key});
    mixed.count += rows * cols;
  }
  mixed.between.push_back({.first = mixed.count, .count = 3000});
  mixed.count += 3000;
  return mixed;
}

/// Segments of the elements between the matrices.
inline std::vector<WireSegment> segments_of(const Mixed& mixed, const kernels::WireFormat& format) {
  std::vector<WireSegment> segments;
  for (const Range& range : mixed.between) {
    segments.push_back({.first = range.first, .count = range.count, .format = format});
  }
  return segments;
}

}  // namespace espalier::parallel
