# Sources of the table "cuda".
#   cuda_kernels   compiled with nvcc for the device and, in tests, as C++ for the harness
#                  (tests/simt)
#   cuda_table     host code that the harness also uses
#   cuda_native    host code that calls CUDA and its libraries; the harness has substitutes
#   cuda_exact     kernels whose codes are the same bytes from every table: no product is fused
#                  with a sum
set(folder ${CMAKE_CURRENT_LIST_DIR})
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${folder}/*.cu)
file(GLOB_RECURSE cuda_table CONFIGURE_DEPENDS ${folder}/*.cpp)
set(cuda_native
  ${folder}/cudnn/library.cpp ${folder}/dense/blas_library.cpp ${folder}/device/device.cpp
  ${folder}/device/queue.cpp ${folder}/sparse/cusparse.cpp ${folder}/tables.cpp)
list(REMOVE_ITEM cuda_table ${cuda_native} ${folder}/tables_none.cpp)
set(cuda_exact ${cuda_kernels})
list(FILTER cuda_exact INCLUDE REGEX "/wire/[a-z]+\\.cu$")
