#pragma once
// The form of a matrix in the sparse products. It is built from any form of the positions (bitmap
// or list): by each call in the workspace, or, with KeptForms, once for all calls until the mask
// changes. Then each call only copies the values.
//
// The matrix [rows, cols] (W, or its transpose) is cut into tiles: a block of rows times a panel of
// up to kMostPanel columns, whose activations stay in the L1 cache. In a tile, rows are sorted by
// their number of kept elements, so that inner loops have long stretches with one trip count; with
// unsorted rows, mispredicted loop ends cost as much as the arithmetic. Elements are stored in the
// order of use: a column within the panel (8 bits) and a value (fp32, or bf16 in pairs).
//
// The columns of W may come in segments, such as the rows of a convolution's window: then no panel,
// or no block of the transpose, crosses the boundary of two segments.
//
// Cost per kept element: about 0.4 ns (transposed 1 ns) and 5 bytes; also 2 bytes per row of each
// panel. SDDMM: 1 byte (no values) and 3. Kept: 1 byte (transposed 5, for the place of its value).
#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/sparse/groups.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kTileSlack = 64;  ///< elements that a tile may write beyond its end
inline constexpr int64_t kMostTileRows = 768;

/// Consecutive rows or columns.
struct Range {
  int64_t first, count;
};

struct Tiles {
  int64_t rows = 0, cols = 0;
  int64_t block_rows = 0;  ///< most rows of a tile
  int64_t blocks = 0, panels = 0;
  int64_t row_segment = 0, col_segment = 0;  ///< rows, columns between boundaries
  int64_t capacity = 0;   ///< upper bound on elements of all tiles, with the slack of each
  int64_t slack = 0;      ///< elements that a tile may hold or write beyond the kept ones
  bool by_panel = false;  ///< consecutive tiles share a panel; else a block

  TileValues form = TileValues::fp32;
  int panel_words = 0;          ///< words of 64 columns of a tile
  void* values = nullptr;       ///< in this form; SDDMM: none
  uint32_t* sources = nullptr;  ///< kept ones of the transpose: place of each value in W
  uint8_t* columns = nullptr;   ///< within the panel; interleaved in each group
  uint16_t* order = nullptr;    ///< non-empty rows of the tile, [block_rows] for each tile; 2 more
  uint8_t* counts = nullptr;    ///< SDDMM, pairs: kept elements of the tile's rows, [block_rows]
  Run* runs = nullptr;          ///< [run_slots()] for each tile; ends with one of 0 rows
  int64_t* first = nullptr;     ///< index of each tile's first element

  int64_t at(int64_t block, int64_t panel) const {
    return by_panel ? panel * blocks + block : block * panels + panel;
  }
  int64_t tiles() const { return blocks * panels; }
  int64_t panel() const { return int64_t{64} * panel_words; }
  int64_t run_slots() const { return panel() + 1; }
  Run* runs_of(int64_t tile) const { return runs + tile * run_slots(); }

  Range rows_of(int64_t block) const { return range_of(block, block_rows, row_segment); }
  Range columns_of(int64_t column_panel) const {
    return range_of(column_panel, panel(), col_segment);
  }
  int64_t segment_blocks() const { return (row_segment + block_rows - 1) / block_rows; }
  int64_t segment_panels() const { return (col_segment + panel() - 1) / panel(); }

 private:
  static Range range_of(int64_t index, int64_t each, int64_t segment) {
    const int64_t pieces = (segment + each - 1) / each;
    const int64_t within = index % pieces * each;
    return {index / pieces * segment + within, within + each < segment ? each : segment - within};
  }
};

using cpu::Carver;

/// A matrix as flat bits; for a list, the bits are built in the workspace.
struct KeptBits {
  const uint64_t* words = nullptr;
  const uint32_t* prefix_counts = nullptr;
  uint64_t* made = nullptr;       ///< the same words, writable, while they are built
  uint32_t* row_begin = nullptr;  ///< [rows + 1]: kept elements before each row
};

void make_bits(KeptBits& bits, const SparseMatrix& weight, int threads);

/// Memory of one matrix in a call.
struct TileMemory {
  KeptBits bits;
  Tiles tiles;
  int64_t segment = 0;
  int64_t* made_for = nullptr;   ///< of kept forms: the segment that they were made for
  bool made = false;             ///< by an earlier call: only values are missing
  bool* kept = nullptr;          ///< to set when they are made, for later calls; null: not kept
  std::byte* scratch = nullptr;  ///< per thread, while tiles are built or filled
  size_t scratch_each = 0;
};

/// The tiles of W with its values, those of its transpose, or those of W without values.
using TileUse = PositionForm;

/// `segment` columns of W make a segment; it divides their number. Asks `weight.forms` for memory.
/// `values` and `segment` must always be the same for a matrix with kept forms.
TileMemory carve_tiles(Carver& carver, const SparseMatrix& weight, TileUse use, TileValues values,
                       int threads, int64_t segment);

/// Fills the allocated tiles.
void make_tiles(TileMemory& memory, const SparseMatrix& weight, TileUse use, int threads);

}  // namespace espalier::kernels::ESPALIER_ISA
