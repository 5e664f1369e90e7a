#!/bin/sh
# english_text.sh OUT [PACKAGE…]: 112 MB of English, from packages of Debian 12, which are downloaded and not installed:
#
#   dict-gcide       GNU Collaborative International Dictionary of English, 40 MB
#   dict-wn          WordNet, a dictionary, 31 MB
#   dict-foldoc      dictionary of computing, 6 MB
#   linux-doc-6.1    documentation of Linux, 24 MB
#   python3.11-doc   documentation of Python, 11 MB
#
# By default all of them, cut into pieces of 1 MB in an order that does not depend on their place, so that the last part
# of the text, on which losses are measured, is like the rest. The same versions give the same bytes.
set -eu
if [ $# -lt 1 ]; then
  echo "usage: $0 OUT [PACKAGE…]" >&2
  exit 2
fi
out=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- dict-gcide dict-wn dict-foldoc linux-doc-6.1 python3.11-doc
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download "$@" >&2
for package in "$@"; do
  case $package in
    dict-*) files='*.dict.dz' filter='gzip -dc' ;;
    *) files='*/_sources/*.txt' filter=cat ;;
  esac
  dpkg-deb --fsys-tarfile "${package}"_*.deb | tar -xO --wildcards "$files" | $filter >"$package.txt"
  [ -s "$package.txt" ] || { echo "$0: $package has no file $files" >&2; exit 1; }
done
if [ $# = 1 ]; then
  mv "$1.txt" "$out"
  exit
fi
for package in "$@"; do
  split -a 3 -C 1000000 "$package.txt" "piece-$package-"
done
for piece in piece-*; do
  echo "$(printf %s "$piece" | md5sum | cut -c1-32) $piece"
done | LC_ALL=C sort | while read -r _ piece; do
  cat "$piece"
done >"$out.tmp"
mv "$out.tmp" "$out"
