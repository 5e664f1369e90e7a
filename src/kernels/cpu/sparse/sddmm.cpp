// The kept elements of dyᵀ x: each is a dot product over the tokens. In the tiled form of W
// (tile.h), four rows with about the same number of kept elements are computed together: their dy
// stay in registers, x comes from L1, with one load per fused multiply-add. The lanes of sixteen
// results are added up in registers.
//
// Threads share the tiles. For each block of tokens, each packs dy and x (features x tokens) of its
// own tiles and adds the block's part to their results. On CPUs with a matrix unit: matrix_unit.h.
#include "src/kernels/cpu/sparse/matrix_unit.h"
#include "src/kernels/cpu/sparse/sampled.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// A grid of shares, one for each thread: groups of blocks of rows times groups of panels of
/// columns. Each share packs the dy and x of its own tiles, so shares of one group pack the same
/// ones. That costs less than to read what another core has packed (benchmarks/results/amx.md).
struct Shares {
  int64_t row_groups = 1, column_groups = 1;

  int64_t count() const { return row_groups * column_groups; }
};

/// The grid of `team` shares with the least work of a share and token: kept elements + kPackOne ×
/// (rows + columns).
Shares shares_of(const Tiles& tiles, int64_t kept, int64_t team) {
  constexpr double kPackOne = 9;  // multiply-adds in the time of packing one value
  Shares best;
  double least_cost = 0;
  for (int64_t groups = 1; groups <= team; ++groups) {
    if (team % groups != 0) {
      continue;
    }
    const int64_t blocks = divide_up(tiles.blocks, groups);
    const int64_t panels = divide_up(tiles.panels, team / groups);
    const double products = static_cast<double>(kept) * static_cast<double>(blocks * panels) /
                            static_cast<double>(tiles.tiles());
    const auto packed = static_cast<double>(blocks * tiles.block_rows + panels * tiles.panel());
    const double cost = products + kPackOne * packed;
    if (groups == 1 || cost < least_cost) {
      best = {groups, team / groups};
      least_cost = cost;
    }
  }
  return best;
}

struct Memory {
  Sampled sampled;
  Shares shares;
  float* dy;  ///< packed, for each group of columns
  float* x;   ///< for each group of rows
};

Memory carve(Carver& carver, const SddmmArgs& args, int threads, int team) {
  const SparseMatrix& weight = args.weight;
  Memory m{.sampled = carve_sampled(carver, weight, args.x.dtype, threads, weight.cols),
           .shares = {},
           .dy = nullptr,
           .x = nullptr};
  m.shares = shares_of(m.sampled.tiles.tiles, weight.positions.count, team);
  const int64_t row = m.sampled.packed_row();
  m.dy = carver.take<float>(m.shares.column_groups * (weight.rows + 1) * row);
  m.x = carver.take<float>(m.shares.row_groups * weight.cols * row);
  return m;
}

/// Blocks, panels, rows or columns [begin, end) of a share.
struct Part {
  int64_t begin, end;
};

/// Blocks with about 1 / row_groups of the kept elements.
Part blocks_of(const Memory& m, int64_t group, int64_t kept) {
  const Tiles& tiles = m.sampled.tiles.tiles;
  const uint32_t* before = m.sampled.tiles.bits.row_begin;
  const auto group_of = [&](int64_t block) {
    const Range rows = tiles.rows_of(block);
    const int64_t twice_middle =
        int64_t{before[rows.first]} + int64_t{before[rows.first + rows.count]};
    return least(m.shares.row_groups - 1, twice_middle * m.shares.row_groups / (2 * kept));
  };
  Part part{0, 0};
  while (part.begin < tiles.blocks && group_of(part.begin) < group) {
    ++part.begin;
  }
  part.end = part.begin;
  while (part.end < tiles.blocks && group_of(part.end) == group) {
    ++part.end;
  }
  return part;
}

/// Packs features [from.begin, from.end) of a block of tokens to rows of `to`.
void pack(const Sampled& sampled, const Tensor& x, int64_t token, Part features, float* to) {
  constexpr int64_t kPiece = 256;  // long enough to stream from memory, short enough for the cache
  const void* rows[kMostTokens];
  for (int64_t i = 0; i < sampled.tokens(); ++i) {
    rows[i] = token + i < x.rows() ? row_bytes(x, token + i) : nullptr;
  }
  for (int64_t f = features.begin; f < features.end; f += kPiece) {
    sampled.kernels.pack({rows, f, least(kPiece, features.end - f)}, sampled.kernels.dot_vectors,
                         to + f * sampled.packed_row());
  }
}

/// The results of one share.
void sample(const SddmmArgs& args, const Memory& m, int64_t share) {
  const Tiles& tiles = m.sampled.tiles.tiles;
  const int64_t row = m.sampled.packed_row();
  const int64_t row_group = share / m.shares.column_groups;
  const int64_t column_group = share % m.shares.column_groups;
  const Part blocks = blocks_of(m, row_group, args.weight.positions.count);
  const Part panels{tiles.panels * column_group / m.shares.column_groups,
                    tiles.panels * (column_group + 1) / m.shares.column_groups};
  const Part rows{blocks.begin * tiles.block_rows,
                  least(tiles.rows, blocks.end * tiles.block_rows)};
  const Part columns{panels.begin * tiles.panel(), least(tiles.cols, panels.end * tiles.panel())};
  float* dy = m.dy + column_group * (tiles.rows + 1) * row;
  float* x = m.x + row_group * tiles.cols * row;
  for (int64_t token = 0; token < args.x.rows(); token += m.sampled.tokens()) {
    pack(m.sampled, args.dy, token, rows, dy);
    pack(m.sampled, args.x, token, columns, x);
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      for (int64_t p = panels.begin; p < panels.end; ++p) {
        m.sampled.kernels.dot_tile(tiles, tiles.at(b, p),
                                   {dy + b * tiles.block_rows * row, x + p * tiles.panel() * row,
                                    token > 0, m.sampled.results});
      }
    }
  }
}

}  // namespace

void sddmm(Stream& stream, const SddmmArgs& args) {
  const int threads = stream.threads();
  const int64_t count = args.weight.positions.count;
  if (count == 0 || (args.accumulate && args.x.rows() == 0)) {
    return;
  }
  if (uses_matrix_unit(args.weight, args.x.dtype, args.x.rows())) {
    matrix_unit_sddmm(stream, args);
    return;
  }
  const int team = team_of(stream, count * args.x.rows());
  Carver sizes;
  carve(sizes, args, threads, team);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory memory = carve(carver, args, threads, team);
  begin_sums(memory.sampled, args.weight, args.x.rows(), threads);
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t share = 0; share < memory.shares.count(); ++share) {
    sample(args, memory, share);
  }
  return_values(memory.sampled, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
