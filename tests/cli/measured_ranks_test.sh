#!/bin/bash
# `kvcast validate --measure` with rows that ranks of an mpirun run: real ones, and what happens
# when runs are noisy, fail or are interrupted, which a script in the place of mpirun plays.
# Usage: measured_ranks_test.sh PROGRAM HAS_MPI SOURCE_DIR
set -u
program=$1 has_mpi=$2 source=$3
if [ "$has_mpi" != ON ] || ! command -v mpirun >/dev/null; then
  echo "SKIPPED: no mpirun, or built without MPI: rows of ranks were not measured"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
# Open MPI's own plugins leak at exit; everything else that a sanitizer finds still counts.
export ASAN_OPTIONS=detect_leaks=0 OMP_WAIT_POLICY=passive

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# has WORD FILE
has() { grep -qF -- "$1" "$2" || fail "'$1' is not in $2: $(cat "$2")"; }

cp "$source/reports/studies/kvr-measured/hardware/memory-2.json" two.json
cp "$source/data/hardware/x86-server-cpu.json" one.json
measure=("$program" validate --measure --quick --threads 1 --json --hardware one.json
  --rank-hardware two.json --attention tiled --output-len 3)

# Real ranks, which may be as noisy as they like.
"${measure[@]}" --force --model "$source/tests/oracle/gemma2" --method \
  'plain;kvr:p=2;kvr:p=2,partition=search;tsp:p=2' --batch 2 \
  --prompt-len 11 --csv real.csv --plot real-plot.svg >real.json 2>err.txt ||
  fail "real ranks: $(cat err.txt)"
[ "$(wc -l <real.csv)" -eq 5 ] || fail "real ranks: $(cat real.csv)"
[ "$(grep -cE '(kvr|tsp):p=2(,partition=search")?,tiled,fused,fp32,fp32,fp32,fp32,2,11,3,[0-9.e-]+,[0-9.e-]+,' real.csv)" -eq 3 ] ||
  fail "no times of ranks: $(cat real.csv)"
[ "$(grep -c ',memory-2,' real.csv)" -eq 3 ] || fail "hardware of ranks: $(cat real.csv)"
tr -d ' \n' <real.json >flat.json
for method in kvr tsp; do
  for metric in ttft_s tpot_s; do has "{\"method\":\"$method\",\"metric\":\"$metric\"," flat.json; done
done
has '"unmatched":0' flat.json
grep -q '"memory-2"' one.validation.json && fail "rows of ranks among the errors of one process"
has '"kvr"' two.validation.json
grep -q '"plain"' two.validation.json && fail "rows of one process among the errors of ranks"
# The file can be read again, with both devices.
"$program" validate --json --measurements real.csv --hardware one.json --rank-hardware two.json |
  tr -d ' \n' >again.json
has '"unmatched":0' again.json

# Runs as a script plays them: its arguments, then what the file times says, line by line.
mkdir bin
cat >bin/mpirun <<'END'
#!/bin/bash
cd "$PLAY" || exit 1
echo "$@" >>arguments
echo >>runs
[ -e broken ] && { echo "--- of mpirun"; echo "kvcast: $(cat broken)"; } >&2 && exit 1
[ -e slow ] && { echo $$ >slow; exec sleep 60; }
ttft=$(sed -n "$(wc -l <runs)p" times)
echo "{\"ttft_s\": ${ttft:-1}, \"tpot_s\": 0.5}"
END
chmod +x bin/mpirun
export PLAY=$work PATH=$work/bin:$PATH
played=("${measure[@]}" --model pythia-160m --batch 1 --prompt-len 64,65 --method kvr:p=2)

# A warm-up, 5 rounds; then a warm-up and a row whose rounds spread too far.
printf '%s\n' 99 1.0 1.2 1.1 1.0 1.2 1 1 2 3 1 3 >times
"${played[@]}" --csv noisy.csv >out.txt 2>err.txt
[ $? -eq 1 ] || fail "noisy: exit status"
has "kvcast: the machine is too noisy: pythia-160m kvr:p=2 tiled, fp32 with a cache in fp32, batch 1, prompt 65: the middle half of 5 TTFTs spreads over 100 %" err.txt
[ "$(wc -l <err.txt)" -eq 1 ] && [ ! -s out.txt ] || fail "noisy: $(cat err.txt out.txt)"
has "kvr:p=2,tiled,fused,fp32,fp32,fp32,fp32,1,64,3,1.1,0.5,0.1818181818" noisy.csv.partial
[ "$(wc -l <noisy.csv.partial)" -eq 2 ] || fail "noisy: $(cat noisy.csv.partial)"
[ "$(wc -l <runs)" -eq 12 ] || fail "noisy: $(wc -l <runs) runs"
has "run --quiet --json --model pythia-160m --random-weights 1 --method kvr:p=2 --attention tiled --weights fp32 --arithmetic fp32 --cache-dtype fp32 --batch 1 --prompt-len 65 --output-len 3 --threads 1" arguments
has "-n 2 " arguments
# Again with --force: the first row stays, the second is kept with a warning.
: >runs
printf '%s\n' 1 1 2 3 1 3 >times
"${played[@]}" --force --csv noisy.csv >out.txt 2>err.txt || fail "--force: $(cat err.txt)"
has "warning: pythia-160m kvr:p=2 tiled, fp32 with a cache in fp32, batch 1, prompt 65: the middle half of 5 TTFTs" err.txt
has '"rows_resumed": 1' out.txt
has "1,65,3,2,0.5,1,0,5," noisy.csv

# Ranks run in the types that the rows name.
: >runs
: >times
"${played[@]}" --arithmetic bf16 --cache-dtype fp8 --csv typed.csv >out.txt 2>err.txt || fail "types: $(cat err.txt)"
has "weights fp32 --arithmetic bf16 --cache-dtype fp8" arguments
has "kvr:p=2,tiled,fused,fp32,fp32,bf16,fp8,1,64,3" typed.csv

# What a run says is why its row has no times.
echo "this model is too large" >broken
"${played[@]}" --csv broken.csv >out.txt 2>err.txt || fail "broken: $(cat err.txt)"
[ "$(grep -c 'mpirun for\|: this model is too large\|,this model is too large$' broken.csv)" -eq 2 ] ||
  fail "broken: $(cat broken.csv)"
rm broken

# Ctrl-C ends the run and not the rows.
touch slow
(exec env --default-signal=INT "${played[@]}" --csv stopped.csv >out.txt 2>err.txt) &
job=$!
for ((i = 0; i < 300; ++i)); do [ -s slow ] && break || sleep 0.1; done
kill -INT $job
wait $job
[ $? -eq 130 ] || fail "Ctrl-C: exit status"
has "interrupted after 0 of 2 rows" err.txt
kill -0 "$(cat slow)" 2>/dev/null && fail "Ctrl-C: the run goes on"

[ $failures -eq 0 ] && echo "all checks of measured ranks passed"
exit $((failures > 0))
