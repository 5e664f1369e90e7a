#pragma once
// The options of a store, as the config names them.
#include "io/config/config.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// Store options of this config, without the type of gradients, which a stage sets; without
/// `training` for weights only, where storage "tiles" is "sparse"; with `generation` for products
/// with few rows, where storage "auto" is "sparse".
sparse::StoreOptions store_options(const io::Config& config, bool training,
                                   bool generation = false);

}  // namespace espalier::train
