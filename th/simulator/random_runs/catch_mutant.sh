#!/usr/bin/env bash
# Runs the program $1 with the mutation $2, or none; see catch_mutant.cc.
TH_MUTATION=${2-} exec "$1"
