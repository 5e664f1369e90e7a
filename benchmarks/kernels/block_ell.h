#pragma once
// A rival of our products with square blocks: cuSPARSE's SpMM of a blocked-ELL matrix, in which all
// rows of blocks have as many as the longest one; the others are padded with empty blocks.
#include <memory>

#include "src/kernels/backend.h"
#include "tests/kernels/kernel_cases_block.h"

namespace espalier::bench {

/// y [tokens, rows] = x [tokens, cols] Wᵀ.
class BlockEll {
 public:
  virtual ~BlockEll() = default;
  /// Asks the stream for the product.
  virtual void run() = 0;
};

struct BlockEllProduct {
  const kernels::BlockPattern& pattern;
  Tensor values, x, y;
};

/// Null where there is no cuSPARSE, blocks are not square, or it does not support the product.
std::unique_ptr<BlockEll> make_block_ell(kernels::Backend& backend, const BlockEllProduct& product);

}  // namespace espalier::bench
