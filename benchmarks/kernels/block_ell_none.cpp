// A build without CUDA has no cuSPARSE.
#include "benchmarks/kernels/block_ell.h"

namespace espalier::bench {

std::unique_ptr<BlockEll> make_block_ell(kernels::Backend& /*backend*/,
                                         const BlockEllProduct& /*product*/) {
  return nullptr;
}

}  // namespace espalier::bench
