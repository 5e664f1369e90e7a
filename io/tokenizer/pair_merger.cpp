#include "io/tokenizer/pair_merger.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
/// Words of more symbols are merged with a heap.
constexpr size_t kFewSymbols = 40;

constexpr uint64_t kFree = UINT64_MAX;

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32U | static_cast<uint32_t>(right);
}

}  // namespace

PairMerger::PairMerger(size_t merges) : slots_(std::bit_ceil(std::max<size_t>(2 * merges, 2))) {}

/// Of the pair, or a free one.
[[gnu::always_inline]] inline size_t PairMerger::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t mixed = pair * 0x9e3779b97f4a7c15U;
  size_t at = (mixed ^ mixed >> 32U) & mask;
  while (slots_[at].pair != pair && slots_[at].pair != kFree) {
    at = (at + 1) & mask;
  }
  return at;
}

void PairMerger::add(const Merge& merge) {
  const uint64_t pair = pair_of(merge.left, merge.right);
  slots_[slot_of(pair)] = {.pair = pair, .rank = merge.rank, .merged = merge.merged};
}

void PairMerger::merge(Scratch& scratch, std::vector<int32_t>& out) const {
  if (scratch.symbols.size() <= kFewSymbols) {
    merge_few(scratch, out);
  } else {
    merge_many(scratch, out);
  }
}

[[gnu::always_inline]] inline void PairMerger::pair_up(Scratch& scratch, size_t left,
                                                       size_t right) const {
  Symbol& symbol = scratch.symbols[left];
  const Slot& slot = slots_[slot_of(pair_of(symbol.id, scratch.symbols[right].id))];
  symbol.rank = slot.pair == kFree ? kNoRank : slot.rank;
  symbol.merged = slot.merged;
}

/// Time quadratic in the number of symbols.
void PairMerger::merge_few(Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    pair_up(scratch, i, i + 1);
  }
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].rank < symbols[best].rank) {
        best = i;
      }
    }
    if (symbols[best].rank == kNoRank) {
      break;
    }
    symbols[best].id = symbols[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 1 < symbols.size()) {
      pair_up(scratch, best, best + 1);
    }
    if (best > 0) {
      pair_up(scratch, best - 1, best);
    }
  }
  for (const Symbol& symbol : symbols) {
    out.push_back(symbol.id);
  }
}

/// Time n log n: pairs wait in a heap; one that has changed since it was added is dropped.
void PairMerger::merge_many(Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Scratch::Candidate>& heap = scratch.heap;
  require(symbols.size() < size_t{kNoRank}, "a word has less than 2^31 symbols", symbols.size());
  heap.clear();
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto look = [&](int32_t left) {
    pair_up(scratch, static_cast<size_t>(left),
            static_cast<size_t>(symbols[static_cast<size_t>(left)].after));
    const Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.rank != kNoRank) {
      heap.push_back({.rank = symbol.rank, .left = left, .merged = symbol.merged});
      std::ranges::push_heap(heap, later);
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].before = i - 1;
    symbols[static_cast<size_t>(i)].after = i + 1 < count ? i + 1 : -1;
    symbols[static_cast<size_t>(i)].rank = kNoRank;
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    look(i);
  }
  constexpr int32_t kRemoved = -2;
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const Scratch::Candidate candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.after < 0 || left.rank != candidate.rank) {
      continue;  // the pair is another one now, or has been merged
    }
    Symbol& right = symbols[static_cast<size_t>(left.after)];
    left.id = candidate.merged;
    left.rank = kNoRank;
    left.after = right.after;
    right.after = kRemoved;
    if (left.after >= 0) {
      symbols[static_cast<size_t>(left.after)].before = candidate.left;
      look(candidate.left);
    }
    if (left.before >= 0) {
      look(left.before);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace espalier::io
