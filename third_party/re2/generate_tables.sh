#!/usr/bin/env bash
# Debian's tarball of re2 lacks the sources that re2's own scripts make from Unicode's tables. Runs them.
set -euo pipefail

cd re2
# The scripts read local files here, so the one thing they want `six` for (urllib) is in the standard library.
sed -i -e 's/^from six.moves import urllib$/import urllib.request/' \
  -e "s|^_UNICODE_DIR = .*|_UNICODE_DIR = \"$PWD/../unicode/usr/share/unicode\"|" unicode.py
for table in casefold groups; do
  PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "make_unicode_$table.py" >"unicode_$table.cc"
done
/usr/bin/perl make_perl_groups.pl >perl_groups.cc
rm -rf ../unicode
