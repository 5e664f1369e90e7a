# `cd build && cpack` makes two Debian packages of the components of install_package.cmake:
#
#   espalier_VERSION_ARCH.deb       program
#   espalier-dev_VERSION_ARCH.deb   development
#
# They install on the release of Debian that they were made on. It needs dpkg-shlibdeps and `file`
# (scripts/install-packages.sh --package) and a build with the kernels of all CPUs, which package_check.cmake
# verifies. Distributors name themselves with -DCPACK_PACKAGE_CONTACT="NAME <ADDRESS>".
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Espalier developers <espalier@example.invalid>" CACHE STRING
  "Maintainer of the packages that cpack makes")
set(CPACK_PACKAGE_NAME espalier)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training of pruned neural networks in parallel over MPI")
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_check.cmake)
set(CPACK_ESPALIER_CPU_TABLES ${ESPALIER_CPU_TABLES})
set(CPACK_ESPALIER_BUILD_TYPE ${CMAKE_BUILD_TYPE})
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# mpirun is openmpi-bin's. make-text.sh reads perl-doc.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME espalier)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS perl-doc)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
  "After pruning, weights, gradients, optimizer state and messages hold only
kept elements. Trains GPTs, multilayer perceptrons and networks for images,
data- and pipeline-parallel. Contains the program, configs and pages.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME espalier-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libdnnl-dev, libopenmpi-dev, libhdf5-openmpi-dev, \
libtomlplusplus-dev, libcli11-dev, nlohmann-json3-dev, libfmt-dev, libxxhash-dev, libpcre2-dev, \
libutf8proc-dev, libsentencepiece-dev, zlib1g-dev, pkg-config")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
  "Static libraries, headers and a CMake package of Espalier, which trains pruned
neural networks in parallel: find_package(espalier), then link espalier::train.")
include(CPack)
