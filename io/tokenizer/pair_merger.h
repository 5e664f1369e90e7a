#pragma once
// The merges of byte-pair encoding (Sennrich et al., ACL 2016): repeatedly merges the adjacent pair
// with the lowest rank, of equal ranks the leftmost. Ends when no adjacent pair has a rank.
//
//   PairMerger merger(count);
//   merger.add({.left = a, .right = b, .rank = 0, .merged = ab});
//   scratch.symbols = …;                   ids of a word's characters or bytes
//   merger.merge(scratch, out);            appends the ids of its tokens
//
// Cost of a word of n symbols: O(n log n). Up to 40 symbols O(n^2), which is faster there.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace espalier::io {

class PairMerger {
 public:
  struct Merge {
    int32_t left = -1, right = -1;  ///< ids
    int32_t rank = 0;               ///< equal ranks: merges that make the same symbol
    int32_t merged = -1;            ///< id
  };
  struct Symbol {
    int32_t id = 0;
    int32_t rank = 0;    ///< of the pair with the next symbol
    int32_t merged = 0;  ///< symbol that this pair becomes
    int32_t before = -1;
    int32_t after = -1;
  };
  /// Memory of a call; one per thread.
  struct Scratch {
    struct Candidate {
      int32_t rank = 0;
      int32_t left = 0;
      int32_t merged = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  PairMerger() : PairMerger(0) {}
  /// For at most `merges` merges.
  explicit PairMerger(size_t merges);

  /// Replaces an earlier merge of the same pair. The order of calls does not matter otherwise.
  void add(const Merge& merge);
  /// Merges `scratch.symbols` in place and appends the resulting ids to `out`.
  void merge(Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;  ///< left and right; all ones: free
    int32_t rank = 0;
    int32_t merged = -1;
  };
  size_t slot_of(uint64_t pair) const;
  void pair_up(Scratch& scratch, size_t left, size_t right) const;
  void merge_few(Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_many(Scratch& scratch, std::vector<int32_t>& out) const;

  std::vector<Slot> slots_;  ///< open addressing; its size is a power of two
};

}  // namespace espalier::io
