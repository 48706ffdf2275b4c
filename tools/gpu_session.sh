#!/usr/bin/env bash
# GPU tests, then benchmarks, in one go on a machine that has a GPU and perhaps nothing else (no network, no checkout).
#
#   tools/gpu_session.sh OUT [STEP...]      STEP: smoke tests fuzz compare ragged models quant tune sweep table sanitize
#                                           default: tests compare
#
# Logs, JSON and plots go to OUT. A step that fails does not stop the next; the exit code is 1 if any did.
# Settings: GEMMILL_BUILD (build id or path), LEVEL (L0, L1, L2), COMMIT, VLLM_SO, SECONDS_EACH (limit for each benchmark),
# JOBS and SEED of fuzz, SANITIZER (compute-sanitizer or its folder), BENCHMARK_ARGUMENTS (added to each benchmark), DEEP_GEMM (its Python package, for compare), DRY_RUN=1 (no GPU needed).
# `tune` sweeps the shapes of the comparison's tables twice: what today's table loses, and how far two sweeps agree.
# `table` makes a table of OUT's sweeps, from which the steps after it choose.
set -uo pipefail

if [ $# -lt 1 ]; then
  sed -n '2,11p' "$0" >&2
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
fuzz_options=(--seconds "${SECONDS_EACH:-180}" --jobs "${JOBS:-12}" --seed "${SEED:-0}")
[ -n "${GEMMILL_BUILD:-}" ] && fuzz_options+=(--build "$GEMMILL_BUILD")
[ -n "${DRY_RUN:-}" ] && fuzz_options=(--cpu --calls 200)
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

tests_by_operands() {  # GPU tests of variants, a process for each type of operands, and of the ops
  local jobs=() status=0 job
  for operands in e4m3_e4m3 s8_s8 bf16_bf16_f32 f16_f16_f32 sm90a_quant; do
    "$python" -m pytest tests/families/scaled_mm/gpu/test_numerics.py tests/gpu/test_cases.py "${test_options[@]}" --level "$level" --match "$operands" \
      --junitxml="$out/tests-$operands.xml" >"$out/tests-$operands.log" 2>&1 &
    jobs+=($!)
  done
  "$python" -m pytest tests/families/scaled_mm/gpu/test_ops.py tests/families/quant/gpu tests/gpu/test_chains.py tests/gpu/test_random_calls.py "${test_options[@]}" --junitxml="$out/tests-ops.xml" \
    >"$out/tests-ops.log" 2>&1 &
  jobs+=($!)
  for job in "${jobs[@]}"; do
    wait "$job"
    case $? in 0 | 5) ;; *) status=1 ;; esac  # 5: the build has no variant for such operands
  done
  tail -q -n 3 "$out"/tests-*.log
  return $status
}

tune_targets() {
  local options=(--shapes "$out/targets.csv" --repeat 2 --journal "$out/targets.jsonl" --table "$out/targets.json" --report "$out/targets.html")
  [ -n "${GEMMILL_BUILD:-}" ] && options+=(--build "$GEMMILL_BUILD")
  [ -n "${DRY_RUN:-}" ] && options+=(--dry-run --rounds 1 --candidates 2)
  PYTHONPATH="$PYTHONPATH:$PWD/benchmarks" "$python" - "$out/targets.csv" "${DRY_RUN:-}" <<'EOF' || return 1
import sys
from pathlib import Path

from gemmill.tuner.workloads import tiny
from timed.scaled_mm import OPS_OF, table_workloads

workloads = table_workloads(OPS_OF["all"])
if sys.argv[2]:
    workloads = sorted({tiny(workload) for workload in workloads})
rows = [",".join(map(str, (workload.op, *workload.sizes.values()))) for workload in workloads]
Path(sys.argv[1]).write_text("\n".join(["op,m,n,k", *rows]) + "\n")
EOF
  "$python" -m gemmill tune "${options[@]}"
}

sanitize() {  # a slice; what it passed comes back in OUT, to be put into tests/
  local options=(--seconds "${SECONDS_EACH:-540}" --record "$out/sanitized.json") status=0
  [ -f "$out/sanitized.json" ] || cp tests/sanitized.json "$out/"
  [ -n "${GEMMILL_BUILD:-}" ] && options+=(--build "$GEMMILL_BUILD")
  [ -n "${SANITIZER:-}" ] && options+=(--sanitizer "$SANITIZER")
  [ -n "${COMMIT:-}" ] && options+=(--commit "$COMMIT")
  [ -n "${DRY_RUN:-}" ] && options+=(--list)
  "$python" tools/sanitized.py "${options[@]}" || status=$?
  case $status in 0 | 3) return 0 ;; *) return $status ;; esac  # 3: bodies wait for the next slice
}

for name in $steps; do
  case $name in
    smoke) step smoke "$python" -m pytest tests/gpu tests/families/*/gpu "${test_options[@]}" --level L0 -x ;;
    tests) step tests tests_by_operands ;;
    fuzz) step fuzz "$python" -m gemmill fuzz "${fuzz_options[@]}" ;;
    compare)
      step compare "$python" benchmarks/run.py scaled_mm "${benchmark_options[@]}" ${DEEP_GEMM:+--deep-gemm "$DEEP_GEMM"} ;;
    ragged)
      step ragged "$python" benchmarks/run.py scaled_mm --op fp8_groups --shapes ragged --name ragged "${benchmark_options[@]}" \
        ${DEEP_GEMM:+--deep-gemm "$DEEP_GEMM"} ;;
    tune) step tune tune_targets ;;
    models) step models "$python" benchmarks/run.py scaled_mm --models llama,qwen,mistral --name models "${benchmark_options[@]}" ;;
    sweep) step sweep "$python" benchmarks/run.py scaled_mm --variants --name sweep "${benchmark_options[@]}" ;;
    table)
      mkdir -p "$out/tables"
      step table "$python" tools/convert_sweeps.py "$out"/*sweep*.json --table "$out/tables/table.json"
      export GEMMILL_TABLES="$out/tables" ;;
    quant) step quant "$python" benchmarks/run.py quant "${benchmark_options[@]}" ;;
    sanitize) step sanitize sanitize ;;
    *) echo "no step $name: smoke tests fuzz compare ragged models quant tune sweep table sanitize" >&2; failed=1 ;;
  esac
done
exit $failed
