#pragma once
// cuSPARSE as it is loaded when the first sparse product is asked for (CUSPARSE_DIR, or where
// toolkits are), and the handle that a queue has of it.
#include <cusparse.h>

#include "src/core/shared_library.h"
#include "src/kernels/cuda/sparse/library.h"

namespace espalier::kernels::ESPALIER_GPU {

/// The functions of the generic API that products take.
struct CusparseFunctions {
  /// Throws Failure where there is no library of the version that this program was built for.
  CusparseFunctions();

  SharedLibrary library;
  decltype(cusparseCreate)* create = nullptr;
  decltype(cusparseDestroy)* destroy = nullptr;
  decltype(cusparseSetStream)* set_stream = nullptr;
  decltype(cusparseGetErrorString)* error_string = nullptr;
  decltype(cusparseCreateCsr)* create_csr = nullptr;
  decltype(cusparseDestroySpMat)* destroy_sparse = nullptr;
  decltype(cusparseSpMatSetValues)* set_sparse_values = nullptr;
  decltype(cusparseCreateDnMat)* create_dense = nullptr;
  decltype(cusparseDestroyDnMat)* destroy_dense = nullptr;
  decltype(cusparseDnMatSetValues)* set_dense_values = nullptr;
  decltype(cusparseSpMM_bufferSize)* spmm_size = nullptr;
  decltype(cusparseSpMM_preprocess)* spmm_prepare = nullptr;
  decltype(cusparseSpMM)* spmm = nullptr;
  decltype(cusparseSDDMM_bufferSize)* sddmm_size = nullptr;
  decltype(cusparseSDDMM_preprocess)* sddmm_prepare = nullptr;
  decltype(cusparseSDDMM)* sddmm = nullptr;
};

/// Null where there is none.
const CusparseFunctions* cusparse();
/// Its file, or why our kernels compute instead.
std::string cusparse_state();

class CusparseHandle {
 public:
  explicit CusparseHandle(cudaStream_t stream);
  ~CusparseHandle();
  CusparseHandle(const CusparseHandle&) = delete;
  CusparseHandle& operator=(const CusparseHandle&) = delete;
  cusparseHandle_t native() const { return handle_; }

 private:
  cusparseHandle_t handle_ = nullptr;
};

}  // namespace espalier::kernels::ESPALIER_GPU
