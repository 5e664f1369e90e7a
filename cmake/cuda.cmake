# The CUDA backend: nvcc and the toolkit's libraries. Without a choice of architectures code is made for
# the A100 (and, as PTX, for what is newer), the H100 and H200, and the B200.
find_package(CUDAToolkit 12.3 REQUIRED)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real 100-real)
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc speaks C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# nvcc takes a gigabyte and more: one at a time, beside whatever else is compiled.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS espalier_nvcc=1)
