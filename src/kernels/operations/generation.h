#pragma once
// Generation: products with few rows, and attention of new tokens over cached keys and values.
//
// Letters: B sequences, H query heads, K KV heads (K divides H: grouped-query attention), D head
// dimension, capacity: slots of a sequence in the cache.
#include <cstdint>

#include "src/kernels/operations/activation.h"
#include "src/kernels/sparse_matrix.h"

namespace espalier::kernels {

/// y [R, O] (+)= x [R, I] Wᵀ + bias, as `gemm` and `spmm` compute it, for few rows R: one new token
/// of each sequence. W [O, I] is read from memory once. With `activated`, also activated = f(y) of
/// the stored y. x any, W of the same type; y fp32 or that type; bias fp32 [O] or empty; activated
/// of x's type or empty. Rows of x, y and activated may be strided.
///
/// A row's bits depend on that row of x and on W alone, not on R or on other rows. Sums are fp32.
/// Cost: the bytes of W; of a SparseMatrix also those of its form `rows` (sparse_matrix.h). Not for
/// tables with a device, where `gemm` and `spmm` serve few rows too.
template <class Matrix>
struct FewRowsOf {
  Matrix weight;
  Tensor x, y, bias;
  Activation activation = Activation::none;
  Tensor activated;
  bool accumulate = false;
};
using FewRowsArgs = FewRowsOf<Tensor>;
using SparseFewRowsArgs = FewRowsOf<SparseMatrix>;

/// Writes keys and values of tokens into caches. Token t of sequence b, t < counts[b], has position
/// p = first[b] + t and slot p % capacity; later tokens are padding. Of more than `capacity` tokens
/// the last ones stay.
///   qkv           any [B, T, (H + 2 K) D]: queries, then keys, then values of K heads; rows may be
///                 strided
///   keys, values  of qkv's type, [B, K, capacity, D], contiguous: a head's slots are adjacent
///   first, counts int32 [B]; first >= 0, counts in [0, T]
struct CacheTokensArgs {
  Tensor qkv;
  Tensor keys, values;
  Tensor first, counts;
};

/// Attention of one query for each sequence over its cached keys, softmax(scale q kᵀ) v by head, in
/// fp32. Query head h reads head h / (H / K) of the cache.
///   q             any [B, H D]; rows may be strided
///   keys, values  of q's type, [B, K, capacity, D], contiguous
///   lengths       int32 [B]: tokens cached so far, at least 1; slots [0, min(length, capacity))
///                 are valid. In any order: the cache may be a ring buffer
///   out           [B, H D] of q's type; rows may be strided
/// A sequence's bits do not depend on other sequences or on the number of threads: the keys are cut
/// into slices of fixed length, whose sums are combined in order.
struct CachedAttentionArgs {
  Tensor q;
  Tensor keys, values;
  Tensor lengths;
  Tensor out;
  float scale = 0;  ///< 0: 1 / sqrt(D)
};

}  // namespace espalier::kernels
