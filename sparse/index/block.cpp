// Block masks: one bit a block of height x width, row by row of blocks; those at the lower and
// right edge are cut off. prefix_counts[i] = kept elements before row of blocks i.
#include <algorithm>

#include "sparse/index/bit_stream.h"
#include "sparse/index/index.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

struct Grid {
  int64_t rows, cols;
  int64_t height, width;
  int64_t down, across;  // rows and columns of blocks

  Grid(int64_t size, const IndexShape& shape)
      : rows(size / shape.cols),
        cols(shape.cols),
        height(shape.height),
        width(shape.width),
        down((rows + height - 1) / height),
        across((cols + width - 1) / width) {}

  int64_t begin(int64_t j) const { return j * width; }
  int64_t end(int64_t j) const { return std::min(cols, (j + 1) * width); }
  int64_t height_of(int64_t i) const { return std::min(height, rows - i * height); }
};

/// fn(j) for the kept blocks j < last in row i of blocks.
template <class Fn>
void for_each_block(std::span<const uint8_t> data, const Grid& grid, int64_t i, int64_t last,
                    Fn&& fn) {
  constexpr int64_t kAtOnce = 56;
  for (int64_t j = 0; j < last; j += kAtOnce) {
    uint64_t bits = load_bits(data, i * grid.across + j) &
                    low_mask(static_cast<int>(std::min(kAtOnce, last - j)));
    for (; bits != 0; bits &= bits - 1) {
      fn(j + std::countr_zero(bits));
    }
  }
}

/// Kept elements in one row of the matrix, in the first `last` blocks of row i of blocks.
int64_t kept_in_row(std::span<const uint8_t> data, const Grid& grid, int64_t i, int64_t last) {
  int64_t kept = 0;
  for_each_block(data, grid, i, last, [&](int64_t j) { kept += grid.end(j) - grid.begin(j); });
  return kept;
}

size_t exact_bytes(const Mask&, const Counts& counts) {
  const Grid grid(counts.size, counts.shape);
  return word_bytes(grid.down * grid.across);
}

int64_t prefix_counts_size(const Counts& counts) { return Grid(counts.size, counts.shape).down; }

/// Whether elements [begin, end) of a row are kept: by the first one of the block.
bool block_kept(const Mask& mask, const Grid& grid, int64_t i, int64_t j) {
  return mask[i * grid.height * grid.cols + grid.begin(j)];
}

void check_shape(int64_t size, const IndexShape& shape) {
  check(shape.cols > 0 && size % shape.cols == 0,
        "block index: {} elements are no rows of {}: it needs the columns of the matrix", size,
        shape.cols);
  check(shape.height >= 1 && shape.height <= kMaxElements && shape.width >= 1 &&
            shape.width <= kMaxElements,
        "block index: blocks of {} x {}: both lie in 1 to {}", shape.height, shape.width,
        kMaxElements);
}

bool possible(int64_t size, const IndexShape& shape) {
  return shape.cols > 0 && size % shape.cols == 0 && shape.height >= 1 && shape.width >= 1;
}

/// Whether `mask` consists of the blocks of `shape`.
bool holds(const Mask& mask, const IndexShape& shape) {
  if (!possible(mask.size(), shape)) {
    return false;
  }
  const Grid grid(mask.size(), shape);
  // Kept elements by block of the present row of blocks: all of it or none.
  std::vector<int64_t> kept(static_cast<size_t>(grid.across));
  int64_t ends_at = 0;
  const auto whole = [&](int64_t i) {
    for (int64_t j = 0; j < grid.across; ++j) {
      int64_t& count = kept[static_cast<size_t>(j)];
      if (count != 0 && count != (grid.end(j) - grid.begin(j)) * grid.height_of(i)) {
        return false;
      }
      count = 0;
    }
    return true;
  };
  bool fits = true;
  for_each_one(mask.words(), [&](int64_t position) {
    const int64_t row = position / shape.cols;
    if (row >= ends_at) {
      fits = fits && whole(std::max<int64_t>(ends_at / shape.height - 1, 0));
      ends_at = (row / shape.height + 1) * shape.height;
    }
    ++kept[static_cast<size_t>((position - row * shape.cols) / shape.width)];
  });
  return fits && (grid.down == 0 || whole(std::max<int64_t>(ends_at / shape.height - 1, 0)));
}

void encode(const Mask& mask, const Counts& counts, std::span<uint8_t> data) {
  const IndexShape& shape = counts.shape;
  check(holds(mask, shape),
        "block index: the mask does not consist of whole blocks of {} x {}: use another encoding",
        shape.height, shape.width);
  const Grid grid(counts.size, shape);
  BitWriter out(data);
  for (int64_t i = 0; i < grid.down; ++i) {
    for (int64_t j = 0; j < grid.across; ++j) {
      out.put(block_kept(mask, grid, i, j) ? 1 : 0, 1);
    }
  }
  out.finish();
}

void check_data(const Coded& coded) {
  const Grid grid(coded.size, coded.shape);
  check_words("block index", coded.data, grid.down * grid.across);
  int64_t kept = 0;
  for (int64_t i = 0; i < grid.down; ++i) {
    kept += kept_in_row(coded.data, grid, i, grid.across) * grid.height_of(i);
  }
  check(kept == coded.kept, "block index: blocks of {} elements are set, but {} should be kept",
        kept, coded.kept);
}

void build_prefix_counts(const Coded& coded, std::span<uint32_t> prefix_counts) {
  const Grid grid(coded.size, coded.shape);
  int64_t kept = 0;
  for (int64_t i = 0; i < grid.down; ++i) {
    prefix_counts[static_cast<size_t>(i)] = static_cast<uint32_t>(kept);
    kept += kept_in_row(coded.data, grid, i, grid.across) * grid.height_of(i);
  }
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  if (out.empty()) {
    return;
  }
  const Grid grid(coded.size, coded.shape);
  auto i = std::ranges::upper_bound(coded.prefix_counts, first) - coded.prefix_counts.begin() - 1;
  const int64_t a_row = kept_in_row(coded.data, grid, i, grid.across);
  const int64_t before = first - coded.prefix_counts[static_cast<size_t>(i)];
  int64_t row = i * grid.height + before / a_row;
  int64_t skip = before % a_row;
  int32_t* next = out.data();
  int32_t* const end = next + out.size();
  for (; next != end; ++row) {
    const int64_t base = row * grid.cols;
    for_each_block(coded.data, grid, row / grid.height, grid.across, [&](int64_t j) {
      const int64_t length = grid.end(j) - grid.begin(j);
      const int64_t from = std::min(skip, length);
      skip -= from;
      const int64_t count = std::min<int64_t>(length - from, end - next);
      for (int64_t k = 0; k < count; ++k) {
        next[k] = static_cast<int32_t>(base + grid.begin(j) + from + k);
      }
      next += count;
    });
  }
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const Grid grid(coded.size, coded.shape);
  if (dense == coded.size) {
    return coded.kept;
  }
  const int64_t row = dense / grid.cols;
  const int64_t column = dense % grid.cols;
  const int64_t i = row / grid.height;
  const int64_t j = column / grid.width;
  const bool inside = (load_bits(coded.data, i * grid.across + j) & 1) != 0;
  return coded.prefix_counts[static_cast<size_t>(i)] +
         kept_in_row(coded.data, grid, i, grid.across) * (row - i * grid.height) +
         kept_in_row(coded.data, grid, i, j) + (inside ? column - grid.begin(j) : 0);
}

ShapeRules::Header header(const IndexShape& shape) {
  return {static_cast<uint32_t>(shape.cols), static_cast<uint32_t>(shape.height),
          static_cast<uint32_t>(shape.width)};
}

IndexShape shape_in(const ShapeRules::Header& header) {
  return {.cols = header[0], .height = header[1], .width = header[2]};
}

constexpr ShapeRules kRules{.possible = possible,
                            .holds = holds,
                            .check = check_shape,
                            .header = header,
                            .shape = shape_in};

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .prefix_counts_size = prefix_counts_size,
                         .encode = encode,
                         .check = check_data,
                         .build_prefix_counts = build_prefix_counts,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::block{.name = "block",
                                         .help = "masks of whole blocks: one bit a block",
                                         .coding = &kCoding,
                                         .rules = &kRules};

}  // namespace espalier::sparse
