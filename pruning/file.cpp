// Masks of a checkpoint of the same network. src/train/masks reads them.
#include "pruning/registry.h"

namespace espalier::pruning {
namespace {

void check_config(const io::PruningConfig& config) {
  check(!config.gradual(), "pruning.method = \"file\" takes its masks as they are; use at_step");
}

}  // namespace

extern const Method kFile{
    .name = "file",
    .help = "the masks of pruning.file",
    .needs_values = false,
    .check_config = check_config,
};

}  // namespace espalier::pruning
