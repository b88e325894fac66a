#!/usr/bin/env bash
# Ends neither at its limit nor when it is asked to.
trap '' TERM
echo "hangs.sh: begins to wait"
while true; do sleep 1000; done
