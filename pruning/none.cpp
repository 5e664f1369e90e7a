// No pruning: masks do not change.
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

Result none(std::span<const Candidate> candidates, const Settings&) {
  return {.masks = current_masks(candidates), .warnings = {}};
}

}  // namespace

extern const Method kNone{
    .name = "none",
    .help = "masks stay as they are",
    .run = none,
    .needs_values = false,
};

}  // namespace espalier::pruning
