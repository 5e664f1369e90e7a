#pragma once
// Loads cuSPARSE at the first sparse product (from CUSPARSE_DIR, or the toolkit's folders), and
// defines a queue's handle for it.
#include <cusparse.h>

#include "src/core/shared_library.h"
#include "src/kernels/cuda/sparse/library.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Functions of the generic API that products use.
struct CusparseFunctions {
  /// Throws Failure if no library of the version that this program was built for is found.
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

/// Null if there is no library.
const CusparseFunctions* cusparse();
/// The library's file, or the reason why our own kernels compute instead.
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
