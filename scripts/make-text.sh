#!/bin/sh
# make-text.sh OUT [PERL_DIR]: a few megabytes of English prose, from the manual pages of Perl (Debian package
# perl-doc, in /usr/share/perl). Headings, code and mark-up are left out. The same package version gives
# the same bytes.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: $0 OUT [PERL_DIR]" >&2
  exit 2
fi
out=$1
perl_dir=${2:-/usr/share/perl}
export LC_ALL=C

# Leaves out the pages in Chinese, Japanese and Korean, and the table of contents.
pages=$(find "$perl_dir/" -path '*/pod/perl*.pod' ! -name perlcn.pod ! -name perljp.pod \
  ! -name perlko.pod ! -name perltw.pod ! -name perltoc.pod 2>/dev/null | sort)
if [ "$(echo "$pages" | wc -l)" -lt 100 ]; then
  echo "$0: the pages of perl-doc are not in $perl_dir." >&2
  echo "Install them: apt-get install --no-install-recommends perl-doc" >&2
  echo "(Where the package is installed and they are still missing, this image leaves documentation" >&2
  echo "out: see path-exclude in /etc/dpkg/dpkg.cfg.d, then apt-get install --reinstall perl-doc.)" >&2
  exit 1
fi

mkdir -p "$(dirname "$out")"
temporary=$out.tmp.$$
trap 'rm -f "$temporary"' EXIT
# Paths have no blanks: they belong to a Debian package.
# shellcheck disable=SC2086
awk '
BEGIN {
  RS = ""  # a record is a paragraph
  split("lt < gt > verbar | sol /", words, " ")
  for (i = 1; i in words; i += 2) entity[words[i]] = words[i + 1]
}

# The text of one innermost code such as B<text>. Literal "<" and ">" become \001 and \002 meanwhile.
function plain(letter, text) {
  if (letter == "X" || letter == "Z") return ""
  if (letter == "E") {
    if (text == "lt") return "\001"
    if (text == "gt") return "\002"
    return (text in entity) ? entity[text] : ""
  }
  if (letter == "L" && text !~ /:\/\//) {
    if (index(text, "|")) return substr(text, 1, index(text, "|") - 1)
    gsub(/["\/]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
  }
  return text
}

/^=begin/ || /^=for/ { hidden = /^=begin/ }
/^=end/ || /^=cut/ { hidden = 0 }
hidden || /^=/ || /^[ \t\n]/ { next }  # commands, and code, which is indented
{
  while (match($0, /[A-Z]<<+[ \n]/)) {  # C<< a->b >>, closed by as many brackets
    before = substr($0, 1, RSTART - 1)
    letter = substr($0, RSTART, 1)
    brackets = RLENGTH - 2
    code = substr($0, RSTART + RLENGTH)
    close_at = match(code, "[ \n]>" (brackets > 2 ? ">>+" : ">"))
    if (!close_at) break
    after = substr(code, close_at + RLENGTH)
    code = substr(code, 1, close_at - 1)
    gsub(/</, "\001", code)
    gsub(/>/, "\002", code)
    $0 = before plain(letter, code) after
  }
  while (match($0, /[A-Z]<[^<>]*>/))
    $0 = substr($0, 1, RSTART - 1) plain(substr($0, RSTART, 1), substr($0, RSTART + 2, RLENGTH - 3)) \
      substr($0, RSTART + RLENGTH)
  gsub(/\001/, "<")
  gsub(/\002/, ">")
  gsub(/[ \t]+/, " ")
  # Prose is letters and blanks; short remarks and listings are not.
  letters = $0
  if (length($0) < 60 || gsub(/[A-Za-z \n]/, "", letters) < 0.9 * length($0)) next
  if ($0 ~ /[\200-\377]/) next  # not ASCII
  print $0 "\n"
}' $pages >"$temporary"

if [ "$(wc -c <"$temporary")" -lt 1000000 ]; then
  echo "$0: only $(wc -c <"$temporary") bytes of text came out of perl-doc; expected several millions." >&2
  exit 1
fi
mv "$temporary" "$out"
trap - EXIT
