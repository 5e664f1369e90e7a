# Finds oneDNN 2.6 or later as DNNL::dnnl. Debian's dnnl-config.cmake requires OpenCL's development files, which
# are not used here, so this module searches header and library directly.
#
# Of several installations it takes the first in oneDNN_ROOT, CMAKE_PREFIX_PATH and the system's folders: its
# header, and the library below the same folder.
find_path(oneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
if(oneDNN_INCLUDE_DIR)
  get_filename_component(prefix ${oneDNN_INCLUDE_DIR} DIRECTORY)
  find_library(oneDNN_LIBRARY dnnl HINTS ${prefix} NO_DEFAULT_PATH
    PATH_SUFFIXES lib/${CMAKE_LIBRARY_ARCHITECTURE} lib64 lib)
  find_library(oneDNN_LIBRARY dnnl)  # where headers lie elsewhere
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h line
      REGEX "^#define DNNL_VERSION_${part} +[0-9]+")
    string(REGEX REPLACE ".* " "" number_${part} "${line}")
  endforeach()
  set(oneDNN_VERSION ${number_MAJOR}.${number_MINOR}.${number_PATCH})
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR
  VERSION_VAR oneDNN_VERSION)
if(oneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION ${oneDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
