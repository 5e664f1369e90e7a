#!/bin/sh
# dictionary_text.sh OUT: 40 MB of English, the text of the GNU Collaborative International Dictionary of English (Debian
# package dict-gcide, downloaded and not installed). The same package version gives the same bytes.
set -eu
if [ $# -ne 1 ]; then
  echo "usage: $0 OUT" >&2
  exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && apt-get download dict-gcide >&2)
dpkg-deb --fsys-tarfile "$folder"/dict-gcide_*.deb | tar -xO --wildcards '*/gcide.dict.dz' | gzip -dc >"$folder/text"
mv "$folder/text" "$1"
