#pragma once
// The cuBLASLt functions that products call. The first product loads the library, so a program
// built with CUDA also starts without it and computes on the CPU. The build needs only its headers.
// The library must be of the same major version.
#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "src/core/shared_library.h"

namespace espalier::kernels::ESPALIER_GPU {

struct BlasLibrary {
  std::unique_ptr<SharedLibrary> library;  ///< the library of these functions; null in tests
  decltype(cublasLtGetStatusString)* status_text = nullptr;
  decltype(cublasLtCreate)* create = nullptr;
  decltype(cublasLtDestroy)* destroy = nullptr;
  decltype(cublasLtMatmul)* matmul = nullptr;
  decltype(cublasLtMatmulAlgoGetHeuristic)* find_algorithms = nullptr;
  decltype(cublasLtMatmulDescCreate)* create_product = nullptr;
  decltype(cublasLtMatmulDescDestroy)* destroy_product = nullptr;
  decltype(cublasLtMatmulDescSetAttribute)* set_product = nullptr;
  decltype(cublasLtMatrixLayoutCreate)* create_layout = nullptr;
  decltype(cublasLtMatrixLayoutDestroy)* destroy_layout = nullptr;
  decltype(cublasLtMatmulPreferenceCreate)* create_preference = nullptr;
  decltype(cublasLtMatmulPreferenceDestroy)* destroy_preference = nullptr;
  decltype(cublasLtMatmulPreferenceSetAttribute)* set_preference = nullptr;
};

/// `names`: for SharedLibrary. Throws Failure if no library can be loaded or its version differs.
BlasLibrary load_blas(const std::vector<std::string>& names);

/// Paths searched for cuBLASLt: CUBLAS_DIR first.
std::vector<std::string> blas_names();

/// The library of the process, loaded at the first call and kept.
const BlasLibrary& blas_library();

}  // namespace espalier::kernels::ESPALIER_GPU
