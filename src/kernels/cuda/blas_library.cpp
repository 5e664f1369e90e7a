#include "src/kernels/cuda/blas_library.h"

#include "src/core/error.h"
#include "src/kernels/cuda/toolkit.h"

#define ESPALIER_TEXT_OF(x) #x
#define ESPALIER_TEXT(x) ESPALIER_TEXT_OF(x)

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// A whole word in the program, which benchmarks/gpu.sh looks for.
constexpr const char* kFile = "libcublasLt.so." ESPALIER_TEXT(CUBLAS_VER_MAJOR);

}  // namespace

std::vector<std::string> blas_names() { return toolkit_names(kFile, "CUBLAS_DIR"); }

BlasLibrary::BlasLibrary(const std::vector<std::string>& names)
    : library_(names, "a product on a GPU",
               fmt::format("install cuBLAS {}, or set CUBLAS_DIR to the folder that holds {}",
                           CUBLAS_VER_MAJOR, kFile)) {
  library_.find("cublasLtGetVersion", version);
  const size_t found = version() / 10'000;
  check(found == CUBLAS_VER_MAJOR,
        "{} is of cuBLAS {}, and this program was built for {}: set CUBLAS_DIR to the folder that "
        "holds {}",
        library_.name(), found, CUBLAS_VER_MAJOR, kFile);
  library_.find("cublasLtGetStatusString", status_text);
  library_.find("cublasLtCreate", create);
  library_.find("cublasLtDestroy", destroy);
  library_.find("cublasLtMatmul", matmul);
  library_.find("cublasLtMatmulAlgoGetHeuristic", find_algorithms);
  library_.find("cublasLtMatmulDescCreate", create_product);
  library_.find("cublasLtMatmulDescDestroy", destroy_product);
  library_.find("cublasLtMatmulDescSetAttribute", set_product);
  library_.find("cublasLtMatrixLayoutCreate", create_layout);
  library_.find("cublasLtMatrixLayoutDestroy", destroy_layout);
  library_.find("cublasLtMatmulPreferenceCreate", create_preference);
  library_.find("cublasLtMatmulPreferenceDestroy", destroy_preference);
  library_.find("cublasLtMatmulPreferenceSetAttribute", set_preference);
}

const BlasLibrary& blas_library() {
  // Never unloaded: queues give their handles back when the process ends.
  static const auto* const library = new BlasLibrary(blas_names());
  return *library;
}

}  // namespace espalier::kernels::ESPALIER_GPU
