#pragma once
// A competitor of our products with square blocks: cuSPARSE's SpMM of a blocked-ELL matrix. All
// rows of blocks have the length of the longest one; empty blocks pad the others.
#include <memory>

#include "src/kernels/backend.h"
#include "tests/kernels/kernel_cases_block.h"

namespace espalier::bench {

/// y [tokens, rows] = x [tokens, cols] Wᵀ.
class BlockEll {
 public:
  virtual ~BlockEll() = default;
  /// Enqueues the product on the stream.
  virtual void run() = 0;
};

struct BlockEllProduct {
  const kernels::BlockPattern& pattern;
  Tensor values, x, y;
};

/// Null if cuSPARSE is missing, blocks are not square, or it does not support the product.
std::unique_ptr<BlockEll> make_block_ell(kernels::Backend& backend, const BlockEllProduct& product);

}  // namespace espalier::bench
