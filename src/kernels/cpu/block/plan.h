#pragma once
// Cuts a product with a BlockMatrix into strips: up to 32 neighbouring outputs (rows of W; for the
// transposed product columns of W) that read the same inputs. A strip is computed from its panel,
// the weights as [words][lanes], and the list of inputs of the words.
//
// A word fills one 32-bit lane: an fp32 number, or two bf16 numbers of neighbouring inputs.
// Compiled once, called from every table (see cpu/table.h). Cost: a pass over the blocks.
#include <cstddef>
#include <cstdint>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

inline constexpr int32_t kWideStrip = 32;
inline constexpr int32_t kThinStrip = 16;

/// Up to kWideStrip neighbouring outputs of a row or column of blocks.
struct BlockStrip {
  int64_t first = 0;   ///< first output
  int32_t count = 0;   ///< outputs
  int32_t lanes = 0;   ///< kWideStrip or kThinStrip
  int32_t line = 0;    ///< row of blocks; in the transposed product, column of blocks
  int32_t inside = 0;  ///< offset of its first output in the line
  int64_t words = 0;
  int64_t offsets = 0;  ///< its list in BlockPlan::offsets; strips of a line share one
  int64_t panel = 0;    ///< its panel in BlockPlan::panels
};

/// A block in the list of its column of blocks.
struct BlockEntry {
  int32_t row = 0;    ///< row of blocks
  int32_t place = 0;  ///< kept elements before it in each matrix row of its row of blocks
};

struct BlockPlan {
  BlockStrip* strips = nullptr;
  int64_t strip_count = 0;
  int32_t* offsets = nullptr;  ///< bytes from the start of a row of inputs to the word
  uint32_t* panels = nullptr;  ///< [words][lanes] of each strip; the caller fills them
  std::byte* extra = nullptr;  ///< BlockPlanOptions::extra_bytes
  /// For the transposed product: column j has the entries [begin[j], begin[j + 1]), ascending.
  int32_t* entry_begin = nullptr;
  BlockEntry* entries = nullptr;
};

struct BlockPlanOptions {
  bool transposed = false;
  bool pairs = false;         ///< words hold two inputs; extents along the inputs must be even
  int32_t element_bytes = 4;  ///< of the inputs
  size_t extra_bytes = 0;
};

/// The plan is in the stream's workspace: valid until the next workspace request.
BlockPlan plan_blocks(Stream& stream, const BlockMatrix& weight, const BlockPlanOptions& options);

/// Number of rows (columns) of blocks.
int64_t block_rows(const BlockMatrix& weight);
int64_t block_columns(const BlockMatrix& weight);

}  // namespace espalier::kernels::cpu
