#pragma once
// Flat arrays for tests, in the store's layout: each parameter begins at a multiple of 16 elements.
#include <initializer_list>
#include <vector>

#include "parallel/partition.h"

namespace espalier::parallel {

struct Layout {
  std::vector<FlatParameter> parameters;
  int64_t total = 0;

  void add(int64_t kept) {
    parameters.push_back({.offset = total, .kept = kept});
    total += (kept + 15) / 16 * 16;
  }
};

inline Layout layout_of(std::initializer_list<int64_t> kept) {
  Layout layout;
  for (const int64_t one : kept) {
    layout.add(one);
  }
  return layout;
}

}  // namespace espalier::parallel
