#include "src/kernels/cuda/dense/blas_library.h"

#include "src/core/error.h"
#include "src/kernels/cuda/device/toolkit.h"

#define ESPALIER_TEXT_OF(x) #x
#define ESPALIER_TEXT(x) ESPALIER_TEXT_OF(x)

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// One literal in the binary, which benchmarks/gpu.sh searches for.
constexpr const char* kFile = "libcublasLt.so." ESPALIER_TEXT(CUBLAS_VER_MAJOR);

void check_version(const SharedLibrary& library) {
  decltype(cublasLtGetVersion)* version = nullptr;
  library.find("cublasLtGetVersion", version);
  const size_t found = version() / 10'000;
  check(found == CUBLAS_VER_MAJOR,
        "{} is of cuBLAS {}, and this program was built for {}: set CUBLAS_DIR to the folder that "
        "holds {}",
        library.name(), found, CUBLAS_VER_MAJOR, kFile);
}

}  // namespace

std::vector<std::string> blas_names() { return toolkit_names(kFile, "CUBLAS_DIR"); }

BlasLibrary load_blas(const std::vector<std::string>& names) {
  BlasLibrary made;
  made.library = std::make_unique<SharedLibrary>(
      names, "a product on a GPU",
      fmt::format("install cuBLAS {}, or set CUBLAS_DIR to the folder that holds {}",
                  CUBLAS_VER_MAJOR, kFile));
  const SharedLibrary& library = *made.library;
  check_version(library);
  library.find("cublasLtGetStatusString", made.status_text);
  library.find("cublasLtCreate", made.create);
  library.find("cublasLtDestroy", made.destroy);
  library.find("cublasLtMatmul", made.matmul);
  library.find("cublasLtMatmulAlgoGetHeuristic", made.find_algorithms);
  library.find("cublasLtMatmulDescCreate", made.create_product);
  library.find("cublasLtMatmulDescDestroy", made.destroy_product);
  library.find("cublasLtMatmulDescSetAttribute", made.set_product);
  library.find("cublasLtMatrixLayoutCreate", made.create_layout);
  library.find("cublasLtMatrixLayoutDestroy", made.destroy_layout);
  library.find("cublasLtMatmulPreferenceCreate", made.create_preference);
  library.find("cublasLtMatmulPreferenceDestroy", made.destroy_preference);
  library.find("cublasLtMatmulPreferenceSetAttribute", made.set_preference);
  return made;
}

const BlasLibrary& blas_library() {
  // Never unloaded: queues destroy their handles when the process ends.
  static const auto* const library = new BlasLibrary(load_blas(blas_names()));
  return *library;
}

}  // namespace espalier::kernels::ESPALIER_GPU
