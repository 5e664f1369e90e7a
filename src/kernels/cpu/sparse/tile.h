#pragma once
// The form in which the sparse products walk over a matrix, made anew in the workspace by each call
// from whatever form the positions have (bitmap or list).
//
// The matrix [rows, cols] (W, or its transpose) is cut into tiles: a block of rows times a panel of
// kPanel columns, whose activations stay in the L1 cache. Within a tile, rows are sorted by their
// number of kept elements, so that the inner loops run long stretches with one trip count: with
// unsorted rows the mispredicted ends of the inner loop cost as much as the arithmetic. Elements
// lie in the order in which they are used: a column within the panel (8 bits) and a value (fp32).
// Cost: about 0.4 ns for each kept element, transposed about 1 ns; 5 bytes for each, and 2 for each
// row of each panel. For SDDMM 1 byte (no values) and 3.
#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int kPanelWords = 2;
inline constexpr int kPanel = 64 * kPanelWords;  ///< columns of a tile
inline constexpr int64_t kTileSlack = 64;        ///< elements that a tile may write beyond its end
inline constexpr int kSampledRows = 4;           ///< rows of a group in the tiles of SDDMM

/// `rows` rows, one after the other in the order, with `count` elements each. They are computed in
/// groups of 2 and a last one of 1, or, for SDDMM, of kSampledRows. The columns of a group are
/// interleaved: column e of its row r stands at e * (rows of the group) + r.
///
/// SDDMM: groups are always whole. Rows that keep fewer elements than their group's last have some
/// column instead, whose results nobody reads; so has a row that does not exist, index `rows`. As
/// rows are sorted, that adds up to at most (kSampledRows - 1) kPanel elements of a tile.
struct Run {
  uint16_t count, rows;
};

struct Tiles {
  int64_t rows = 0, cols = 0;
  int64_t block_rows = 0;  ///< rows of a tile (the last block may have fewer)
  int64_t blocks = 0, panels = 0;
  int64_t room = 0;       ///< elements of all tiles at most, with the slack of each
  int64_t slack = 0;      ///< elements that a tile may take or write beyond those that are kept
  bool by_panel = false;  ///< whether tiles that follow each other share a panel, or else a block

  float* values = nullptr;
  uint8_t* columns = nullptr;  ///< within the panel; of a group, e-th element of all rows first
  uint16_t* order = nullptr;   ///< rows of the tile that keep something, [block_rows] for each tile
  uint8_t* counts = nullptr;   ///< SDDMM: kept elements of the tile's rows, [block_rows]
  Run* runs = nullptr;         ///< [kPanel + 1] for each tile; ends with one of no rows
  int64_t* first = nullptr;    ///< where a tile's elements begin

  int64_t at(int64_t block, int64_t panel) const {
    return by_panel ? panel * blocks + block : block * panels + panel;
  }
  int64_t tiles() const { return blocks * panels; }
};

/// Takes consecutive pieces of the workspace; with no memory behind it, only adds up their sizes.
struct Carver {
  std::byte* memory = nullptr;
  size_t used = 0;

  template <class T>
  [[gnu::always_inline]] T* take(int64_t count) {
    std::byte* piece = memory == nullptr ? nullptr : memory + used;
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
};

/// A matrix as flat bits; what the list form lacks is made in the workspace.
struct KeptBits {
  const uint64_t* words = nullptr;
  const uint32_t* ranks = nullptr;
  uint64_t* made = nullptr;       ///< the same words while they are being made
  uint32_t* row_begin = nullptr;  ///< [rows + 1]: kept elements before each row
};

void make_bits(KeptBits& bits, const SparseMatrix& weight, int threads);

/// What a call carves out of the workspace for one matrix.
struct TileMemory {
  KeptBits bits;
  Tiles tiles;
  std::byte* scratch = nullptr;  ///< of the threads, while the tiles are made
  size_t scratch_each = 0;
};

/// The tiles of W with its values, those of its transpose, or those of W without values.
enum class TileUse : uint8_t { product, transposed, sampled };

TileMemory carve_tiles(Carver& carver, const SparseMatrix& weight, TileUse use, int threads);

/// Fills what was carved.
void make_tiles(TileMemory& memory, const SparseMatrix& weight, TileUse use, int threads);

}  // namespace espalier::kernels::ESPALIER_ISA
