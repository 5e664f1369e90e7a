#pragma once
// What the two ways of attention on a GPU share. By tiles (tiles.cu and
// tiles_backward.cu): bf16 and fp16, on tensor cores. By rows (rows.cu): any type and
// heads of up to 256 columns, slow. attention.cu chooses.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// One head of one sequence. All of them are numbered: pair = sequence heads + head.
struct AttentionPair {
  int64_t pair, sequence, head;
};

/// Operands of AttentionArgs and AttentionBackwardArgs; lse and delta are [pairs, T].
struct AttentionShapes {
  Elements qkv, out, dout, dqkv;
  float* lse = nullptr;
  float* delta = nullptr;  ///< backward's workspace: by row the sum of out dout
  int64_t sequences = 0, tokens = 0, heads = 0, width = 0;
  float scale = 1;  ///< of scores: width^-1/2

  __host__ __device__ int64_t columns() const { return heads * width; }
  __host__ __device__ int64_t pairs() const { return sequences * heads; }
  __device__ AttentionPair pair(int64_t number) const {
    const int64_t sequence = quotient(number, heads);
    return {number, sequence, number - sequence * heads};
  }
  /// First element of row `row` of q (part 0), k (1) or v (2) in qkv and dqkv; of out and dout; of
  /// lse and delta.
  __device__ int64_t part(const AttentionPair& of, int64_t row, int which) const {
    return ((of.sequence * tokens + row) * 3 + which) * columns() + of.head * width;
  }
  __device__ int64_t output(const AttentionPair& of, int64_t row) const {
    return (of.sequence * tokens + row) * columns() + of.head * width;
  }
  __device__ int64_t number(const AttentionPair& of, int64_t row) const {
    return of.pair * tokens + row;
  }
};

/// Halves, heads of at most 128 columns, and rows of whole 16 bytes.
bool attention_fits_tiles(const AttentionShapes& shapes);
void attention_by_tiles(Stream& stream, const AttentionShapes& shapes);
/// Fills `delta`, too.
void attention_backward_by_tiles(Stream& stream, const AttentionShapes& shapes);

/// Throws Failure when a head has more than 256 columns.
void attention_by_rows(Stream& stream, const AttentionShapes& shapes);
void attention_backward_by_rows(Stream& stream, const AttentionShapes& shapes);

}  // namespace espalier::kernels::ESPALIER_GPU
