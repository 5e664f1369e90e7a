# Each folder is one library, and includes only folders of lower layers.
#
#   espalier_layer(NAME [UNITY N] [DEPENDS layer …] [LINKS target …] [EXCLUDE regex] [SOURCES file …]
#                  [PRECOMPILE header …])
#     Defines the static library espalier_NAME, exported as espalier::NAME, of all *.cpp files below the
#     folder (except paths that match EXCLUDE) and SOURCES. DEPENDS and LINKS are public. UNITY: see
#     espalier_unity. PRECOMPILE: slow headers of other projects that most sources include; groups of sources
#     read them once anyway.
#
#   espalier_unity(TARGET N)
#     With ESPALIER_UNITY, compiles the sources of TARGET in groups of N, because most of a compiler's time goes
#     into headers and templates that all of them use. Names in unnamed namespaces must then differ
#     between the sources of TARGET.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(espalier_options INTERFACE)
target_compile_features(espalier_options INTERFACE cxx_std_20)
target_include_directories(espalier_options INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include/espalier>)
add_library(espalier_warnings INTERFACE)
target_compile_options(espalier_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wno-missing-field-initializers $<$<BOOL:${ESPALIER_WERROR}>:-Werror>)

# For code whose loops are short (all above the kernels, files and messages; tests): -O1 compiles in half the time.
add_library(espalier_quick INTERFACE)
target_compile_options(espalier_quick INTERFACE $<$<CONFIG:Release>:-O1>)

# GCC would collect garbage several times a source, in its copies of the precompiled headers: a tenth
# of the time.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1000000>")

# Error messages name source files below the root: no program holds the path of its build.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>")

option(ESPALIER_UNITY "Compile sources in groups: less time for a whole build, more for one changed file" OFF)
function(espalier_unity target sources)
  if(ESPALIER_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
    # GCC takes an included source for a header, whose types may not hold those of an unnamed namespace.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(espalier_layer name)
  cmake_parse_arguments(layer "" "UNITY;EXCLUDE" "SOURCES;DEPENDS;LINKS;PRECOMPILE" ${ARGN})
  file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  if(layer_EXCLUDE)
    list(FILTER found EXCLUDE REGEX "${layer_EXCLUDE}")
  endif()
  add_library(espalier_${name} STATIC ${found} ${layer_SOURCES})
  add_library(espalier::${name} ALIAS espalier_${name})
  set_target_properties(espalier_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(espalier_${name} PUBLIC espalier_options ${layer_LINKS}
    PRIVATE $<BUILD_INTERFACE:espalier_warnings>)
  if(layer_PRECOMPILE AND NOT ESPALIER_UNITY)
    target_precompile_headers(espalier_${name} PRIVATE ${layer_PRECOMPILE})
  endif()
  if(layer_UNITY)
    espalier_unity(espalier_${name} ${layer_UNITY})
  endif()
  foreach(dependency IN LISTS layer_DEPENDS)
    target_link_libraries(espalier_${name} PUBLIC espalier_${dependency})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY ESPALIER_LAYERS espalier_${name})
endfunction()
