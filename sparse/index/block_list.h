#pragma once
// Which whole blocks of a matrix a mask keeps, as block products read it (kernels.h, BlockMatrix).
//
// Blocks of height x width start at row and column 0 and are cut off at the lower and right edge. A
// mask consists of whole ones exactly when each boundary in it, a place where a kept element has a
// pruned neighbour, lies at a multiple of height (below) or width (beside): so the greatest common
// divisor of all boundaries gives every size that fits, in one pass over the words of the mask.
// Values stay in the order of all packed arrays, row by row of the matrix (store.h), which is the
// order of BlockMatrix: no value moves.
// Bytes: 4 a block and 8 a row of blocks, category index. Throws Failure for a mask that is not
// made of whole blocks.
#include <cstdint>
#include <optional>

#include "sparse/index/mask.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

struct BlockSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const BlockSize&) const = default;
};

/// Which blocks storage block computes with.
struct BlockOptions {
  int64_t edge = 16;   ///< of a square
  bool exact = false;  ///< false: the largest blocks that the mask consists of, thin ones too
};

/// Blocks of fewer elements are not used: their list and products cost more than `sparse`.
inline constexpr int64_t kMinBlock = 4;

/// Blocks with a smaller side leave vector lanes empty: at 90 % sparsity products of single
/// elements take half the time of products of 8 x 8 blocks, and that of 16 x 16 (fp32, AVX-512).
inline constexpr int64_t kThinSide = 12;
inline bool is_thin(const BlockSize& block) {
  return block.height < kThinSide || block.width < kThinSide;
}

/// The greatest common divisors of a mask's boundaries; 0 where there is none.
BlockSize boundaries(const Mask& mask, int64_t cols);
/// The blocks to compute a mask of `shape` with; empty when it is not made of such blocks.
std::optional<BlockSize> find_blocks(const Mask& mask, const Shape& shape,
                                     const BlockOptions& options);
/// The same; throws Failure when there are none, naming the density that whole blocks of the
/// given edge would have.
BlockSize choose_blocks(const Mask& mask, const Shape& shape, const BlockOptions& options);
/// Density of the smallest set of whole blocks that covers the mask.
double covering_density(const Mask& mask, int64_t cols, const BlockSize& block);

class BlockList {
 public:
  BlockList() = default;
  /// `mask` of a matrix of `shape`, in memory of the host. Throws Failure unless it consists of
  /// whole blocks. In a dry arena only the bytes are allocated.
  BlockList(Arena& arena, const Mask& mask, const Shape& shape, const BlockSize& block);
  /// For dry runs: allocates the bytes for `kept` elements in whole blocks.
  static BlockList planned(Arena& arena, const Shape& shape, int64_t kept, const BlockSize& block);

  /// To the memory that kernels of `stream` read.
  void move_to(Stream& stream);

  const BlockSize& block() const { return block_; }
  int64_t count() const { return count_; }  ///< kept blocks
  size_t bytes() const { return *this ? array_.tensor().bytes() : 0; }
  const Tensor& array() const { return array_.tensor(); }
  explicit operator bool() const { return static_cast<bool>(array_.tensor()); }
  /// With `values` [kept]; valid while the list lives.
  kernels::BlockMatrix matrix(const Tensor& values) const;

 private:
  void allocate(Arena& arena, const Shape& shape, const BlockSize& block, int64_t count);
  int64_t lines() const;  ///< rows of blocks

  int64_t rows_ = 0, cols_ = 0;
  BlockSize block_;
  int64_t count_ = 0;
  Buffer array_;  ///< int32: blocks before each line, elements before each line, columns of blocks
};

}  // namespace espalier::sparse
