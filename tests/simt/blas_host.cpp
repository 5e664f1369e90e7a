// cuBLASLt for the harness: functions of the host replace the library.
#include "src/kernels/cuda/dense/blas_cublaslt.h"
#include "src/kernels/cuda/device/launch.h"

namespace espalier::kernels::ESPALIER_GPU {

const BlasLibrary& blas_library() {
  static const BlasLibrary library{.library = nullptr,
                                   .status_text = cublasLtGetStatusString,
                                   .create = cublasLtCreate,
                                   .destroy = cublasLtDestroy,
                                   .matmul = cublasLtMatmul,
                                   .find_algorithms = cublasLtMatmulAlgoGetHeuristic,
                                   .create_product = cublasLtMatmulDescCreate,
                                   .destroy_product = cublasLtMatmulDescDestroy,
                                   .set_product = cublasLtMatmulDescSetAttribute,
                                   .create_layout = cublasLtMatrixLayoutCreate,
                                   .destroy_layout = cublasLtMatrixLayoutDestroy,
                                   .create_preference = cublasLtMatmulPreferenceCreate,
                                   .destroy_preference = cublasLtMatmulPreferenceDestroy,
                                   .set_preference = cublasLtMatmulPreferenceSetAttribute};
  return library;
}

size_t blas_workspace() { return 4096; }

/// One set of plans per capability, shared by all queues of a thread: its contents do not depend on
/// a queue.
BlasQueue blas_queue(Stream& stream) {
  thread_local std::map<int, Blas> all;
  Blas& blas = all.try_emplace(capability, capability).first->second;
  return {blas, &queue_of(stream), blas_workspace()};
}

double seconds_of(Stream& stream, const std::function<void()>& work) {
  const Context& library = *blas_queue(stream).blas.handle();
  const double before = library.seconds;
  work();
  stream.synchronize();
  return library.seconds - before;
}

}  // namespace espalier::kernels::ESPALIER_GPU
