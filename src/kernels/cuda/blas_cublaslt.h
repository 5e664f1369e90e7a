#pragma once
// What a queue keeps for cuBLASLt: its handle, and the algorithm chosen for each product that was
// seen.
#include <cublasLt.h>

#include <compare>
#include <map>

#include "src/kernels/cuda/blas.h"

namespace espalier::kernels::ESPALIER_GPU {

/// What the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  unsigned alignment_a, alignment_b, alignment_c;  ///< bytes
  bool half_inputs, half_result, transpose_a, transpose_b, accumulate, biased;
  auto operator<=>(const ProductKey&) const = default;
};

class Blas {
 public:
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  std::map<ProductKey, cublasLtMatmulAlgo_t>& algorithms() { return algorithms_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductKey, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace espalier::kernels::ESPALIER_GPU
