#!/bin/sh
# scripts/make-text.sh on generated pages: keeps prose, removes headings, code and mark-up.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
script=$root/scripts/make-text.sh
pages=$scratch/perl/5.36.0/pod
mkdir -p "$pages"

run "$script" "$scratch/none.txt" "$scratch/perl"
expect "no pages: exit code 1" [ "$code" = 1 ]
expect "no pages: how to get them" contains "$output" "apt-get install --no-install-recommends perl-doc"
expect "no pages: no file" [ ! -e "$scratch/none.txt" ]

cat >"$pages/perl000.pod" <<'EOS'
=head1 This heading does not belong to the prose of the page at all

A paragraph with B<bold>, I<italic>, C<< code <with> brackets >> and F<files> reads
on without its marks; see L<the manual|perlfunc> or L<perlvar/"names"> E<lt>hereE<gt>.

    my $code = "is indented and goes away, however long the line may be";

=begin comment

Hidden prose that a formatter would not print for the reader to see either.

=end comment

Too short.

EOS
body="All of the words in this sentence are only there to make the page long enough for the test."
for i in 1 2 3 4 5 6 7 8 9 10; do body="$body
$body"; [ $i -lt 8 ] || break; done
n=1
while [ $n -lt 101 ]; do
  printf 'Page %03d.\n%s\n\n' $n "$body" >"$pages/perl$(printf %03d $n).pod"
  n=$((n + 1))
done

run "$script" "$scratch/deep/folder/one.txt" "$scratch/perl"
expect "makes a text" [ "$code" = 0 ]
first=$(head -n 2 "$scratch/deep/folder/one.txt")
expect "removes marks, keeps words" [ "$first" = "A paragraph with bold, italic, code <with> brackets and files reads
on without its marks; see the manual or perlvar names <here>." ]
text=$(head -n 40 "$scratch/deep/folder/one.txt")
expect "no heading" lacks "$text" "heading"
expect "no code" lacks "$text" "my "
expect "no hidden prose" lacks "$text" "Hidden"
expect "no short paragraph" lacks "$text" "Too short"
expect "pages in order" contains "$text" "Page 001."
expect "no temporary file" [ "$(ls "$scratch/deep/folder")" = one.txt ]

run "$script" "$scratch/two.txt" "$scratch/perl"
expect "the same bytes again" cmp -s "$scratch/two.txt" "$scratch/deep/folder/one.txt"

for page in "$pages"/*; do echo "=head1 Nothing" >"$page"; done
run "$script" "$scratch/empty.txt" "$scratch/perl"
expect "no prose: exit code 1" [ "$code" = 1 ]
expect "no prose: no file" [ ! -e "$scratch/empty.txt" ]
finish
