#!/usr/bin/env bash
# From PhysioNet's folders to a report, on one machine with all its GPUs (docs/clusters.md).
# Run the same command again after anything: what is done is left out, what was begun resumes.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/train_mimic_cxr.sh SOURCE LANGUAGE_MODEL [CONFIG] [--loss NAME] [key=value ...]

  SOURCE          MIMIC-CXR or MIMIC-CXR-JPG folder of PhysioNet (only read)
  LANGUAGE_MODEL  folder of CXR-BERT (config.json, weights, vocabulary); scores sentences and
                  is what the text encoder starts from
  CONFIG          file or name of the run; default mimic_cxr/base with the paper's method,
                  --loss debiased_language_model
  --loss NAME     preset over CONFIG; `medclip-debias losses` lists them, Table 1's rows first
  key=value       settings over CONFIG, as train.steps=50000

Environment:
  PREPARED   prepared set            default data/mimic_cxr_512
  OUT        folder of the run       default CONFIG's own, and below it the preset's name
  REPORTS    folder or archive of the reports, if not below SOURCE
  PHRASES    MS-CXR's file of boxes, if not in SOURCE
  PROCESSES  training processes      default one a visible GPU, or 1 without a GPU
  RESTARTS   times that torchrun starts all processes again after one died; default 3
  SKIP_DOCTOR=1 leaves out the check before training
TEXT
}

case "${1-}" in -h | --help) usage; exit 0 ;; esac
if [ $# -lt 2 ]; then
    usage >&2
    exit 2
fi
source_folder=$1 language_model=$2
shift 2
config=mimic_cxr/base usual=(--loss debiased_language_model)
if [ $# -gt 0 ] && [[ $1 != *=* && $1 != -* ]]; then
    config=$1 usual=()
    shift
fi
for word in "$@"; do
    case $word in --loss | --loss=*) usual=() ;; esac
done
settings=("${usual[@]}" "$@")

say() { printf '\n# %s\n' "$*" >&2; }
run() {
    printf '$ medclip-debias %s\n' "$*" >&2
    medclip-debias "$@"
}
for path in "$source_folder" "$language_model"; do
    if [ ! -e "$path" ]; then
        echo "$path: there is no such file or folder." >&2
        exit 2
    fi
done

settings=("prepared=${PREPARED:-data/mimic_cxr_512}" "model.text.folder=$language_model" "${settings[@]}")
if [ -n "${OUT-}" ]; then settings+=("out=$OUT"); fi
# The run as the program resolves it, and one setting of it.
resolved=$(medclip-debias config show "$config" "${settings[@]}" --json)
setting() {
    python -c "import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split('.'):
    value = value[key]
print(value)" "$1" <<<"$resolved"
}
prepared=$(setting prepared)
out=$(setting out)
size=$(setting preprocessing.prepare.size)

say "1 of 5: the prepared set, $prepared"
if [ -f "$prepared/meta.json" ]; then
    say "is there already"
else
    more=()
    if [ -n "${REPORTS-}" ]; then more+=(--reports "$REPORTS"); fi
    if [ -n "${PHRASES-}" ]; then more+=(--phrases "$PHRASES"); fi
    run prepare "$source_folder" "$prepared" --size "$size" "${more[@]}"
fi

# Scoring 600,000 sentences takes hours without a GPU, and only some objectives read the scores.
say "2 of 5: log probability and claims of every sentence"
# Whether every sentence has a score of this very language model; says what is amiss if not.
scored() {
    python -c 'import sys
from pathlib import Path
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import language_model_hash
try:
    PreparedSet.open(Path(sys.argv[1])).scores(language_model_hash(Path(sys.argv[2])))
except UserError as error:
    sys.exit(str(error))' "$prepared" "$language_model"
}
if scored; then
    say "is there already, of this language model"
else
    run score "$prepared" --language-model "$language_model"
fi
if [ -f "$prepared/claims.parquet" ]; then
    say "claims are there already"
else
    run claims "$prepared"
fi

say "3 of 5: training, $out"
if [ "${SKIP_DOCTOR-}" != 1 ]; then
    run doctor "$config" "${settings[@]}"
fi
processes=${PROCESSES:-$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}
# Exit code 75: saved after SIGTERM or SIGUSR1, the same command resumes it. torchrun does not tell
# its processes' codes, so worker.sh leaves them in a folder.
SAVED=75
if [ "$processes" -gt 1 ]; then
    CODES=$(mktemp -d)
    export CODES
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    code=0
    torchrun --standalone --nproc-per-node="$processes" --max-restarts="${RESTARTS:-3}" \
        --no-python "$(dirname "$0")/slurm/worker.sh" train "$config" "${settings[@]}" || code=$?
    if [ "$("$(dirname "$0")/slurm/all_saved.sh" "$CODES" "$processes")" = yes ]; then
        code=$SAVED
    elif [ "$code" -eq 0 ] && grep -qsvx 0 "$CODES"/rank-*; then
        code=1 # worker.sh tells torchrun that a process which saved had success
    fi
    rm -rf "$CODES"
    if [ "$code" -ne 0 ]; then exit "$code"; fi
else
    run train "$config" "${settings[@]}"
fi

say "4 of 5: evaluation on the test split"
# Kept only if it was made after the model.
if [ "$out/results.json" -nt "$out/model/config.json" ]; then
    say "is there already"
else
    run evaluate "$out/model" "$prepared" --out "$out"
fi

say "5 of 5: report"
run report "$out"
