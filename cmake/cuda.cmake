# The CUDA backend: nvcc and the toolkit's libraries. Without a choice of architectures code is made for
# the A100 (and, as PTX, for what is newer), the H100 and H200, and the B200.
find_package(CUDAToolkit 12.3 REQUIRED)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real 100-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)

# nvcc takes a gigabyte and more: one at a time, beside whatever else is compiled.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS espalier_nvcc=1)
