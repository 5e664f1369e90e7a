// SNIP: keeps the elements with the largest connection sensitivity |w dL/dw|, summed over a few
// batches before the first step. Source: Lee, Ajanthan and Torr, "SNIP: single-shot network pruning
// based on connection sensitivity", ICLR 2019.
#include <cmath>

#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

void score(const Candidate& candidate, std::span<const float> gradient, std::span<float> scores) {
  const sparse::Mask mask = candidate.index->mask();
  size_t i = 0;
  sparse::for_each_one(mask.words(), [&](int64_t position) {
    scores[i] += std::fabs(candidate.values[i] * gradient[static_cast<size_t>(position)]);
    ++i;
  });
}

Result snip(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const float* value = candidates[i].scores.data();
    sparse::for_each_one(mask.words(),
                         [&](int64_t position) { fn(position, magnitude_key(*value++)); });
  });
}

}  // namespace

extern const Method kSnip{
    .name = "snip",
    .help = "the largest |value x gradient|, summed over some batches",
    .run = snip,
    .scope = Scope::layer,
    .kind = OneShot{.score = score},
};

}  // namespace espalier::pruning
