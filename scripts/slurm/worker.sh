#!/usr/bin/env bash
# One process of a run under torchrun: passes signals on, and leaves the exit code in
# $CODES/rank-N. "Saved, run me again" (75) is reported to torchrun as success: it must not start the
# processes again when the time is up.
set -euo pipefail
SAVED=75
mkdir -p "$CODES"
program=${PROGRAM:-medclip-debias}
# Of an earlier start of this process, whose "saved" must not be taken for this one's.
rm -f "$CODES/rank-${RANK:-0}"

"$program" "$@" &
child=$!
echo "$$" >"$CODES/pid-$(hostname)-${LOCAL_RANK:-0}"
trap 'kill -TERM "$child" 2>/dev/null || true' TERM
trap 'kill -USR1 "$child" 2>/dev/null || true' USR1

# A trapped signal ends `wait`, so wait again until the process has really ended.
while true; do
    if wait "$child"; then code=0; else code=$?; fi
    kill -0 "$child" 2>/dev/null || break
done
echo "$code" >"$CODES/rank-${RANK:-0}"
if [ "$code" -eq "$SAVED" ]; then exit 0; fi
exit "$code"
