// The bits and row starts of a matrix, from a bitmap or a list.
#include <cstring>

#include "src/kernels/cpu/sparse/tile.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Number of the list's positions below `position`.
int64_t below(const int32_t* list, int64_t count, int64_t position) {
  int64_t low = 0;
  for (int64_t n = count; n > 0;) {
    const int64_t half = n / 2;
    const bool right = list[low + half] < position;
    low = right ? low + half + 1 : low;
    n = right ? n - half - 1 : half;
  }
  return low;
}

/// Sets the words [first, first + n) from the list.
void make_words(const Positions& p, uint64_t* words, int64_t first, int64_t n) {
  std::memset(words + first, p.all() && p.count > 0 ? 0xff : 0, static_cast<size_t>(n) * 8);
  if (p.list == nullptr) {
    return;
  }
  const int64_t end = below(p.list, p.count, 64 * (first + n));
  int64_t current = -1;
  uint64_t word = 0;
  for (int64_t k = below(p.list, p.count, 64 * first); k < end; ++k) {
    const int64_t at = p.list[k] >> 6;
    // Kept in a register: loads of a word would wait for the stores of its neighbours.
    word = (at == current ? word : 0) | uint64_t{1} << (p.list[k] & 63);
    words[at] = word;
    current = at;
  }
}

/// Number of kept elements before a bit of the bitmap.
uint32_t kept_before(const Positions& p, int64_t bit) {
  if (bit == p.size) {
    return static_cast<uint32_t>(p.count);
  }
  const int64_t word = bit >> 6;
  uint32_t before = p.prefix_counts[word / 8];
  for (int64_t w = word & ~int64_t{7}; w < word; ++w) {
    before += static_cast<uint32_t>(__builtin_popcountll(p.bitmap[w]));
  }
  const uint64_t partial = p.bitmap[word] & ((uint64_t{1} << (bit & 63)) - 1);
  return before + static_cast<uint32_t>(__builtin_popcountll(partial));
}

}  // namespace

void make_bits(KeptBits& bits, const SparseMatrix& weight, int threads) {
  const Positions& p = weight.positions;
  if (p.bitmap != nullptr) {
    bits.words = p.bitmap;
  } else {
    for_ranges(threads, divide_up(p.size, 64), kBlock,
               [&](int64_t first, int64_t n) { make_words(p, bits.made, first, n); });
    bits.words = bits.made;
  }
  const int64_t each = p.all() && p.count > 0 ? weight.cols : 0;
  for_ranges(threads, weight.rows + 1, kBlock, [&](int64_t first, int64_t n) {
    for (int64_t row = first; row < first + n; ++row) {
      const int64_t bit = row * weight.cols;
      bits.row_begin[row] = p.bitmap != nullptr ? kept_before(p, bit)
                            : p.list != nullptr ? static_cast<uint32_t>(below(p.list, p.count, bit))
                                                : static_cast<uint32_t>(row * each);
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
