#pragma once
// Keys and values of the tokens that a network has read, for generation: each pass computes those
// of new tokens only, and attention of new tokens reads the others from here.
//
// A layer's cache is [B, K, capacity, D] of the compute type for each, B sequences, K heads of keys
// and values, D head width. A token at position p has slot p % capacity: with a window, capacity is
// the window, and new tokens replace those that left it. Memory: category activation,
// 2 B K D capacity elements a layer, allocated by the layer's first pass.
#include <algorithm>
#include <map>

#include "src/core/arena.h"

namespace espalier::model {

class KeyValueCache {
 public:
  struct Options {
    int64_t sequences = 1;  ///< B
    int64_t context = 1;    ///< tokens of a sequence, at most
    DType dtype = DType::fp32;
  };
  /// The arena must outlive the cache.
  KeyValueCache(Arena& arena, const Options& options) : arena_(arena), options_(options) {}

  int64_t sequences() const { return options_.sequences; }

  struct Heads {
    int64_t count = 1;   ///< K
    int64_t width = 1;   ///< D
    int64_t window = 0;  ///< tokens that a token attends to, itself included; 0: all
  };
  /// [count, K, capacity, D]
  struct Tensors {
    Tensor keys, values;
  };
  /// Those of sequences [first, first + count). `layer` identifies the layer; its heads are the
  /// same in each call.
  Tensors of(const void* layer, const Heads& heads, int64_t first, int64_t count);

 private:
  struct Layer {
    Buffer keys, values;
  };
  Arena& arena_;
  Options options_;
  std::map<const void*, Layer> layers_;
};

/// The part of a pass that generation adds. In `Pass`, [B, T] tokens are those of `count` sequences
/// from `first_sequence` on.
struct CachedPass {
  KeyValueCache& cache;
  int64_t first_sequence = 0;
  /// One new token for each sequence, which attends to the cache. Otherwise the first tokens of
  /// each sequence, which attend to each other.
  bool one_token = false;
  bool few_rows = false;  ///< products read weights at the speed of memory
  Tensor positions{};     ///< int32 [B T], of tokens; empty: 0 … T - 1
  Tensor first;           ///< int32 [B]: position of the first token of each sequence
  Tensor counts;          ///< int32 [B]: tokens of each sequence; the others of T are padding
  Tensor lengths;         ///< int32 [B]: positions after the pass: first + counts
};

/// Null: not of generation.
inline Tensor positions_of(const CachedPass* cached) {
  return cached != nullptr ? cached->positions : Tensor();
}

}  // namespace espalier::model
