# A program holds one MPI library: a parallel HDF5 must be built with the MPI that was found. The files of
# both have equal function names and other constants, so that a mixed program links, and fails as it runs.
function(espalier_shared_names library tag names)
  execute_process(COMMAND ${CMAKE_READELF} -d ${library} OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "\\(${tag}\\)[^\n]*\\[libmpi[^]]*\\]" lines "${text}")
  list(TRANSFORM lines REPLACE ".*\\[(.*)\\]" "\\1")
  set(${names} ${lines} PARENT_SCOPE)
endfunction()

set(names_of_mpi "")
foreach(library IN LISTS MPI_C_LIBRARIES)
  espalier_shared_names(${library} SONAME names)
  list(APPEND names_of_mpi ${names})
endforeach()
foreach(library IN LISTS HDF5_C_LIBRARIES)
  espalier_shared_names(${library} NEEDED names)
  foreach(name IN LISTS names)
    if(names_of_mpi AND NOT name IN_LIST names_of_mpi)
      message(FATAL_ERROR "HDF5 (${library}) is built with another MPI (${name}) than the one found "
        "(${names_of_mpi}): install a serial HDF5 (on Debian libhdf5-dev) or the one of that MPI, and set "
        "HDF5_C_COMPILER_EXECUTABLE to its compiler (such as /usr/bin/h5pcc.mpich)")
    endif()
  endforeach()
endforeach()
