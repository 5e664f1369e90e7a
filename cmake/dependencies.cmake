# Everything comes from the system by find_package; configuring needs no network.
# On Debian 12: scripts/install-packages.sh
set(HDF5_PREFER_PARALLEL ON)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(ZLIB REQUIRED)
find_package(oneDNN REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(tomlplusplus IMPORTED_TARGET tomlplusplus)
if(NOT tomlplusplus_FOUND)  # its builds by CMake, such as Spack's, have no file for pkg-config
  find_package(tomlplusplus REQUIRED)
  if(NOT TARGET PkgConfig::tomlplusplus)
    add_library(PkgConfig::tomlplusplus INTERFACE IMPORTED)
    target_link_libraries(PkgConfig::tomlplusplus INTERFACE tomlplusplus::tomlplusplus)
  endif()
endif()
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)  # properties such as White_Space
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece>=0.1.97)
# Its file for pkg-config also names the library that trains models, which only tests use.
get_target_property(sentencepiece_train PkgConfig::sentencepiece INTERFACE_LINK_LIBRARIES)
set(sentencepiece_encode ${sentencepiece_train})
list(FILTER sentencepiece_encode EXCLUDE REGEX sentencepiece_train)
set_target_properties(PkgConfig::sentencepiece PROPERTIES
  INTERFACE_LINK_LIBRARIES "${sentencepiece_encode}")
