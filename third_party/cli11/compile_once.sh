#!/usr/bin/env bash
# Has CLI11's member functions compiled once, in cli11.cc, and not in each file that includes them, which is half of what
# such a file costs to compile: "C++ Interface and Implementation Pragmas" of gcc's manual. A compiler that does not
# know the pragmas compiles them in each file, as upstream means it. Run by debian_repository in the root of @com_github_cli11.
set -euo pipefail

for header in usr/include/CLI/*.hpp; do
  grep -q '^#pragma once$' "$header" || {
    echo "$header has no line '#pragma once' behind which '#pragma interface' could stand" >&2
    exit 1
  }
  sed -i 's/^#pragma once$/#pragma once\n#pragma interface/' "$header"
  echo "#pragma implementation \"${header##*/}\"" >>cli11.cc
done
echo '#include "CLI/CLI.hpp"' >>cli11.cc
