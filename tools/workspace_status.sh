#!/usr/bin/env bash
# Tells Bazel the commit that is being built; see //th/version. TH_COMMIT says it where there is no git (a tarball).
set -euo pipefail

commit=${TH_COMMIT-}
if [[ -z $commit ]] && commit=$(git rev-parse --short=12 HEAD 2>/dev/null); then
  if ! git diff --quiet HEAD -- 2>/dev/null; then commit+=-modified; fi
fi
echo "STABLE_TH_COMMIT ${commit:-unknown}"
