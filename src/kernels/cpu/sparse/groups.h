#pragma once
// Orders and groups the rows of one tile (tile.h) for computation: rows sorted by their number of
// kept elements, the columns of each group interleaved.
#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int kMostPanel = 192;  ///< columns of a tile
inline constexpr int kSampledRows = 4;  ///< rows of a group in the tiles of SDDMM

/// Values of a tile: fp32, or bf16 in pairs. In pairs, the number of elements of a row in a tile is
/// even: a last one without partner is followed by its own column with the value 0.
enum class TileValues : uint8_t { fp32, bf16_pairs };
constexpr int elements_together(TileValues values) {
  return values == TileValues::bf16_pairs ? 2 : 1;
}

/// `rows` consecutive rows of the order, with `count` elements each. They are computed in groups of
/// 2 and a last one of 1, or, for SDDMM, of kSampledRows. The columns of a group are interleaved:
/// column e of its row r is at e * (rows of the group) + r.
///
/// SDDMM: groups are always complete. A row with fewer elements than its group's last row is padded
/// with arbitrary columns, whose results are unused; so is a row that does not exist, index `rows`.
/// As rows are sorted, padding is at most (kSampledRows - 1) Tiles::panel() elements per tile.
struct Run {
  uint16_t count, rows;
};

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
