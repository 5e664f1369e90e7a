#pragma once
// The functions of cuBLASLt that products call. The library is loaded by the first product, so that
// a program with CUDA starts, and computes on the CPU, where it is missing. Only its headers are
// needed to build; the library must be of the same major version.
#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "src/core/shared_library.h"

namespace espalier::kernels::ESPALIER_GPU {

struct BlasLibrary {
  std::unique_ptr<SharedLibrary> library;  ///< that they are of; in tests none
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

/// `names`: for SharedLibrary. Throws Failure when none can be loaded, or when it is of another
/// version.
BlasLibrary load_blas(const std::vector<std::string>& names);

/// Where cuBLASLt is looked for: CUBLAS_DIR first.
std::vector<std::string> blas_names();

/// That of the process, loaded at the first call and kept.
const BlasLibrary& blas_library();

}  // namespace espalier::kernels::ESPALIER_GPU
