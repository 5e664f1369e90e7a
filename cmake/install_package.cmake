# `cmake --install build --prefix P` installs two components below P:
#
#   program       the program, configs, helper scripts and pages
#   development   libraries, headers and a CMake package: another project calls find_package(espalier) and
#                 links espalier::train (see examples/)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS espalier RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY configs machines DESTINATION ${CMAKE_INSTALL_DATADIR}/espalier COMPONENT program)
install(PROGRAMS scripts/make-text.sh scripts/mpirun.sh
  DESTINATION ${CMAKE_INSTALL_DATADIR}/espalier/scripts COMPONENT program)
install(FILES README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

get_property(layers GLOBAL PROPERTY ESPALIER_LAYERS)
install(TARGETS ${layers} espalier_options EXPORT espalier_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY src sparse pruning parallel io DESTINATION include/espalier COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(EXPORT espalier_targets NAMESPACE espalier:: COMPONENT development
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/espalier-config.cmake.in
  ${CMAKE_BINARY_DIR}/espalier-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/espalier-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/espalier-config.cmake ${CMAKE_BINARY_DIR}/espalier-config-version.cmake
  ${CMAKE_SOURCE_DIR}/cmake/dependencies.cmake ${CMAKE_SOURCE_DIR}/cmake/one_mpi.cmake
  ${CMAKE_SOURCE_DIR}/cmake/FindoneDNN.cmake
  ${CMAKE_SOURCE_DIR}/cmake/Findsentencepiece.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier COMPONENT development)
