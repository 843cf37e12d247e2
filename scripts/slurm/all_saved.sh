#!/usr/bin/env bash
# all_saved.sh CODES WORLD: "yes" if each of the WORLD processes left the exit code 75 in
# CODES/rank-N, else "no", and on standard error those of which that is not true.
set -euo pipefail
SAVED=75
codes=$1 world=$2
saved=0 others=()
for ((rank = 0; rank < world; rank++)); do
    code=$(cat "$codes/rank-$rank" 2>/dev/null || true)
    if [ "$code" = "$SAVED" ]; then saved=$((saved + 1)); else others+=("$rank (${code:-no code})"); fi
done
if [ "$saved" -eq "$world" ]; then
    echo yes
    exit 0
fi
if [ "$saved" -gt 0 ]; then
    echo "# $saved of $world processes saved; not process ${others[*]}" >&2
fi
echo no
