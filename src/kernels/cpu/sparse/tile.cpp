#include "src/kernels/cpu/sparse/tile.h"

#include <cstring>
#include <type_traits>

#include "src/kernels/cpu/sparse/columns.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kBlockAim = 512;  ///< rows of a tile: enough for long runs; indices fit 16 bits
constexpr int64_t kTilesPerThread = 8;  ///< SDDMM: enough for equal shares

/// Bits [from, from + n) of the flat words, n <= 64.
[[gnu::always_inline]] inline uint64_t bits_at(const uint64_t* words, int64_t from, int64_t n) {
  const int64_t shift = from & 63;
  uint64_t bits = words[from >> 6] >> shift;
  if (shift + n > 64) {
    bits |= words[(from >> 6) + 1] << (64 - shift);
  }
  return n == 64 ? bits : bits & ((uint64_t{1} << n) - 1);
}

/// The values of a tile's rows, contiguous in each row.
template <class T>
struct RowValues {
  const T* values;
  uint32_t* cursor;   ///< [rows]: start of each row's values; advanced past them
  int64_t available;  ///< number of existing values
};

/// A value in the form of a tile (fp32, bf16), or a place.
template <class Out, class T>
[[gnu::always_inline]] inline Out element(const T* from) {
  if constexpr (std::is_same_v<T, Out>) {
    return *from;
  } else {
    Out value;
    store(&value, load(from));
    return value;
  }
}

/// Copies the rows' values in their order, in whole vectors; excess is overwritten by the next row
/// or lies in the tile's slack. `counts`: elements of each row, if some have fewer than their run.
template <class T, class Out>
void copy_values(const RowValues<T>& in, const uint16_t* order, const uint8_t* counts,
                 const Run* runs, Out* out) {
  constexpr int64_t kWide = 16;
  for (; runs->rows > 0; ++runs) {
    for (const uint16_t* end = order + runs->rows; order != end; ++order) {
      const int64_t count = counts == nullptr ? runs->count : counts[*order];
      const int64_t begin = in.cursor[*order];
      in.cursor[*order] = static_cast<uint32_t>(begin + count);
      const T* from = in.values + begin;
      if (begin + count + kWide <= in.available) {
        for (int64_t i = 0; i < count; i += kWide) {
#pragma omp simd
          for (int64_t j = i; j < i + kWide; ++j) {
            out[j] = element<Out>(from + j);
          }
        }
      } else {
        for (int64_t i = 0; i < count; ++i) {
          out[i] = element<Out>(from + i);
        }
      }
      if (count < runs->count) {
        out[count] = Out{};
      }
      out += runs->count;
    }
  }
}

/// Writes one tile whose elements begin at `first`, and its values to `to` + first unless that is
/// null. Returns its number of elements.
template <class T, class Out>
int64_t make_tile(Tiles& tiles, int64_t tile, int64_t first, const TileBits& bits,
                  const RowValues<T>& values, Out* to) {
  uint16_t* order = tiles.order + tile * tiles.block_rows;
  Run* runs = tiles.runs_of(tile);
  tiles.first[tile] = first;
  if (to == nullptr) {
    sort_sampled_rows(bits, order, runs);
    return list_sampled_groups(bits, order, runs, tiles.columns + first);
  }
  sort_rows(bits, tiles.form, order, runs);
  copy_values(values, order, bits.counts, runs, to + first);
  return list_groups(bits, order, runs, tiles.columns + first);
}

/// Number of elements of each row of a tile; null: as its run tells.
uint8_t* kept_counts(const Tiles& tiles, int64_t tile) {
  return tiles.counts == nullptr ? nullptr : tiles.counts + tile * tiles.block_rows;
}
uint8_t* counts_of(const Tiles& tiles, int64_t tile, uint8_t* scratch) {
  return tiles.counts == nullptr ? scratch : kept_counts(tiles, tile);
}

/// Calls body(T{}) with the type of a tile's values.
template <class Body>
void with_type_of(TileValues form, const Body& body) {
  if (form == TileValues::fp32) {
    body(float{});
  } else {
    body(bf16{});
  }
}

/// Scratch of one thread; when transposed, also one block's values in the order of the transpose,
/// or their places in W.
struct Scratch {
  uint64_t* bits;
  uint8_t* counts;
  uint32_t* cursor;
  uint32_t* source;  ///< [panel]: of the rows of W in the panel
  uint8_t* ids;      ///< of 64 columns
  float* values;     ///< [block_rows, panel]; as uint32_t their places
};

Scratch carve_scratch(Carver& carver, const Tiles& tiles, TileUse use) {
  const int64_t turned = use == TileUse::transposed ? 1 : 0;
  const int64_t block_rows = tiles.block_rows;
  const int64_t panel = tiles.panel();
  return {.bits = carver.take<uint64_t>(block_rows * panel / 64),
          .counts = carver.take<uint8_t>(block_rows),
          .cursor = carver.take<uint32_t>(block_rows),
          .source = carver.take<uint32_t>(turned * panel),
          .ids = carver.take<uint8_t>(turned * (64 * panel + kTileSlack)),
          .values = carver.take<float>(turned * (block_rows * panel + kTileSlack))};
}

/// First element of a block's or panel's tiles, whose rows of W begin with element `begin`.
int64_t first_of(const Tiles& tiles, uint32_t begin, int64_t tiles_before) {
  const int64_t together = elements_together(tiles.form);
  return divide_up(begin, together) * together + tiles_before * tiles.slack;
}

/// The next tile's first element.
int64_t behind(int64_t first, int64_t elements) { return first + elements + kTileSlack; }

/// Builds the tiles of a block of rows, panel after panel; values are contiguous in each row.
/// `to`: the tiles' values; null: none.
template <class T, class Out>
void make_block(TileMemory& memory, const SparseMatrix& weight, int64_t block,
                const Scratch& scratch, Out* to) {
  Tiles& tiles = memory.tiles;
  const int64_t words = tiles.panel_words;
  const auto [row0, rows] = tiles.rows_of(block);
  const uint32_t* begin = memory.bits.row_begin + row0;
  std::memcpy(scratch.cursor, begin, static_cast<size_t>(rows) * sizeof(uint32_t));
  const RowValues<T> values{elements<T>(weight.values), scratch.cursor, weight.positions.count};
  int64_t first = first_of(tiles, begin[0], block * tiles.panels);
  for (int64_t panel = 0; panel < tiles.panels; ++panel) {
    const auto [column0, columns] = tiles.columns_of(panel);
    for (int w = 0; w < words; ++w) {
      const int64_t column = column0 + 64 * w;
      const int64_t n = most(0, least(64, columns - 64 * w));
      for (int64_t r = 0; r < rows; ++r) {
        scratch.bits[r * words + w] =
            n == 0 ? 0 : bits_at(memory.bits.words, (row0 + r) * tiles.cols + column, n);
      }
    }
    const int64_t tile = tiles.at(block, panel);
    first =
        behind(first, make_tile(tiles, tile, first,
                                {scratch.bits, words, rows, counts_of(tiles, tile, scratch.counts)},
                                values, to));
  }
}

/// One step of the transposition of 64 x 64 bits: swaps squares of Size x Size across the diagonal.
template <int Size>
[[gnu::always_inline]] inline void swap_squares(uint64_t (&rows)[64], uint64_t mask) {
  for (int i = 0; i < 64; i += 2 * Size) {
    for (int j = i; j < i + Size; ++j) {
      const uint64_t differ = ((rows[j] >> Size) ^ rows[j + Size]) & mask;
      rows[j] ^= differ << Size;
      rows[j + Size] ^= differ;
    }
  }
}

/// Bit i of rows[j] <-> bit j of rows[i].
void transpose_bits(uint64_t (&rows)[64]) {
  swap_squares<32>(rows, 0x00000000ffffffffU);
  swap_squares<16>(rows, 0x0000ffff0000ffffU);
  swap_squares<8>(rows, 0x00ff00ff00ff00ffU);
  swap_squares<4>(rows, 0x0f0f0f0f0f0f0f0fU);
  swap_squares<2>(rows, 0x3333333333333333U);
  swap_squares<1>(rows, 0x5555555555555555U);
}

/// Transposes n <= 64 columns of W in one panel of its rows: their bits, and for each element what
/// `value` makes of its place among the elements of W. Returns the number of elements.
template <class Out, class ValueAt>
int64_t turn_columns(const TileMemory& memory, const SparseMatrix& weight, int64_t panel,
                     Range columns, uint64_t* bits, const Scratch& scratch, Out* values,
                     const ValueAt& value) {
  const auto [column, n] = columns;
  const int64_t words = memory.tiles.panel_words;
  for (int w = 0; w < words; ++w) {
    uint64_t square[64];
    const int64_t row0 = 64 * (panel * words + w);
    for (int64_t r = 0; r < 64; ++r) {
      square[r] = row0 + r < weight.rows
                      ? bits_at(memory.bits.words, (row0 + r) * weight.cols + column, n)
                      : 0;
    }
    transpose_bits(square);
    for (int64_t c = 0; c < n; ++c) {
      bits[c * words + w] = square[c];
    }
  }
  int64_t total = 0;
  for (int64_t i = 0; i < n * words; ++i) {
    total += __builtin_popcountll(bits[i]);
  }
  list_columns({bits, words, nullptr, n}, scratch.ids);
  for (int64_t e = 0; e < total; ++e) {
    values[e] = value(scratch.source[scratch.ids[e]]++);
  }
  return total;
}

/// Builds the tiles of one panel of the transpose (rows of W), block after block. `to`: the tiles'
/// values, or their places in W.
template <class Out, class ValueAt>
void make_panel(TileMemory& memory, const SparseMatrix& weight, int64_t panel,
                const Scratch& scratch, Out* to, const ValueAt& value) {
  Tiles& tiles = memory.tiles;
  const int64_t words = tiles.panel_words;
  Out* const turned = reinterpret_cast<Out*>(scratch.values);
  const int64_t row0 = panel * tiles.panel();
  const int64_t in_panel = least(tiles.panel(), weight.rows - row0);
  const uint32_t* begin = memory.bits.row_begin + row0;
  std::memcpy(scratch.source, begin, static_cast<size_t>(in_panel) * sizeof(uint32_t));
  int64_t first = first_of(tiles, begin[0], panel * tiles.blocks);
  for (int64_t block = 0; block < tiles.blocks; ++block) {
    const auto [column0, rows] = tiles.rows_of(block);
    int64_t total = 0;
    for (int64_t c = 0; c < rows; c += 64) {
      total += turn_columns(memory, weight, panel, {column0 + c, least(64, rows - c)},
                            scratch.bits + c * words, scratch, turned + total, value);
    }
    uint32_t before = 0;
    for (int64_t r = 0; r < rows; ++r) {
      scratch.cursor[r] = before;
      for (int w = 0; w < words; ++w) {
        before += static_cast<uint32_t>(__builtin_popcountll(scratch.bits[r * words + w]));
      }
    }
    const int64_t tile = tiles.at(block, panel);
    first =
        behind(first, make_tile(tiles, tile, first,
                                {scratch.bits, words, rows, counts_of(tiles, tile, scratch.counts)},
                                RowValues<Out>{turned, scratch.cursor, total + kTileSlack}, to));
  }
}

/// The values of the tiles of a block of rows that are made.
template <class T, class Out>
void fill_block(TileMemory& memory, const SparseMatrix& weight, int64_t block,
                const Scratch& scratch, Out* to) {
  Tiles& tiles = memory.tiles;
  const auto [row0, rows] = tiles.rows_of(block);
  std::memcpy(scratch.cursor, memory.bits.row_begin + row0,
              static_cast<size_t>(rows) * sizeof(uint32_t));
  const RowValues<T> values{elements<T>(weight.values), scratch.cursor, weight.positions.count};
  for (int64_t panel = 0; panel < tiles.panels; ++panel) {
    const int64_t tile = tiles.at(block, panel);
    copy_values(values, tiles.order + tile * tiles.block_rows, kept_counts(tiles, tile),
                tiles.runs_of(tile), to + tiles.first[tile]);
  }
}

/// The same for a panel of the transpose.
template <class T, class Out>
void fill_panel(const Tiles& tiles, const SparseMatrix& weight, int64_t panel, Out* to) {
  const T* from = elements<T>(weight.values);
  for (int64_t block = 0; block < tiles.blocks; ++block) {
    const int64_t tile = tiles.at(block, panel);
    const uint16_t* order = tiles.order + tile * tiles.block_rows;
    const uint8_t* counts = kept_counts(tiles, tile);
    const uint32_t* source = tiles.sources + tiles.first[tile];
    Out* out = to + tiles.first[tile];
    for (const Run* run = tiles.runs_of(tile); run->rows > 0; ++run) {
      const int64_t count = run->count;
      for (int64_t i = 0; i < count * run->rows; ++i) {
        out[i] = element<Out>(from + source[i]);
      }
      for (int64_t r = 0; counts != nullptr && r < run->rows; ++r) {
        if (counts[order[r]] < count) {
          out[(r + 1) * count - 1] = Out{};
        }
      }
      order += run->rows;
      out += count * run->rows;
      source += count * run->rows;
    }
  }
}

}  // namespace

TileMemory carve_tiles(Carver& carver, const SparseMatrix& weight, TileUse use, TileValues values,
                       int threads, int64_t segment) {
  TileMemory memory{.segment = segment};
  Tiles& tiles = memory.tiles;
  const bool turned = use == TileUse::transposed;
  tiles.rows = turned ? weight.cols : weight.rows;
  tiles.cols = turned ? weight.rows : weight.cols;
  tiles.by_panel = turned;
  const bool sampled = use == TileUse::sampled;
  const bool pairs = !sampled && values == TileValues::bf16_pairs;
  // Packed activations of a panel take 3/4 of an L1 cache of 32 KiB in pairs, else all of it.
  tiles.panel_words = pairs ? kMostPanel / 64 : 2;
  tiles.row_segment = turned ? segment : tiles.rows;
  tiles.col_segment = turned ? tiles.cols : segment;
  const int64_t aim = most(1, (tiles.row_segment + kBlockAim / 2) / kBlockAim);
  tiles.block_rows = most(64, divide_up(divide_up(tiles.row_segment, aim), 64) * 64);
  tiles.blocks = tiles.segment_blocks() * (turned ? weight.cols / most(1, segment) : 1);
  tiles.panels = tiles.segment_panels() * (turned ? 1 : weight.cols / most(1, segment));
  while (sampled && tiles.tiles() < kTilesPerThread * threads && tiles.block_rows > 16) {
    // Groups are complete, and end in their tile.
    tiles.block_rows = divide_up(tiles.block_rows / 2, kSampledRows) * kSampledRows;
    tiles.blocks = tiles.segment_blocks();
  }
  tiles.form = values;
  tiles.slack = kTileSlack + (sampled ? (kSampledRows - 1) * tiles.panel() : 0) +
                (pairs ? tiles.block_rows : 0);
  tiles.capacity = weight.positions.count + 1 + tiles.tiles() * tiles.slack;
  const auto carve_form = [&](Carver& from) {
    tiles.sources =
        turned && weight.forms != nullptr ? from.take<uint32_t>(tiles.capacity) : nullptr;
    tiles.columns = from.take<uint8_t>(tiles.capacity);
    tiles.counts =
        sampled || pairs ? from.take<uint8_t>(tiles.tiles() * tiles.block_rows) : nullptr;
    tiles.order = from.take<uint16_t>(tiles.tiles() * tiles.block_rows + 2);
    tiles.runs = from.take<Run>(tiles.tiles() * tiles.run_slots());
    tiles.first = from.take<int64_t>(tiles.tiles());
    memory.bits.row_begin = from.take<uint32_t>(weight.rows + 1);
    memory.made_for = weight.forms == nullptr ? nullptr : from.take<int64_t>(1);
  };
  if (weight.forms == nullptr) {
    carve_form(carver);
  } else {
    Carver sizes;
    carve_form(sizes);
    const KeptForms::Place place = weight.forms->place(use, sizes.used);
    Carver kept{place.memory};
    carve_form(kept);
    memory.made = *place.made;
    memory.kept = place.made;
  }
  with_type_of(tiles.form, [&](auto type) {
    tiles.values = sampled ? nullptr : carver.take<decltype(type)>(tiles.capacity);
  });
  if (weight.positions.bitmap == nullptr && !memory.made) {
    memory.bits.made = carver.take<uint64_t>(divide_up(weight.positions.size, 64));
  }
  Carver each;
  carve_scratch(each, tiles, use);
  memory.scratch_each = each.used;
  memory.scratch = carver.take<std::byte>(static_cast<int64_t>(each.used) * threads);
  return memory;
}

void make_tiles(TileMemory& memory, const SparseMatrix& weight, TileUse use, int threads) {
  Tiles& tiles = memory.tiles;
  const bool turned = use == TileUse::transposed;
  const int64_t units = turned ? tiles.panels : tiles.blocks;
  const auto for_units = [&](const auto& body) {
    for_blocks(threads, units, weight.positions.size, [&](int64_t unit) {
      Carver carver{memory.scratch + memory.scratch_each * static_cast<size_t>(thread_index())};
      body(unit, carve_scratch(carver, tiles, use));
    });
  };
  if (memory.made) {
    cpu::require_segment(*memory.made_for, memory.segment);
  } else {
    cpu::require_positions(weight.positions);
    make_bits(memory.bits, weight, threads);
  }
  const auto make_or_fill = [&]<class T, class Out>(T /*type*/, Out /*form*/) {
    Out* const to = static_cast<Out*>(tiles.values);
    const auto value = [from = elements<T>(weight.values)](uint32_t place) {
      return element<Out>(from + place);
    };
    const auto itself = [](uint32_t place) { return place; };
    if (!memory.made) {
      for_units([&](int64_t unit, const Scratch& scratch) {
        if (!turned) {
          make_block<T>(memory, weight, unit, scratch, to);
        } else if (tiles.sources != nullptr) {
          make_panel(memory, weight, unit, scratch, tiles.sources, itself);
        } else {
          make_panel(memory, weight, unit, scratch, to, value);
        }
      });
    }
    if (turned && tiles.sources != nullptr) {
      for_units([&](int64_t unit, const Scratch& /*scratch*/) {
        fill_panel<T>(tiles, weight, unit, to);
      });
    } else if (!turned && memory.made && to != nullptr) {
      for_units([&](int64_t unit, const Scratch& scratch) {
        fill_block<T>(memory, weight, unit, scratch, to);
      });
    }
  };
  with_type(weight.values.dtype, [&](auto type) {
    with_type_of(tiles.form, [&](auto form) { make_or_fill(type, form); });
  });
  if (memory.kept != nullptr) {
    *memory.made_for = memory.segment;
    *memory.kept = true;
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
