#pragma once
// The part of cuBLASLt's interface that src/kernels/cuda calls, on the host: names and meanings are
// the library's, enum values are our own. Products run when the queue runs them.
//
// Refused: everything that the documentation forbids, and what some versions lack:
// - sums with an inner extent that is no multiple of 8;
// - a bias of one element;
// - a bias after an inner extent of 1, only when the product is called.
//
// Like the library it rounds once: bias and gelu's slope are applied to the sum in fp32.
#include <cstddef>
#include <cstdint>

#include "tests/simt/queue.h"

// An own namespace: a program may also include the real library's types.
namespace espalier::simt::blas {

using cudaStream_t = simt::Queue*;

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_INVALID_VALUE,
  CUBLAS_STATUS_NOT_SUPPORTED,
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT,
  CUBLASLT_EPILOGUE_BIAS,
  CUBLASLT_EPILOGUE_DGELU,
  CUBLASLT_EPILOGUE_BGRADB,
};
enum cublasLtReductionScheme_t : uint32_t { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
  kProductAttributes,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
  kPreferenceAttributes,
};

/// Compute capability of the simulated device; 89: 8.9.
inline thread_local int capability = 89;

struct Context {
  int64_t choices = 0;  ///< calls of the heuristic that selects algorithms
  double seconds = 0;   ///< of products, on a simulated clock
};
struct ProductDescriptor {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  uint64_t attributes[kProductAttributes] = {};
};
/// Layout of a column-major matrix.
struct LayoutDescriptor {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, cols = 0;
  int64_t stride = 0;
};
struct PreferenceDescriptor {
  uint64_t attributes[kPreferenceAttributes] = {};
};
using cublasLtHandle_t = Context*;
using cublasLtMatmulDesc_t = ProductDescriptor*;
using cublasLtMatrixLayout_t = LayoutDescriptor*;
using cublasLtMatmulPreference_t = PreferenceDescriptor*;

/// Stores the problem that it was chosen for.
struct cublasLtMatmulAlgo_t {
  double seconds = 0;
  PreferenceDescriptor preference;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize = 0;
  cublasStatus_t state = CUBLAS_STATUS_SUCCESS;
};

const char* cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtCreate(cublasLtHandle_t* made);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t stride);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream);

}  // namespace espalier::simt::blas

using namespace espalier::simt::blas;  // NOLINT: the library's names are global
