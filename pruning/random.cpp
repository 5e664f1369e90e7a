// Random pruning is magnitude pruning of random keys. The key of an element depends on seed,
// parameter name and position only. So counts are exact, every rank draws the same keys, and for
// one seed a higher sparsity keeps a subset of the elements of a lower one.
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

Result random(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    RandomKeys key(settings.seed, candidates[i].name, 0);
    sparse::for_each_one(mask.words(), [&](int64_t position) { fn(position, key(position)); });
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
