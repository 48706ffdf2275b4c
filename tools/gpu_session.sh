#!/usr/bin/env bash
# GPU tests, then benchmarks, in one go on a machine that has a GPU and perhaps nothing else (no network, no checkout).
#
#   tools/gpu_session.sh OUT [STEP...]      STEP: smoke tests compare models sweep table quant sanitize; default: tests compare
#
# Logs, JSON and plots go to OUT. A step that fails does not stop the next; the exit code is 1 if any did.
# Settings: GEMMILL_BUILD (build id or path), LEVEL (L0, L1, L2), COMMIT, VLLM_SO, SECONDS_EACH (limit for each benchmark),
# BENCHMARK_ARGUMENTS (added to each benchmark), DEEP_GEMM (its Python package, for compare), DRY_RUN=1 (no GPU needed).
# `table` makes a table of OUT's sweeps, from which the steps after it choose.
set -uo pipefail

if [ $# -lt 1 ]; then
  sed -n '2,9p' "$0" >&2
  exit 2
fi
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
steps=${*:-tests compare}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/generator${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
level=${LEVEL:-L1}
benchmark_options=(--out-dir "$out" --limit-seconds "${SECONDS_EACH:-180}")
test_options=(-q -p no:cacheprovider --tb=short --maxfail=200)
[ -n "${COMMIT:-}" ] && benchmark_options+=(--commit "$COMMIT")
[ -n "${VLLM_SO:-}" ] && benchmark_options+=(--vllm-so "$VLLM_SO")
[ -n "${GEMMILL_BUILD:-}" ] && benchmark_options+=(--build "$GEMMILL_BUILD") && test_options+=(--build "$GEMMILL_BUILD")
[ -n "${DRY_RUN:-}" ] && benchmark_options+=(--dry-run) && test_options+=(--dry-run)
read -r -a more <<<"${BENCHMARK_ARGUMENTS:-}"
benchmark_options+=("${more[@]}")

failed=0
step() {  # name, command...
  local name=$1 started=$SECONDS
  shift
  echo "== $name: $*"
  "$@" >"$out/$name.log" 2>&1
  local status=$?
  tail -n "${TAIL:-40}" "$out/$name.log" | cut -c1-300
  echo "== $name: exit $status after $((SECONDS - started)) s"
  [ $status -eq 0 ] || failed=1
}

for name in $steps; do
  case $name in
    smoke) step smoke "$python" -m pytest tests/gpu "${test_options[@]}" --level L0 -x ;;
    tests) step tests "$python" -m pytest tests/gpu "${test_options[@]}" --level "$level" --junitxml="$out/tests.xml" ;;
    compare)
      step compare "$python" benchmarks/scaled_mm.py "${benchmark_options[@]}" ${DEEP_GEMM:+--deep-gemm "$DEEP_GEMM"} ;;
    models) step models "$python" benchmarks/scaled_mm.py --models llama,qwen,mistral --name models "${benchmark_options[@]}" ;;
    sweep) step sweep "$python" benchmarks/scaled_mm.py --variants --name sweep "${benchmark_options[@]}" ;;
    table)
      mkdir -p "$out/tables"
      step table "$python" tools/convert_sweeps.py "$out"/*sweep*.json --table "$out/tables/table.json"
      export GEMMILL_TABLES="$out/tables" ;;
    quant) step quant "$python" benchmarks/quant.py "${benchmark_options[@]}" ;;
    sanitize)
      step sanitize compute-sanitizer --tool memcheck --error-exitcode 1 --target-processes all \
        "$python" -m pytest tests/gpu "${test_options[@]}" --level L0 -k "integers_are_exact or rows_of_any_length" ;;
    *) echo "no step $name: smoke tests compare models sweep table quant sanitize" >&2; failed=1 ;;
  esac
done
exit $failed
