// The largest |value|, over all candidates or in each. Han et al., NeurIPS 2015, section 3.
#include "pruning/methods.h"
#include "pruning/selection.h"

namespace espalier::pruning {

Result prune_magnitude(std::span<const Candidate> candidates, const Settings& settings) {
  return keep_largest(candidates, settings, [&](size_t i, const sparse::Mask& mask, auto&& fn) {
    const float* value = candidates[i].values.data();
    sparse::for_each_one(mask.words(),
                         [&](int64_t position) { fn(position, magnitude_key(*value++)); });
  });
}

}  // namespace espalier::pruning
