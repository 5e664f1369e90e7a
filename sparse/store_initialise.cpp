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
  int32_t drawn = -1;
  std::array<float, 4> draws{};
  for (size_t first = 0; first < values.size(); first += kChunk) {
    const size_t count = std::min(kChunk, values.size() - first);
    const std::span<int32_t> here(positions.data(), count);
    index.decode(static_cast<int64_t>(first), here);
    for (size_t k = 0; k < count; ++k) {
      if (here[k] / 4 != drawn) {
        drawn = here[k] / 4;
        const Philox bits = philox(key, 0, static_cast<uint64_t>(drawn));
        const auto left = normal_pair(bits[0], bits[1]);
        const auto right = normal_pair(bits[2], bits[3]);
        draws = {left[0], left[1], right[0], right[1]};
      }
      values[first + k] = deviation * draws[static_cast<size_t>(here[k] % 4)];
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
