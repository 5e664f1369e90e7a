// Initial values: what an element starts with does not depend on what else is kept.
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "sparse/store/store.h"
#include "src/core/rng.h"

namespace espalier::sparse {
namespace {

/// values[k] = the draw of kept element first + k: a pure function of (key, its position). Four
/// positions share a counter.
void draw_run(const Index& index, uint64_t key, float deviation, int64_t first,
              std::span<float> values) {
  std::vector<int32_t> positions(values.size());
  index.decode(first, positions);
  int32_t counter = -1;
  int32_t pair = -1;
  Philox bits{};
  std::array<float, 2> draws{};
  for (size_t k = 0; k < values.size(); ++k) {
    const int32_t position = positions[k];
    if (position / 4 != counter) {
      counter = position / 4;
      bits = philox(key, 0, static_cast<uint64_t>(counter));
    }
    if (position / 2 != pair) {
      pair = position / 2;
      const auto two = static_cast<size_t>(pair % 2) * 2;
      draws = normal_pair(bits.at(two), bits.at(two + 1));
    }
    values[k] = deviation * draws[static_cast<size_t>(position % 2)];
  }
}

void draw_normal(const Index& index, uint64_t key, float deviation, std::span<float> values,
                 int threads) {
  constexpr int64_t kRun = 1 << 16;
  const auto count = static_cast<int64_t>(values.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && count > kRun)
  for (int64_t first = 0; first < count; first += kRun) {
    const auto length = static_cast<size_t>(std::min(kRun, count - first));
    draw_run(index, key, deviation, first, values.subspan(static_cast<size_t>(first), length));
  }
}

}  // namespace

std::vector<float> initial_values(const ParameterSpec& spec, const Index& index, uint64_t seed,
                                  int threads) {
  std::vector<float> values(static_cast<size_t>(index.kept()),
                            spec.initial == Initial::ones ? 1.0F : 0.0F);
  if (spec.initial == Initial::normal) {
    const uint64_t key = mix(seed, XXH64(spec.name.data(), spec.name.size(), 0));
    draw_normal(index, key, spec.deviation, values, threads);
  }
  return values;
}

void Store::initialise(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    set_values(parameter, initial_values(parameter.spec, parameter.index, seed, stream_.threads()));
  }
}

}  // namespace espalier::sparse
