# `cmake --install build --prefix P` installs the program, libraries, headers and a CMake package below P.
# Another project calls find_package(espalier) and links espalier::train (see examples/).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY ESPALIER_LAYERS)
install(TARGETS ${layers} espalier_options EXPORT espalier_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS espalier RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY src sparse pruning parallel io DESTINATION include/espalier
  FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(EXPORT espalier_targets NAMESPACE espalier:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/espalier-config.cmake.in
  ${CMAKE_BINARY_DIR}/espalier-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/espalier-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/espalier-config.cmake ${CMAKE_BINARY_DIR}/espalier-config-version.cmake
  ${CMAKE_SOURCE_DIR}/cmake/dependencies.cmake ${CMAKE_SOURCE_DIR}/cmake/FindoneDNN.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
