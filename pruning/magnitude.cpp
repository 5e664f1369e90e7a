// Keeps the largest |value|, over all candidates or in each. Han et al., NeurIPS 2015, section 3.
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {

extern const Method kMagnitude{
    .name = "magnitude",
    .help = "the largest |value|",
    .run = keep_largest_magnitudes,
};

}  // namespace espalier::pruning
