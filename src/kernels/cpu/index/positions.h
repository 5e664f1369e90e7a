#pragma once
// Kept elements in blocks, for any form of positions. A block is a range of packed elements and the
// range of dense elements that it covers. Blocks have a fixed size (kBlock packed elements, or 256
// bitmap words), so threads split them and find their starts without counting.
#include "src/kernels/cpu/index/words.h"
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

struct KeptBlock {
  int64_t first, count;              ///< packed elements
  int64_t dense_first, dense_count;  ///< from one block's start to the next one's
  const int32_t* list;               ///< of this block's elements: dense index + `base`; or null
  const uint64_t* words;             ///< from dense_first on; or null
  int64_t base = 0;
  WordRun run() const { return {words, dense_count, count}; }
};

inline constexpr int64_t kBlockWords =
    256;  ///< a multiple of 8: each block has a stored prefix count

inline KeptBlock word_block(const Positions& p, int64_t i) {
  const int64_t dense_first = i * kBlockWords * 64;
  const int64_t dense_end = least(p.size, dense_first + kBlockWords * 64);
  const int64_t first = p.prefix_counts[i * kBlockWords / 8] - p.prefix_counts[0];
  const int64_t end = dense_end == p.size
                          ? p.count
                          : p.prefix_counts[(i + 1) * kBlockWords / 8] - p.prefix_counts[0];
  const uint64_t* words = p.bitmap + i * kBlockWords;
  return {first, end - first, dense_first, dense_end - dense_first, nullptr, words};
}

inline KeptBlock list_block(const Positions& p, int64_t i) {
  const int64_t first = i * kBlock;
  const int64_t count = least(kBlock, p.count - first);
  const int64_t dense_first = i == 0 ? 0 : p.list[first] - p.first;
  const int64_t dense_end = first + count == p.count ? p.size : p.list[first + count] - p.first;
  return {first, count, dense_first, dense_end - dense_first, p.list + first, nullptr, p.first};
}

/// Calls body(const KeptBlock&) for blocks that cover all dense and all kept elements.
template <class Body>
inline void for_kept_blocks(int threads, const Positions& p, const Body& body) {
  if (p.bitmap != nullptr) {
    for_blocks(threads, divide_up(p.size, kBlockWords * 64), p.size,
               [&](int64_t i) { body(word_block(p, i)); });
  } else if (p.list != nullptr || p.count == 0) {  // nothing kept: one block without a list
    for_blocks(threads, most(1, divide_up(p.count, kBlock)), p.size,
               [&](int64_t i) { body(list_block(p, i)); });
  } else {
    for_ranges(threads, p.count, kBlock, [&](int64_t first, int64_t n) {
      body(KeptBlock{first, n, first, n, nullptr, nullptr});
    });
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
