// SET: masks move; each change grows random elements. Source: Mocanu et al., "Scalable training of
// artificial neural networks with adaptive sparse connectivity", 2018.
#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

void grow(const Growth& growth, sparse::Mask& mask) {
  grow_at_random(growth.name, {.seed = growth.seed, .step = growth.step}, growth.count, mask);
}

}  // namespace

extern const Method kSet{
    .name = "set",
    .help = "masks that move: drops the smallest |value|, grows at random",
    .run = keep_largest_magnitudes,
    .grow = grow,
};

}  // namespace espalier::pruning
