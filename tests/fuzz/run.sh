#!/usr/bin/env bash
# Fuzzes for SECONDS each target of the build folder BUILD (or those named), from the seeds and from what earlier runs
# kept in BUILD/corpus. A finding ends it with exit code 1 and the file that reproduces it.
#   tests/fuzz/run.sh build-fuzz 300 [TARGET...]
set -euo pipefail
build=${1:?the build folder} seconds=${2:?seconds}
shift 2
source=$(cd "$(dirname "$0")/../.." && pwd)
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for program in "$build"/fuzz_*; do targets+=("${program##*/fuzz_}"); done
  targets=("${targets[@]/seeds}")
fi
rm -rf "$build/seeds"
mkdir -p "$build/seeds" "$build/findings"
"$build/fuzz_seeds" "$build/seeds" "$source"

# Memory is bound by the input's size: of inputs up to `length` bytes no allocation may be larger than `limit` MiB.
# Compressed content may be 1032 times as large as the input, and an image 512 pixels a byte, of four channels.
for target in "${targets[@]}"; do
  [ -n "$target" ] || continue
  length=4096 limit=16
  case $target in
    picture) length=8192 limit=64 ;;
    cifar) length=8192 limit=32 ;;
    command_line) length=512 ;;
  esac
  mkdir -p "$build/corpus/$target"
  log="$build/findings/$target.log"
  if ! "$build/fuzz_$target" -max_total_time="$seconds" -max_len=$length -malloc_limit_mb=$limit -rss_limit_mb=3000 \
    -timeout=10 -close_fd_mask=1 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
    "$build/corpus/$target" "$build/seeds/$target" > "$log" 2>&1; then
    grep -aE 'ERROR|does not hold|runtime error|SUMMARY|Test unit written' "$log" >&2 || tail -n 20 "$log" >&2
    echo "fuzz_$target: a finding; see $log" >&2
    exit 1
  fi
  runs=$(grep -aoE 'number_of_executed_units: [0-9]+' "$log" | grep -oE '[0-9]+$')
  coverage=$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1)
  echo "fuzz_$target: $runs executions in $seconds s, ${coverage/:/}, no finding"
done
