#pragma once
// Orders and groups the rows of one tile (tile.h) for computation: rows sorted by their number of
// kept elements, the columns of each group interleaved.
#include <cstdint>

#include "src/kernels/cpu/sparse/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

/// The kept elements of a tile: `panel_words` words for each row.
struct TileBits {
  uint64_t* words;  ///< [rows, panel_words]; SDDMM: [rows rounded up to kSampledRows]
  int64_t panel_words;
  int64_t rows;
  uint8_t* counts;  ///< [same number]: filled by the sort
};

/// Writes the tile's order and its runs, for groups of 2 and 1. Pairs: the runs' counts are even.
void sort_rows(const TileBits& in, TileValues values, uint16_t* order, Run* runs);

/// Like sort_rows, for groups of kSampledRows; incomplete groups are padded with rows that do not
/// exist.
void sort_sampled_rows(const TileBits& in, uint16_t* order, Run* runs);

/// Writes the columns of the runs' rows, group by group; returns their number. A row with fewer
/// elements than its run repeats its last column (SDDMM: has arbitrary ones).
int64_t list_groups(const TileBits& in, const uint16_t* order, const Run* runs, uint8_t* columns);
int64_t list_sampled_groups(const TileBits& in, const uint16_t* order, const Run* runs,
                            uint8_t* columns);

}  // namespace espalier::kernels::ESPALIER_ISA
