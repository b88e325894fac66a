#!/usr/bin/env bash
echo "fails.sh: this goes to standard error" >&2
exit 3
