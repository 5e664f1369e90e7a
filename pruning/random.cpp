// Random pruning is magnitude pruning of random keys. The key of an element depends on seed,
// parameter name and position only. So counts are exact, every rank draws the same keys, and for
// one seed a higher sparsity keeps a subset of the elements of a lower one.
#include <xxhash.h>

#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/rng.h"

namespace espalier::pruning {

namespace {

Result random(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const std::string& name = candidates[i].name;
    const uint64_t key = mix(settings.seed, XXH3_64bits(name.data(), name.size()));
    int64_t drawn = -1;  // four elements share one counter
    Philox words{};
    sparse::for_each_one(mask.words(), [&](int64_t position) {
      if (position / 4 != drawn) {
        drawn = position / 4;
        words = philox(key, 0, static_cast<uint64_t>(drawn));
      }
      fn(position, words[static_cast<size_t>(position % 4)]);
    });
  });
}

}  // namespace

extern const Method kRandom{
    .name = "random",
    .help = "drawn at random",
    .run = random,
    .needs_values = false,
};

}  // namespace espalier::pruning
