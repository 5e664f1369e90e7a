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

uint64_t hash_of(int32_t left, int32_t right) {
  const uint64_t key =
      (uint64_t{static_cast<uint32_t>(left)} << 32U | static_cast<uint32_t>(right)) *
      0x9e3779b97f4a7c15U;
  return key ^ key >> 32U;
}

}  // namespace

PairMerger::PairMerger(size_t merges) : merges_(std::bit_ceil(std::max<size_t>(2 * merges, 2))) {}

/// Of the pair, or a free one.
size_t PairMerger::slot_of(int32_t left, int32_t right) const {
  const size_t mask = merges_.size() - 1;
  size_t at = hash_of(left, right) & mask;
  while (merges_[at].merged >= 0 && (merges_[at].left != left || merges_[at].right != right)) {
    at = (at + 1) & mask;
  }
  return at;
}

void PairMerger::add(const Merge& merge) { merges_[slot_of(merge.left, merge.right)] = merge; }

const PairMerger::Merge* PairMerger::find(int32_t left, int32_t right) const {
  const Merge& merge = merges_[slot_of(left, right)];
  return merge.merged < 0 ? nullptr : &merge;
}

void PairMerger::merge(Scratch& scratch, std::vector<int32_t>& out) const {
  if (scratch.symbols.size() <= kFewSymbols) {
    merge_few(scratch, out);
  } else {
    merge_many(scratch, out);
  }
}

void PairMerger::pair_up(Scratch& scratch, size_t left, size_t right) const {
  Symbol& symbol = scratch.symbols[left];
  const Merge* merge = find(symbol.id, scratch.symbols[right].id);
  symbol.rank = merge == nullptr ? kNoRank : merge->rank;
  symbol.merged = merge == nullptr ? -1 : merge->merged;
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
