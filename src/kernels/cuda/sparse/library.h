#pragma once
// Sparse products of a library, behind two functions: cuSPARSE (cusparse.cpp) or, in tests, host
// loops in the harness's queue (tests/simt/sparse_host.cpp).
//
// - Results of a deterministic stream do not change from run to run.
// - The library analyses a matrix before its first product of a shape. `kept` owns that analysis
//   and its workspace, and lives as long as the lists of the matrix.
// - Both functions return false, and leave outputs unchanged, if there is no library or it refuses
//   the product.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// A matrix in CSR format; not empty, arrays aligned to 16 bytes.
struct CsrMatrix {
  int64_t rows = 0, cols = 0, count = 0;
  const int32_t* begin = nullptr;   ///< [rows + 1]
  const int32_t* column = nullptr;  ///< [count]
  void* values = nullptr;           ///< [count]
  DType type = DType::fp32;         ///< of values
};

/// Row-major with a stride, aligned to 16 bytes.
struct DenseMatrix {
  void* data = nullptr;
  int64_t stride = 0;
  DType type = DType::fp32;
};

/// A product with a matrix; operands have `tokens` rows. Sums are fp32 and rounded once.
struct LibraryProduct {
  CsrMatrix matrix;
  DenseMatrix a, b;
  int64_t tokens = 0;
  bool accumulate = false;
};
/// b [tokens, rows] (+)= a [tokens, cols] matrixᵀ.
bool library_spmm(Stream& stream, const LibraryProduct& product, std::unique_ptr<Prepared>& kept);
/// matrix.values (+)= aᵀ b at the elements of the matrix; a [tokens, rows], b [tokens, cols].
bool library_sddmm(Stream& stream, const LibraryProduct& product, std::unique_ptr<Prepared>& kept);

}  // namespace espalier::kernels::ESPALIER_GPU
