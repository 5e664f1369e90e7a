#include "sparse/index/block_list.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr int64_t kWordBits = 64;
/// Larger blocks are cut: products gain nothing from them, threads share smaller ones more evenly.
constexpr std::array<int64_t, 4> kSides{64, 48, 32, 16};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Bits [at, at + count) of `words`, count <= 64.
uint64_t bits_at(std::span<const uint64_t> words, int64_t at, int64_t count) {
  const auto word = static_cast<size_t>(at / kWordBits);
  const auto shift = static_cast<int>(at % kWordBits);
  uint64_t bits = words[word] >> shift;
  if (shift + count > kWordBits) {
    bits |= words[word + 1] << (kWordBits - shift);
  }
  return count == kWordBits ? bits : bits & ((uint64_t{1} << count) - 1);
}

bool same_rows(std::span<const uint64_t> words, int64_t cols, int64_t a, int64_t b) {
  for (int64_t c = 0; c < cols; c += kWordBits) {
    const int64_t count = std::min(kWordBits, cols - c);
    if (bits_at(words, a * cols + c, count) != bits_at(words, b * cols + c, count)) {
      return false;
    }
  }
  return true;
}

/// gcd of `width` and the columns at which row `row` changes.
int64_t width_of_row(std::span<const uint64_t> words, int64_t cols, int64_t row, int64_t width) {
  for (int64_t c = 1; c < cols && width != 1; c += kWordBits) {
    const int64_t count = std::min(kWordBits, cols - c);
    uint64_t changes =
        bits_at(words, row * cols + c, count) ^ bits_at(words, row * cols + c - 1, count);
    for (; changes != 0 && width != 1; changes &= changes - 1) {
      width = std::gcd(width, c + std::countr_zero(changes));
    }
  }
  return width;
}

/// Whether blocks of `side` end at every boundary; `divisor` is 0 when there is none.
bool divides(int64_t side, int64_t divisor) { return divisor % side == 0; }

/// The side to compute with, for boundaries at multiples of `divisor`.
int64_t side_of(int64_t divisor, int64_t edge) {
  if (divisor == 0) {
    return edge;
  }
  if (divisor <= kSides.front()) {
    return divisor;
  }
  const auto* found =
      std::ranges::find_if(kSides, [&](int64_t side) { return divides(side, divisor); });
  return found == kSides.end() ? divisor : *found;
}

/// Blocks beyond the matrix have no elements.
BlockSize within(const Shape& shape, const BlockSize& block) {
  return {std::clamp<int64_t>(block.height, 1, std::max<int64_t>(shape.rows(), 1)),
          std::clamp<int64_t>(block.width, 1, std::max<int64_t>(shape.cols(), 1))};
}

/// fn(line, column) for each block whose first element is kept, row by row of blocks.
template <class Fn>
void for_each_block(const Mask& mask, const Shape& shape, const BlockSize& block, Fn&& fn) {
  for (int64_t row = 0; row < shape.rows(); row += block.height) {
    for (int64_t col = 0; col < shape.cols(); col += block.width) {
      if (mask[row * shape.cols() + col]) {
        fn(row / block.height, col / block.width);
      }
    }
  }
}

}  // namespace

BlockSize boundaries(const Mask& mask, int64_t cols) {
  require(cols > 0 ? mask.size() % cols == 0 : mask.size() == 0, "a mask covers whole rows",
          mask.size(), cols);
  const std::span<const uint64_t> words = mask.words();
  BlockSize found;
  for (int64_t row = 0; row * cols < mask.size() && found != BlockSize{1, 1}; ++row) {
    if (row > 0 && same_rows(words, cols, row - 1, row)) {
      continue;  // no boundary above it, and those within it are known
    }
    found.height = std::gcd(found.height, row);
    found.width = width_of_row(words, cols, row, found.width);
  }
  return found;
}

double covering_density(const Mask& mask, int64_t cols, const BlockSize& block) {
  if (mask.size() == 0) {
    return 1;
  }
  const int64_t rows = mask.size() / cols;
  const int64_t across = divide_up(cols, block.width);
  std::vector<bool> touched(static_cast<size_t>(divide_up(rows, block.height) * across));
  int64_t covered = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    const int64_t line = position / cols / block.height;
    const int64_t column = position % cols / block.width;
    auto one = touched[static_cast<size_t>(line * across + column)];
    if (!one) {
      one = true;
      covered += std::min(block.height, rows - line * block.height) *
                 std::min(block.width, cols - column * block.width);
    }
  });
  return static_cast<double>(covered) / static_cast<double>(mask.size());
}

std::optional<BlockSize> find_blocks(const Mask& mask, const Shape& shape,
                                     const BlockOptions& options) {
  require(options.edge >= 1, "blocks have a size", options.edge);
  const BlockSize divisors = boundaries(mask, shape.cols());
  BlockSize found{options.edge, options.edge};
  if (!options.exact) {
    found = {side_of(divisors.height, options.edge), side_of(divisors.width, options.edge)};
  }
  found = within(shape, found);
  const bool fits = divides(found.height, divisors.height) && divides(found.width, divisors.width);
  const bool large =
      options.exact || found.height * found.width >= std::min(kMinBlock, mask.size());
  return fits && large ? std::optional(found) : std::nullopt;
}

BlockSize choose_blocks(const Mask& mask, const Shape& shape, const BlockOptions& options) {
  if (const auto found = find_blocks(mask, shape, options)) {
    return *found;
  }
  std::string own;
  if (const auto found = find_blocks(mask, shape, {.edge = options.edge}); options.exact && found) {
    own = fmt::format(", or \"block\" without an edge for the blocks of {}x{} that it has",
                      found->height, found->width);
  }
  fail(
      "storage \"block\" needs a mask of whole blocks: whole {0}x{0} blocks would hold {1:.1f} % "
      "instead of {2:.1f} %; use sparse.storage = \"sparse\" or \"auto\"{3}",
      options.edge,
      100 * covering_density(mask, shape.cols(), within(shape, {options.edge, options.edge})),
      100 * mask.density(), own);
}

void BlockList::allocate(Arena& arena, const Shape& shape, const BlockSize& block, int64_t count) {
  rows_ = shape.rows();
  cols_ = shape.cols();
  block_ = within(shape, block);
  count_ = count;
  array_ =
      arena.allocate(Memory::index, "block list", DType::int32, Shape{2 * (lines() + 1) + count_});
}

int64_t BlockList::lines() const { return divide_up(rows_, block_.height); }

BlockList::BlockList(Arena& arena, const Mask& mask, const Shape& shape, const BlockSize& block) {
  require(mask.size() == shape.count(), "a mask covers its matrix", mask.size(), shape.text());
  const BlockSize cut = within(shape, block);
  const BlockSize divisors = boundaries(mask, shape.cols());
  check(divides(cut.height, divisors.height) && divides(cut.width, divisors.width),
        "the mask does not consist of whole blocks of {}x{}", block.height, block.width);
  int64_t count = 0;
  for_each_block(mask, shape, cut, [&](int64_t, int64_t) { ++count; });
  allocate(arena, shape, block, count);
  if (arena.dry()) {
    return;
  }
  const auto all = array_.tensor().span<int32_t>();
  const auto rows_of_blocks = static_cast<size_t>(lines());
  const auto block_begin = all.first(rows_of_blocks + 1);
  const auto value_begin = all.subspan(rows_of_blocks + 1, rows_of_blocks + 1);
  const auto columns = all.subspan(2 * (rows_of_blocks + 1));
  size_t next = 0;
  for_each_block(mask, shape, cut, [&](int64_t line, int64_t column) {
    const auto after = static_cast<size_t>(line) + 1;
    columns[next++] = static_cast<int32_t>(column);
    ++block_begin[after];
    value_begin[after] += static_cast<int32_t>(std::min(cut.height, rows_ - line * cut.height) *
                                               std::min(cut.width, cols_ - column * cut.width));
  });
  std::partial_sum(block_begin.begin(), block_begin.end(), block_begin.begin());
  std::partial_sum(value_begin.begin(), value_begin.end(), value_begin.begin());
}

BlockList BlockList::planned(Arena& arena, const Shape& shape, int64_t kept,
                             const BlockSize& block) {
  BlockList list;
  const BlockSize cut = within(shape, block);
  list.allocate(arena, shape, block, divide_up(kept, cut.height * cut.width));
  return list;
}

void BlockList::move_to(Stream& stream) {
  if (array_.tensor().on_device == stream.arena().on_device()) {
    return;
  }
  Buffer moved =
      stream.arena().allocate(Memory::index, "block list", DType::int32, array_.tensor().shape);
  stream.copy(array_.tensor(), moved.tensor());
  stream.synchronize();
  array_ = std::move(moved);
}

kernels::BlockMatrix BlockList::matrix(const Tensor& values) const {
  const auto* first = static_cast<const int32_t*>(array_.tensor().data);
  return {.rows = rows_,
          .cols = cols_,
          .height = block_.height,
          .width = block_.width,
          .values = values,
          .block_begin = first,
          .value_begin = first + lines() + 1,
          .block_column = first + 2 * (lines() + 1)};
}

}  // namespace espalier::sparse
