# Read by cpack: a package runs on other machines than its build.
if(NOT CPACK_ESPALIER_CPU_TABLES STREQUAL "all")
  message(FATAL_ERROR "This build has the kernels of one CPU (ESPALIER_CPU_TABLES=${CPACK_ESPALIER_CPU_TABLES}), "
    "and its package would not run on others. Fix: cmake --preset release -DESPALIER_CPU_TABLES=all, build, "
    "and call cpack again.")
endif()
if(NOT CPACK_ESPALIER_BUILD_TYPE STREQUAL "Release")
  message(FATAL_ERROR "This is a build of type ${CPACK_ESPALIER_BUILD_TYPE}. Fix: make packages of a release build "
    "(cmake --preset release).")
endif()
