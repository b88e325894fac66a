#!/usr/bin/env bash
echo "passes.sh: here I am"
