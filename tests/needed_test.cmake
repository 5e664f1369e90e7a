# Programs of a build with CUDA start where there is no GPU: what they need at their start holds no library
# of GPUs (those are loaded when they are needed, src/core/shared_library.h).
# cmake -D READELF=readelf -D PROGRAMS=a;b -P needed_test.cmake
foreach(program IN LISTS PROGRAMS)
  execute_process(COMMAND ${READELF} --dynamic --wide ${program}
    OUTPUT_VARIABLE entries COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${entries}")
  if(NOT "${needed}" MATCHES "libc\\.so")
    message(SEND_ERROR "${program}: no list of libraries was read")
  endif()
  list(FILTER needed INCLUDE REGEX "\\[lib(cu|nv|nccl)")
  if(needed)
    message(SEND_ERROR "${program} does not start without ${needed}")
  endif()
endforeach()
