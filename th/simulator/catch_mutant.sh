#!/usr/bin/env bash
# Runs the program that is named first; see catch_mutant.cc.
exec "$@"
