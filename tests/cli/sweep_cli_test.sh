#!/bin/bash
# What only the program itself shows of `kvcast sweep`: kill -9, Ctrl-C, mpirun, exit codes.
# Usage: sweep_cli_test.sh PROGRAM HAS_MPI
set -u
program=$1 has_mpi=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

same() { cmp -s "$1" "$2" || fail "$3: $1 and $2 differ"; }

# expect STATUS WORD ARGUMENTS...: the program exits with STATUS and says WORD in one line on stderr.
expect() {
  local status=$1 word=$2
  shift 2
  "$program" sweep "$@" >out.txt 2>err.txt
  local got=$?
  [ $got -eq "$status" ] || fail "$*: exit status $got, expected $status: $(cat err.txt)"
  grep -qF -- "$word" err.txt || fail "$*: '$word' is not in: $(cat err.txt)"
  [ "$(wc -l <err.txt)" -eq 1 ] || fail "$*: more than one line: $(cat err.txt)"
  [ ! -s out.txt ] || fail "$*: wrote to stdout"
}

rows() { [ -f "$1" ] && wc -l <"$1" || echo 0; }

# --- a full standard output; other bad input stands in refused_requests.txt -----------------------
base=(--model pythia-70m --hardware a100-80gb)
"$program" sweep "${base[@]}" >/dev/full 2>err.txt
[ $? -eq 1 ] || fail "stdout to /dev/full: not exit status 1"
[ -c /dev/full ] || fail "/dev/full was replaced"

# --- one point is what estimate says ---------------------------------------------------------------
"$program" sweep "${base[@]}" --quiet >point.csv || fail "one point"
"$program" estimate "${base[@]}" --json >point.json || fail "estimate"
for key in ttft_s tpot_s prefill_flops peak_memory_bytes; do
  column=$(head -1 point.csv | tr , '\n' | grep -n "^$key\$" | cut -d: -f1)
  value=$(sed -n 2p point.csv | cut -d, -f"$column")
  grep -q "\"$key\": $value,\$" point.json || fail "$key: sweep says $value, estimate does not"
done

# --- dry run ---------------------------------------------------------------------------------------
"$program" sweep "${base[@]}" --batch 1,2 --prompt-len 1k..4k:x2 --dry-run >dry.txt
grep -q '^6 points ' dry.txt || fail "--dry-run: $(cat dry.txt)"

# --- kill -9, and Ctrl-C ---------------------------------------------------------------------------
grid=("${base[@]}" --method "plain;random-prune:keep=0.5" --batch 1..100 --prompt-len 1..2k --quiet)
"$program" sweep "${grid[@]}" --csv whole.csv || fail "the uninterrupted sweep"
total=$(rows whole.csv)
[ "$total" -eq 409601 ] || fail "the uninterrupted sweep has $total lines"
[ ! -e whole.csv.partial ] && [ ! -e whole.csv.partial.json ] || fail "a finished sweep left files"

# start_and SIGNAL LINES FILE: a sweep to FILE gets the signal once FILE.partial has LINES lines.
start_and() {
  "$program" sweep "${grid[@]}" --csv "$3" 2>err.txt &
  local pid=$!
  while [ "$(rows "$3.partial")" -lt "$2" ] && kill -0 $pid 2>/dev/null; do sleep 0.005; done
  kill "-$1" $pid 2>/dev/null
  wait $pid 2>/dev/null
}
kills=0
for lines in 1 20000 60000 130000 200000; do
  start_and KILL $lines killed.csv
  [ -e killed.csv ] || kills=$((kills + 1))
done
[ $kills -ge 2 ] || fail "only $kills of 5 kills came before the end"
"$program" sweep "${grid[@]}" --csv killed.csv || fail "the resumed sweep"
same killed.csv whole.csv "after $kills kills"

for attempt in 1 2 3; do
  rm -f interrupted.csv
  start_and INT 1000 interrupted.csv
  status=$?
  [ $status -eq 0 ] || break  # it was done before the signal came
done
[ $status -eq 130 ] || fail "Ctrl-C: exit status $status, expected 130"
grep -q "goes on from there" err.txt || fail "Ctrl-C: does not say how to resume: $(cat err.txt)"
[ ! -e interrupted.csv ] || fail "Ctrl-C: left a file under the final name"
expect 2 "--restart" "${base[@]}" --csv interrupted.csv
"$program" sweep "${grid[@]}" --csv interrupted.csv || fail "resuming after Ctrl-C"
same interrupted.csv whole.csv "after Ctrl-C"

# --- shards ----------------------------------------------------------------------------------------
for i in 1 2 3; do "$program" sweep "${grid[@]}" --shard $i/3 --csv s$i.csv || fail "shard $i"; done
cat s1.csv <(tail -n +2 s2.csv) <(tail -n +2 s3.csv) >joined.csv
same joined.csv whole.csv "shards"

# --- mpirun ----------------------------------------------------------------------------------------
if [ "$has_mpi" != ON ] || ! command -v mpirun >/dev/null; then
  echo "SKIPPED: no mpirun, or built without MPI: sweeps over several processes were not tested"
else
  # Open MPI's own plugins leak at exit; everything else that a sanitizer finds still counts.
  export ASAN_OPTIONS=detect_leaks=0
  mpi=(mpirun --oversubscribe -n)
  [ "$(id -u)" -eq 0 ] && mpi=(mpirun --allow-run-as-root --oversubscribe -n)
  for n in 2 3; do
    "${mpi[@]}" $n "$program" sweep "${grid[@]}" --csv ranks$n.csv 2>err.txt ||
      fail "mpirun -n $n: $(cat err.txt)"
    same ranks$n.csv whole.csv "mpirun -n $n"
  done
  start_and KILL 60000 half.csv
  "${mpi[@]}" 2 "$program" sweep "${grid[@]}" --csv half.csv || fail "mpirun resumes"
  same half.csv whole.csv "mpirun after a kill"
  "${mpi[@]}" 2 "$program" sweep "${grid[@]}" --csv /dev/full 2>err.txt && fail "mpirun, full disk"
  [ "$(grep -c '^kvcast:' err.txt)" -eq 1 ] || fail "mpirun, full disk: $(cat err.txt)"
  "${mpi[@]}" 2 "$program" sweep "${base[@]}" --dtype bf17 2>err.txt && fail "mpirun, bad input"
  [ "$(grep -c '^kvcast:' err.txt)" -eq 1 ] || fail "mpirun, bad input: $(cat err.txt)"
fi

[ $failures -eq 0 ] && echo "all sweep checks passed"
exit $((failures > 0))
