#pragma once
// Shared interface of the two attention implementations on a GPU; attention.cu chooses one.
//
// - Tiles (tiles.cu, tiles_backward.cu): bf16 and fp16, on tensor cores.
// - Rows (rows.cu): any type, heads of up to 256 columns; slow.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// One head of one sequence. Pairs are numbered: pair = sequence heads + head. `kv_head`: the head
/// of k and v that its queries use.
struct AttentionPair {
  int64_t pair, sequence, head, kv_head;
};

/// Operands of AttentionArgs and AttentionBackwardArgs; lse and delta are [pairs, T].
struct AttentionShapes {
  Elements qkv, out, dout, dqkv;
  float* lse = nullptr;
  float* delta = nullptr;  ///< workspace of backward: per row, the sum of out dout
  int64_t sequences = 0, tokens = 0, heads = 0, kv_heads = 0, width = 0;
  float scale = 1;     ///< factor of scores
  bool causal = true;  ///< a query sees the keys up to its own; otherwise all
  int64_t window = 0;  ///< most keys that a query sees, if causal; 0: no limit

  __host__ __device__ int64_t columns() const { return heads * width; }
  __host__ __device__ int64_t qkv_columns() const { return (heads + 2 * kv_heads) * width; }
  __host__ __device__ int64_t pairs() const { return sequences * heads; }
  /// Groups are the pairs of one head of k and v: group g has pairs g group() and following.
  __host__ __device__ int64_t groups() const { return sequences * kv_heads; }
  __host__ __device__ int64_t group() const { return quotient(heads, kv_heads); }
  __device__ AttentionPair pair(int64_t number) const {
    const int64_t sequence = quotient(number, heads);
    const int64_t head = number - sequence * heads;
    return {number, sequence, head, quotient(head, group())};
  }
  /// Index of the first element of row `row`: `part` in qkv and dqkv, for q (0), k (1) or v (2);
  /// `output` in out and dout; `number` in lse and delta.
  __device__ int64_t part(const AttentionPair& of, int64_t row, int which) const {
    const int64_t head = which == 0 ? of.head : heads + (which - 1) * kv_heads + of.kv_head;
    return (of.sequence * tokens + row) * qkv_columns() + head * width;
  }
  __device__ int64_t output(const AttentionPair& of, int64_t row) const {
    return (of.sequence * tokens + row) * columns() + of.head * width;
  }
  __device__ int64_t number(const AttentionPair& of, int64_t row) const {
    return of.pair * tokens + row;
  }
};

/// True for 16-bit types, heads of at most 128 columns, and rows of whole 16-byte pieces.
bool attention_fits_tiles(const AttentionShapes& shapes);
void attention_by_tiles(Stream& stream, const AttentionShapes& shapes);
/// Also fills `delta`.
void attention_backward_by_tiles(Stream& stream, const AttentionShapes& shapes);

/// Throws Failure when a head has more than 256 columns.
void attention_by_rows(Stream& stream, const AttentionShapes& shapes);
void attention_backward_by_rows(Stream& stream, const AttentionShapes& shapes);

}  // namespace espalier::kernels::ESPALIER_GPU
