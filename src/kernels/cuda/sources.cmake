# Sources of the table "cuda" that are compiled with nvcc for the device and, in tests, as C++ for the
# harness (tests/simt).
set(cuda_kernels activation adamw attention attention_rows attention_tiles attention_tiles_backward bias
  block_columns block_sddmm block_spmm cast clip column_sum cross_entropy csr difference dropout embedding fill fp8
  index keep_factor layernorm ordered_sum orthonormalise predict quantize sddmm sddmm_slabs sgd sort sparse_by_library sparse_rows spmm sum_squares
  wire_decode wire_encode wire_measure wire_topk)
list(TRANSFORM cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM cuda_kernels APPEND .cu)
set(cuda_table attention_cudnn attention_plan blas_cublaslt blas_plan cudnn_graph gemm table)
list(TRANSFORM cuda_table PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM cuda_table APPEND .cpp)
# Codes are the same bytes from every table: no product is fused with a sum where others are not.
set(cuda_exact ${cuda_kernels})
list(FILTER cuda_exact INCLUDE REGEX "/(fp8|wire_[a-z]+)\\.cu$")
