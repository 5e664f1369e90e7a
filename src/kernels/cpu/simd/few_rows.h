#pragma once
// Blocks of weights as fp32 vectors, for products with few rows (dense/few_rows.cpp), which stream
// a weight once: conversion must take no longer than the memory.
//
// A block is 2 kLanes elements of a row. Of bf16 it is one vector of 32-bit words, whose low halves
// are the even elements: a shift and a mask make two vectors, without the shuffles of a widening
// load. So activations are packed in the same order, even elements of a block first.
#include <cstdint>

#include "src/kernels/cpu/simd/vector.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kWeightBlock = 2 * kLanes;

/// The two vectors of a block.
struct WeightBlock {
  Vector first, second;
};

using LooseWords [[gnu::vector_size(kLanes * 4), gnu::aligned(2), gnu::may_alias]] = uint32_t;

[[gnu::always_inline]] inline WeightBlock read_block(const bf16* w) {
  const auto words = Words(*reinterpret_cast<const LooseWords*>(w));
  return {__builtin_bit_cast(Vector, words << 16), __builtin_bit_cast(Vector, words & 0xffff0000U)};
}
template <class T>
[[gnu::always_inline]] inline WeightBlock read_block(const T* w) {
  return {read_vector(w), read_vector(w + kLanes)};
}

/// Packs n elements, in the order of WeightBlock for weights of type T; pads with zeros to whole
/// blocks.
template <class T>
[[gnu::always_inline]] inline void pack_activations(const T* x, int64_t n, float* packed) {
  for (int64_t block = 0; block < n; block += kWeightBlock) {
    for (int64_t i = 0; i < kWeightBlock; ++i) {
      const int64_t element = block + (__is_same(T, bf16) ? 2 * (i % kLanes) + i / kLanes : i);
      packed[block + i] = element < n ? load(x + element) : 0.0F;
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
