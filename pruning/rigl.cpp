// RigL: masks move; each change grows the elements with the largest |gradient|. Source: Evci et
// al., "Rigging the lottery", ICML 2020, algorithm 1.
#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

void grow(const Growth& growth, sparse::Mask& mask) {
  grow_by_gradient(growth.name, growth.gradient, growth.count, mask);
}

}  // namespace

extern const Method kRigl{
    .name = "rigl",
    .help = "masks that move: drops the smallest |value|, grows the largest |gradient|",
    .run = keep_largest_magnitudes,
    .needs_gradients = true,
    .grow = grow,
};

}  // namespace espalier::pruning
