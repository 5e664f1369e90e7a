#pragma once
// Masks to measure with where the run has none yet.
#include "io/config/config.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// A mask that keeps about `kept` elements of a parameter of this shape, of the kind that the run's
/// method makes: groups of nm (whatever `kept` is, unless that is all), blocks, else single elements
/// in random places. The same every time. O(size) time.
sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept);

}  // namespace espalier::train
