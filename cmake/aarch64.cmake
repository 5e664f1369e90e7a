# Toolchain file for Debian's cross compiler, with its libraries of arm64; tests run under qemu-user. The
# packages: scripts/systems.sh, function aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
# FindHDF5 otherwise reads a compiler wrapper, which there is only for the machine that builds.
set(CMAKE_INCLUDE_PATH /usr/include/hdf5/serial)
set(CMAKE_LIBRARY_PATH /usr/lib/aarch64-linux-gnu/hdf5/serial)
