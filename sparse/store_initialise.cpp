// Initial values: what an element starts with does not depend on what else is kept.
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "sparse/store.h"
#include "src/core/rng.h"

namespace espalier::sparse {
namespace {

/// values[k] = the draw of the k-th kept element: a pure function of (key, its position). Four
/// positions share a counter.
void draw_normal(const Index& index, uint64_t key, float deviation, std::span<float> values) {
  constexpr size_t kChunk = 1 << 16;
  std::vector<int32_t> positions(std::min(kChunk, values.size()));
  int32_t counter = -1;
  int32_t pair = -1;
  Philox bits{};
  std::array<float, 2> draws{};
  for (size_t first = 0; first < values.size(); first += kChunk) {
    const size_t count = std::min(kChunk, values.size() - first);
    const std::span<int32_t> here(positions.data(), count);
    index.decode(static_cast<int64_t>(first), here);
    for (size_t k = 0; k < count; ++k) {
      if (here[k] / 4 != counter) {
        counter = here[k] / 4;
        bits = philox(key, 0, static_cast<uint64_t>(counter));
      }
      if (here[k] / 2 != pair) {
        pair = here[k] / 2;
        const auto two = static_cast<size_t>(pair % 2) * 2;
        draws = normal_pair(bits.at(two), bits.at(two + 1));
      }
      values[first + k] = deviation * draws[static_cast<size_t>(here[k] % 2)];
    }
  }
}

}  // namespace

std::vector<float> initial_values(const ParameterSpec& spec, const Index& index, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(index.kept()),
                            spec.initial == Initial::ones ? 1.0F : 0.0F);
  if (spec.initial == Initial::normal) {
    const uint64_t key = mix(seed, XXH64(spec.name.data(), spec.name.size(), 0));
    draw_normal(index, key, spec.deviation, values);
  }
  return values;
}

void Store::initialise(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    set_values(parameter, initial_values(parameter.spec, parameter.index, seed));
  }
}

}  // namespace espalier::sparse
