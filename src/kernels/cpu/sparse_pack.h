#pragma once
// Activations come token by token; the sparse products want them feature by feature, with a block
// of tokens side by side as the lanes of vectors. Packing transposes one block, squares of kLanes x
// kLanes at a time; tokens and features that do not exist become zeros.
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/vector.h"

namespace espalier::kernels::ESPALIER_ISA {

/// out[f * tokens + t] = x[token + t, feature + f] for t < tokens (a multiple of kLanes), f < features.
template <class T>
inline void pack_tokens(const Tensor& x, int64_t token, int64_t tokens, int64_t feature,
                        int64_t features, float* out) {
  const int64_t present = least(tokens, x.rows() - token);
  for (int64_t f = 0; f < features; f += kLanes) {
    const int64_t width = least(kLanes, features - f);
    for (int64_t t = 0; t < tokens; t += kLanes) {
      const int64_t height = most(0, least(kLanes, present - t));
      Vector square[kLanes];
      if (height == kLanes && width == kLanes) {
        const T* from = row_of<T>(x, token + t) + feature + f;
        for (int i = 0; i < kLanes; ++i) {
          square[i] = read_vector(from + i * x.stride);
        }
      } else {
        for (int64_t i = 0; i < kLanes; ++i) {
          square[i] =
              i < height ? read_vector(row_of<T>(x, token + t + i) + feature + f, width) : Vector{};
        }
      }
      transpose(square);
      for (int64_t i = 0; i < width; ++i) {
        write_vector(out + (f + i) * tokens + t, square[i]);
      }
    }
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
