#!/usr/bin/env bash
# Two machines, three peers, from one of them:  bash examples/two_hosts.sh nodea nodeb train.py --lr 0.1
# On both: ssh without a password, the script and gossip in the same places. docs/hosts.md has more.
set -euo pipefail
first=$1 second=$2
shift 2

# Looks at both, and at the way between them: versions, clocks, addresses, speed. Starts nothing.
gossip hosts -H "$first,$second:2" --check -- "$@"

# One peer on the first, two on the second; keys are made and everything is encrypted. Kill any of
# them, or switch a machine off: the others go on.
gossip hosts -H "$first,$second:2" -- "$@"
