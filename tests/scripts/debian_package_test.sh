#!/bin/sh
# debian_package_test.sh ROOT BUILD: cpack makes Debian packages of an existing build. Checks their fields,
# dependencies and files, and runs the program of the unpacked package. A build with the kernels of one
# CPU must be refused.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
build=$2

skip() {
  echo "SKIPPED: $1"
  exit 77
}
for tool in dpkg-deb dpkg-shlibdeps file; do
  command -v $tool >/dev/null || skip "$tool is missing (scripts/install-packages.sh --package)"
done
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

run cpack --config "$build/CPackConfig.cmake" -B "$scratch"
if [ "$(cached ESPALIER_CPU_TABLES)" != all ] || [ "$(cached CMAKE_BUILD_TYPE)" != Release ]; then
  expect "no package of a build for one CPU, or without optimisation" [ "$code" != 0 ]
  expect "its message has the fix" contains "$output" "Fix: "
  expect "no package is left" [ -z "$(find "$scratch" -name '*.deb')" ]
  [ $failures = 0 ] || finish
  skip "the build is no release build with all kernels (-DESPALIER_CPU_TABLES=all): cpack refuses it"
fi
expect "cpack succeeds" [ "$code" = 0 ]

version=$(sed -n 's/^project(espalier VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
architecture=$(dpkg --print-architecture)
package=$scratch/espalier_${version}_$architecture.deb
development=$scratch/espalier-dev_${version}_$architecture.deb
expect "a package of the program" [ -s "$package" ]
expect "a package of the libraries" [ -s "$development" ]
[ $failures = 0 ] || finish

# Fields.
field() { dpkg-deb -f "$1" "$2"; }
for name in Maintainer Description Section Installed-Size; do
  expect "the field $name" [ -n "$(field "$package" $name)" ]
done
expect "the version of the project" [ "$(field "$package" Version)" = "$version" ]
depends=$(field "$package" Depends)
for library in openmpi-bin libopenmpi libhdf5-openmpi libdnnl libfmt libtomlplusplus libxxhash libpcre2 libutf8proc libsentencepiece zlib1g libgomp \
  libstdc++ 'libc6 (>='; do
  expect "depends on $library ($depends)" contains ", $depends" ", $library"
done
depends=$(field "$development" Depends)
for library in libopenmpi-dev libhdf5-openmpi-dev libdnnl-dev libfmt-dev libtomlplusplus-dev libxxhash-dev \
  libpcre2-dev libutf8proc-dev libsentencepiece-dev zlib1g-dev; do
  expect "espalier-dev depends on $library ($depends)" contains "$depends" "$library"
done

# Files.
listing=$(dpkg-deb -c "$package")
expect "files belong to root" [ -z "$(echo "$listing" | grep -v ' root/root ')" ]
expect "modes are 755 and 644" [ -z "$(echo "$listing" | grep -Ev '^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--) ')" ]
expect "files are below usr/bin and usr/share" \
  [ -z "$(echo "$listing" | grep -Ev ' \./(usr/((bin|share)/.*)?)?$')" ]
unpacked=$scratch/unpacked
dpkg-deb -R "$package" "$unpacked"
run sh -c "cd '$unpacked' && md5sum --quiet -c DEBIAN/md5sums"
expect "checksums" [ "$code" = 0 ]
expect "no scripts of its own" [ "$(ls "$unpacked/DEBIAN")" = "control
md5sums" ]
run diff -r "$root/configs" "$unpacked/usr/share/espalier/configs"
expect "all configs" [ "$code" = 0 ]
for name in share/espalier/scripts/make-text.sh share/doc/espalier/README.md share/doc/espalier/docs/errors.md; do
  expect "$name" [ -s "$unpacked/usr/$name" ]
done

# The program.
program=$unpacked/usr/bin/espalier
expect "no path of libraries" lacks "$(readelf -d "$program")" "PATH)"
expect "no symbols" lacks "$(readelf -S "$program")" ".symtab"
if [ "$(uname -m)" = x86_64 ]; then
  for table in portable avx2 avx512 avx512bf16 amx; do
    expect "the kernels of cpu-$table" grep -q "cpu-$table" "$program"
  done
fi
run "$program" info --json
expect "the program runs" contains "$output" "\"version\": \"$version\""
head -c 100000 "$root/docs/config.md" >"$scratch/text.txt"
run "$program" train "$unpacked/usr/share/espalier/configs/quickstart-sparse.toml" --out "$scratch/run" \
  --set "data.train=[\"$scratch/text.txt\"]" --set train.steps=2 --set train.eval_batches=1
expect "it trains with a config of the package" contains "$output" "finished: $scratch/run/summary.json"

# The libraries.
dpkg-deb -x "$development" "$scratch/development"
for name in lib/libespalier_train.a lib/cmake/espalier/espalier-config.cmake include/espalier/src/kernels/kernels.h; do
  expect "$name" [ -s "$scratch/development/usr/$name" ]
done
run grep -rlF "$root/src/" "$unpacked" "$scratch/development"
expect "no path of the build" [ "$code" = 1 ]
finish
