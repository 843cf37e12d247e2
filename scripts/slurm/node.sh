#!/usr/bin/env bash
# One node of a run: torchrun in the background, USR1 handed to this node's processes directly,
# because torchrun would die of it.
set -euo pipefail
# Of an earlier start: a signal must not go to whatever has such a number today.
rm -f "$CODES/pid-$(hostname)-"*
torchrun "$@" &
agent=$!
hand_on() {
    for file in "$CODES/pid-$(hostname)-"*; do
        if [ -f "$file" ]; then kill -USR1 "$(cat "$file")" 2>/dev/null || true; fi
    done
}
trap hand_on USR1
trap 'kill -TERM "$agent" 2>/dev/null || true' TERM
while true; do
    if wait "$agent"; then code=0; else code=$?; fi
    kill -0 "$agent" 2>/dev/null || break
done
exit "$code"
