#!/bin/bash
# `kvcast run` with kvr and tsp, and `kvcast train`, on the processes of an mpirun: the tokens and
# losses of one process, and one line and no hang when something is wrong.
# Usage: run_ranks_test.sh PROGRAM HAS_MPI SOURCE_DIR
set -u
unset OMP_NUM_THREADS  # how many threads a rank has by itself is tested too
program=$1 has_mpi=$2 oracle=$3/tests/oracle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# refused STATUS WORD COMMAND...: it ends with STATUS, in time, with WORD in its one line.
# Open MPI 4.1's mpirun can crash in its own PMIx_server_finalize after a rank has aborted. Its stack
# trace shows that; such a command runs once more.
refused() {
  local status=$1 word=$2 got
  shift 2
  for attempt in 1 2; do
    timeout 100 "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq 139 ] && grep -q PMIx_server_finalize err.txt || break
  done
  [ $got -eq "$status" ] || fail "$*: exit status $got, expected $status: $(cat err.txt)"
  grep '^kvcast:' err.txt | grep -qF -- "$word" || fail "$*: '$word' is not in: $(cat err.txt)"
  [ "$(grep -c '^kvcast:' err.txt)" -eq 1 ] || fail "$*: not one line: $(cat err.txt)"
  [ ! -s out.txt ] || fail "$*: wrote to stdout: $(cat out.txt)"
}

tokens=5,6,7,8,9,10,11,12,13,14,15
run=("$program" run --model "$oracle/gemma2" --tokens $tokens --output-len 9 --threads 1)
plain=$("${run[@]}" --quiet) || fail "one process"

refused 2 "mpirun -n 2 kvcast run" "${run[@]}" --method kvr:p=2
refused 2 "as in 5/3/2/1" "${run[@]}" --method kvr:p=2,partition=11/0
[ "$("${run[@]}" --quiet --method kvr:p=1)" = "$plain" ] || fail "kvr:p=1 in one process"
[ "$("${run[@]}" --quiet --method tsp:p=1)" = "$plain" ] || fail "tsp:p=1 in one process"
refused 2 "expected --hardware, because partition=search" "${run[@]}" --method kvr:p=1,partition=search
refused 2 "got no links" "${run[@]}" --method kvr:p=1,partition=search --hardware x86-server-cpu
refused 2 "expected --profile or partition=search" "${run[@]}" --method kvr:p=1 --hardware a100-80gb

# A model on three devices that are threads: the tokens and the counts of one process.
spread=("$program" run --model "$oracle/gpt2" --tokens $tokens --output-len 9 --threads 1)
alone_gpt2=$("${spread[@]}" --quiet) || fail "gpt2 in one process"
"${spread[@]}" --tp 3 --count --json >threads.json 2>err.txt || fail "--tp 3: $(cat err.txt)"
spread_facts() {  # FILE DEVICES
  tr -d ' \n' <"$1" | grep -qF "\"generated_tokens\":[$alone_gpt2]" || fail "$1: tokens: $(cat "$1")"
  tr -d ' \n' <"$1" | grep -qF "\"devices\":$2," || fail "$1: devices: $(cat "$1")"
  [ "$(number counted_flops "$1")" = "$(number analytic_flops "$1")" ] || fail "$1: FLOPs"
  [ "$(number counted_bytes "$1")" = "$(number analytic_bytes "$1")" ] || fail "$1: bytes"
  [ "$(grep -c '"weight_bytes"' "$1")" -eq $(($2 + 1)) ] || fail "$1: weights of each rank: $(cat "$1")"
  [ "$(number messages "$1")" -gt 0 ] || fail "$1: messages"
}
refused 2 "gpt2 has 3 attention heads; expected one of 1, 3" "${spread[@]}" --tp 2
refused 2 "only forecasts know stages" "${spread[@]}" --tp 3 --pp 2
refused 2 "expected 9 of them: mpirun -n 9" "${spread[@]}" --tp 3 --method kvr:p=3
refused 2 "gpt2, which has no experts" "${spread[@]}" --ep 2

# All operators are in a profile; of several ranks those of one, with what it waited for.
number() { tr -d ' \n' <"$2" | grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2; }
spread_facts threads.json 3
profile=("${run[@]}" --quiet --json --profile --hardware m2-pro-cpu)
profile_flops() { awk -F: '/"flops"/ { sum += $2 } END { printf "%.0f", sum }' "$1"; }
"${profile[@]}" --method kvr:p=1 >profile.json || fail "--profile of kvr:p=1"
all_flops=$(number analytic_flops profile.json)
[ "$(profile_flops profile.json)" = "$all_flops" ] ||
  fail "--profile: $(profile_flops profile.json) FLOPs, expected $all_flops"
"${spread[@]}" --quiet --json --profile --hardware m2-pro-cpu --tp 3 >profile.json ||
  fail "--profile of tp 3"
# Its share of the vocabulary is not quite a third.
awk -v own="$(profile_flops profile.json)" -v all="$(number analytic_flops profile.json)" \
  'BEGIN { exit !(3 * own > 0.99 * all && 3 * own < 1.01 * all) }' ||
  fail "--profile: $(profile_flops profile.json) FLOPs of one of three devices"
grep -q '"operator": "all_reduce"' profile.json || fail "--profile: no messages of tp 3"

if [ "$has_mpi" != ON ] || ! command -v mpirun >/dev/null; then
  echo "SKIPPED: no mpirun, or built without MPI: runs on several processes were not tested"
else
  # Open MPI's own plugins leak at exit; everything else that a sanitizer finds still counts.
  export ASAN_OPTIONS=detect_leaks=0
  mpi=(mpirun --oversubscribe -n)
  [ "$(id -u)" -eq 0 ] && mpi=(mpirun --allow-run-as-root --oversubscribe -n)

  for method in kvr:p=2 kvr:p=2,partition=1/10 kvr:p=2,partition=10/1 tsp:p=2; do
    got=$("${mpi[@]}" 2 "${run[@]}" --quiet --method $method) || fail "$method: exit status"
    [ "$got" = "$plain" ] || fail "$method: $got, expected $plain"
  done
  # mpirun says how many ranks there are, or the parts do.
  for method in kvr:p=4 kvr:p=4,partition=5/3/2/1 kvr:partition=5/3/2/1 kvr tsp:p=4 tsp; do
    got=$("${mpi[@]}" 4 "${run[@]}" --quiet --method $method) || fail "$method: exit status"
    [ "$got" = "$plain" ] || fail "$method: $got, expected $plain"
  done

  # Ranks of three devices each: the tokens and the counts of one process.
  for method in kvr tsp:p=2 kvr:p=2,partition=3/8; do
    got=$("${mpi[@]}" 6 "${spread[@]}" --quiet --tp 3 --method $method) || fail "--tp 3 $method"
    [ "$got" = "$alone_gpt2" ] || fail "--tp 3 $method: $got, expected $alone_gpt2"
  done
  "${mpi[@]}" 6 "${spread[@]}" --tp 3 --method kvr --count --json >groups.json 2>err.txt ||
    fail "--tp 3 kvr: $(cat err.txt)"
  spread_facts groups.json 6
  refused 2 "method kvr:p=2 with tp 3: got 5 processes of mpirun" "${mpi[@]}" 5 "${spread[@]}" --tp 3 --method kvr:p=2

  # Two prompts at a time: each one's parts are sent and joined by themselves.
  two=("$program" run --model "$oracle/gemma2" --tokens "$tokens;15,3,9,4,8,2,7,11,6,5,10"
    --output-len 9 --threads 1 --quiet)
  both=$("${two[@]}") || fail "two prompts in one process"
  [ "$(wc -l <<<"$both")" -eq 2 ] || fail "two prompts in one process: $both"
  for method in kvr:p=2,partition=4/7 kvr:p=3 tsp:p=3; do
    ranks=${method#*p=}
    got=$("${mpi[@]}" "${ranks%%,*}" "${two[@]}" --method $method) || fail "two prompts, $method"
    [ "$got" = "$both" ] || fail "two prompts, $method: $got, expected $both"
  done

  # States are passed on with keys and values.
  for name in granitemoehybrid falcon_h1 qwen3_next; do
    states=("$program" run --model "$oracle/$name" --tokens $tokens --output-len 9 --threads 1 --quiet)
    alone=$("${states[@]}") || fail "$name"
    for method in kvr:p=3 kvr:p=3,partition=1/8/2; do
      got=$("${mpi[@]}" 3 "${states[@]}" --method $method) || fail "$name $method"
      [ "$got" = "$alone" ] || fail "$name $method: $got, not $alone"
    done
  done

  # Every rank chooses the same tokens, and the ranks share those.
  whole=("$program" run --model "$oracle/llama_mha" --tokens $tokens --output-len 9 --threads 1)
  for method in random-prune:keep=0.5 specprefill:keep=0.5,lookahead=3; do
    one=$("${whole[@]}" --quiet --method $method) || fail "$method: one process"
    for ranks in kvr:p=3 kvr:p=3,partition=3/2/1 tsp:p=3; do
      got=$("${mpi[@]}" 3 "${whole[@]}" --quiet --method $method+$ranks) || fail "$method+$ranks"
      [ "$got" = "$one" ] || fail "$method+$ranks: $got, expected $one"
    done
  done

  "${mpi[@]}" 2 "${profile[@]}" --method kvr:p=2,partition=8/3 >profile.json || fail "--profile"
  received=$(tr -d ' \n' <profile.json | grep -o '"operator":"receive","count":[0-9]*' | cut -d: -f3)
  [ "$received" = "$(number messages profile.json)" ] || fail "--profile: '$received' receptions"
  # 3 of 11 tokens of prefill, and all of decode.
  awk -v some="$(profile_flops profile.json)" -v all="$all_flops" \
    'BEGIN { exit !(some > 0.3 * all && some < 0.8 * all) }' ||
    fail "--profile: $(profile_flops profile.json) of $all_flops FLOPs on the second rank"

  # Table 4 of the paper: 11 tokens in parts of 5, 3, 2, 1. Keys and values of 2 or more layers;
  # what is counted is what the formulas say.
  "${mpi[@]}" 4 "${run[@]}" --method kvr:p=4,partition=5/3/2/1 --count --json >kvr.json 2>err.txt ||
    fail "kvr --json: $(cat err.txt)"
  tr -d ' \n' <kvr.json | grep -qF '"partition_tokens":[5,3,2,1]' || fail "partition: $(cat kvr.json)"
  tr -d ' \n' <kvr.json | grep -qF "\"generated_tokens\":[$plain]" || fail "tokens: $(cat kvr.json)"
  [ "$(number counted_flops kvr.json)" = "$(number analytic_flops kvr.json)" ] || fail "FLOPs"
  [ "$(number counted_bytes kvr.json)" = "$(number analytic_bytes kvr.json)" ] || fail "bytes"
  [ "$(grep -c compute_s kvr.json)" -eq 4 ] || fail "ranks: $(cat kvr.json)"
  "$program" model show "$oracle/gemma2" --json --dtype fp32 >model.json 2>/dev/null ||
    "$program" model show "$oracle/gemma2" --json >model.json
  per_token=$(number kv_cache_bytes_per_token model.json)
  # 5 + 8 + 10 tokens of the layer without a window, 5 + 7 + 7 of the two whose next token sees 7
  # more, at twice the bytes of the checkpoint's fp16 when it says fp16.
  sent=$(number message_bytes kvr.json)
  [ "$((3 * sent))" -eq $((61 * per_token)) ] || [ "$((3 * sent))" -eq $((122 * per_token)) ] ||
    fail "$sent bytes sent, expected 61 or 122 thirds of $per_token"

  # All logits, put together from the ranks, are those of one process but for rounding.
  "${run[@]}" --quiet --logits one.safetensors >/dev/null || fail "--logits"
  "${mpi[@]}" 2 "${run[@]}" --quiet --method kvr:p=2 --logits two.safetensors >/dev/null ||
    fail "--logits on 2 ranks"
  numbers() { od -An -v -w4 -t f4 -j $((8 + $(od -An -t u8 -N 8 "$1"))) "$1"; }
  paste <(numbers one.safetensors) <(numbers two.safetensors) | awk '
    BEGIN { far = 0 } { d = $1 - $2; if (d < 0) d = -d; if (d > far || d != d) far = d; if ($1 > top) top = $1 }
    END { print NR, far, top; exit !(NR == 11 * 71 && far == far && far < 1e-5 * top) }' >far.txt ||
    fail "--logits on 2 ranks: rows, difference, largest: $(cat far.txt)"

  # One meaning of a method: the parts of a run are those of an estimate.
  parts() { tr -d ' \n' <"$1" | grep -o '"partition_tokens":\[[0-9,]*\]'; }
  for method in kvr:p=2 kvr:p=2,partition=search kvr:p=2,partition=300/212; do
    on=(--prompt-len 512 --dtype fp32 --method $method --json --quiet --hardware a100-80gb)
    "$program" estimate --model pythia-70m "${on[@]}" >estimate.json || fail "estimate $method"
    [ $method = kvr:p=2,partition=search ] || unset 'on[-1]' 'on[-1]'
    "${mpi[@]}" 2 "$program" run --model pythia-70m --random-weights 1 --threads 1 --output-len 1 \
      "${on[@]}" >run.json || fail "run $method"
    [ -n "$(parts run.json)" ] && [ "$(parts run.json)" = "$(parts estimate.json)" ] ||
      fail "$method: run $(parts run.json), estimate $(parts estimate.json)"
  done

  # Processes give what threads give, to the byte sent.
  "${mpi[@]}" 3 "${spread[@]}" --tp 3 --count --json >processes.json 2>err.txt ||
    fail "--tp 3 on ranks: $(cat err.txt)"
  spread_facts processes.json 3
  [ "$(number message_bytes processes.json)" = "$(number message_bytes threads.json)" ] ||
    fail "--tp 3: bytes sent by processes and by threads"
  two_gpt2=("$program" run --model "$oracle/gpt2" --tokens "$tokens;15,3,9,4,8,2,7,11,6,5,10"
    --output-len 9 --threads 1 --quiet)
  both=$("${two_gpt2[@]}") || fail "two prompts of gpt2"
  got=$("${mpi[@]}" 2 "${two_gpt2[@]}" --dp 2) || fail "--dp 2"
  [ "$got" = "$both" ] || fail "--dp 2: $got, expected $both"
  refused 2 "tp 3: got 2 processes of mpirun, expected 3 of them" "${mpi[@]}" 2 "${spread[@]}" --tp 3
  refused 2 "expected kvr:p=2 or tsp:p=2, or --tp 2" "${mpi[@]}" 2 "${run[@]}"
  refused 2 "got 2 processes of mpirun, expected 3" "${mpi[@]}" 2 "${run[@]}" --method kvr:p=3
  refused 2 "expected 12, the sum of 5/7" "${mpi[@]}" 2 "${run[@]}" \
    --method kvr:p=2,partition=5/7
  refused 2 "at least one token per rank" "${mpi[@]}" 2 "$program" run \
    --model "$oracle/gemma2" --tokens 5 --method tsp:p=2
  refused 2 "a decoder-only model" "${mpi[@]}" 2 "$program" run --model "$oracle/t5" \
    --encoder-tokens 1,2 --tokens 0 --method tsp:p=2
  refused 2 "expected a checkpoint" "${mpi[@]}" 2 "$program" run --model missing --tokens 5,6 \
    --method tsp:p=2
  refused 1 "No space left" "${mpi[@]}" 2 "${run[@]}" --quiet --json --method kvr:p=2 \
    --logits /dev/full

  # Training on three ranks: the losses of one process but for rounding, one checkpoint, resumed.
  printf '\1\2\3\4\5\6\7\10\11\12\13%.0s' $(seq 200) >text.txt
  train=("$program" train --quiet --model "$oracle/llama_mha" --tokenizer bytes --text text.txt
    --seq-len 16 --learning-rate 1e-2 --threads 1)
  "${train[@]}" --batch 5 --steps 6 --save-every 3 --output alone >/dev/null || fail "train"
  "${mpi[@]}" 3 "${train[@]}" --batch 5 --steps 6 --save-every 3 --output ranks >/dev/null || fail "train on ranks"
  paste -d, alone/metrics.csv ranks/metrics.csv | awk -F, '
    NR > 1 { d = $2 / $8 - 1; if (d < 0) d = -d; if (!(d < 1e-4)) exit 1 }
    END { if (NR != 7) exit 1 }' || fail "losses on ranks: $(cat alone/metrics.csv ranks/metrics.csv)"
  cp -r ranks again && rm -r again/checkpoint-000006
  "${mpi[@]}" 3 "${train[@]}" --batch 5 --steps 6 --save-every 3 --output again --resume >/dev/null ||
    fail "train --resume on ranks"
  cmp ranks/checkpoint-000006/model.safetensors again/checkpoint-000006/model.safetensors ||
    fail "training resumed on ranks"
  refused 2 "at least a sequence for each of 2 ranks" "${mpi[@]}" 2 "${train[@]}" --batch 1 --output new
  refused 2 "each with a part of the work" "${mpi[@]}" 2 "${train[@]}" --batch 4 --count --output new
  refused 1 "step 1: the gradient of " "${mpi[@]}" 2 "${train[@]}" --batch 4 --z-loss 1e35 --output new
  refused 2 "a folder with checkpoints" "${mpi[@]}" 2 "${train[@]}" --batch 4 --output ranks

  # Ctrl-C in a step of seconds, of which mpirun leaves one: the step before is saved.
  "${mpi[@]}" 2 "$program" train --model "$oracle/llama_mha" --tokenizer bytes --text text.txt --seq-len 64 \
    --threads 1 --batch 4096 --micro-batches 64 --steps 1000 --save-every 1 --output stopped >out.txt 2>err.txt &
  job=$!
  for ((i = 0; i < 1200; ++i)); do [ -d stopped/checkpoint-000001 ] && break || sleep 0.1; done
  kill -INT $job
  wait $job
  grep -q "stopped after step [1-9]" err.txt || fail "training stopped in a step: $(cat err.txt)"

  # Rank 1 sees another model, then another prompt, then nothing: its prompt never comes.
  cat >differs.sh <<END
[ "\$OMPI_COMM_WORLD_RANK" = 1 ] && x=1 || x=0
models=("$oracle/llama_mha" "$oracle/llama_biases")
echo '[1, 2, 3, 4]' >p0.json
case \$1 in
  model) exec "$program" run --model "\${models[\$x]}" --tokens 1,2,3 --method kvr:p=2 ;;
  file) exec "$program" run --model model\$x --tokens 1,2,3 --method kvr:p=2 ;;
  version) [ \$x = 1 ] && exec ./other_version run --model model0 --tokens 1,2,3 --method kvr:p=2
    exec "$program" run --model model0 --tokens 1,2,3 --method kvr:p=2 ;;
  seed) exec "$program" run --model pythia-70m --random-weights 3\$x --tokens 1,2,3 \\
    --method kvr:p=2 ;;
  count) [ \$x = 1 ] && more=--count
    exec "$program" run --model "\${models[0]}" --tokens 1,2,3 --method kvr:p=2 \$more ;;
  missing) [ \$x = 1 ] && exec sleep 60
    exec "$program" run --model "\${models[0]}" --tokens 1,2,3 --method kvr:p=2 --wait-limit 2 ;;
  prompt) exec "$program" run --model "\${models[0]}" --tokens 1,2,\$x --method kvr:p=2 ;;
  stall) exec "$program" run --model "\${models[0]}" --prompt-file p\$x.json --method kvr:p=2 \\
    --wait-limit 2 ;;
esac
END
  refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh model
  refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh prompt
  # One weight of rank 1's file differs in a bit; then the program has another version number.
  cp -r "$oracle/llama_mha" model0 && cp -r "$oracle/llama_mha" model1
  weights=model1/model.safetensors
  byte=$(tail -c 1 $weights | od -An -t u1)
  printf "$(printf '\\%o' $((byte ^ 1)))" |
    dd of=$weights bs=1 seek=$(($(stat -c %s $weights) - 1)) conv=notrunc status=none
  cmp -s $weights model0/model.safetensors && fail "the changed weight"
  refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh file
  version=$("$program" --version | grep -o '[0-9]*\.[0-9]*\.[0-9]*' | head -1)
  LC_ALL=C sed "s/${version//./\\.}/${version%?}x/g" "$program" >other_version
  chmod +x other_version
  if KVCAST_DATA=$3/data ./other_version --version >/dev/null 2>&1; then
    refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh version
  else
    fail "the changed program does not run"
  fi
  refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh seed
  refused 2 "rank 1 has another kvcast, model or request" "${mpi[@]}" 2 bash differs.sh count
  refused 1 "MPI did not start within 2 s" "${mpi[@]}" 2 bash differs.sh missing
  mkfifo p1.json
  refused 1 "no message from rank 1 within 2 s" "${mpi[@]}" 2 bash differs.sh stall

  # Only that it is measured: this machine may be as noisy as it likes.
  timeout 300 "${mpi[@]}" 2 "$program" calibrate --quick --rounds 1 --threads 1 --force --output two.json >out.txt 2>err.txt ||
    fail "calibrate on 2 ranks: $(cat err.txt)"
  grep -q '"mpi"' two.json && grep -q '"ranks": 2' two.json || fail "calibrate on 2 ranks: no link"
  grep -q '"lockstep"' two.json || fail "calibrate on 2 ranks: not how they keep up"
  [ "$(grep -c 'messages of 8 MiB' out.txt)" -eq 1 ] || fail "calibrate on 2 ranks: $(cat out.txt)"
  "$program" --data "$oracle/../../data" hardware show two.json | grep -q mpi ||
    fail "calibrate on 2 ranks: its file does not show its link"
  refused 2 "folder" "${mpi[@]}" 2 "$program" calibrate --quick --output nowhere/two.json
  # A rank that is killed in the middle of its prefill, which counting makes minutes long: mpirun
  # says which one in its one message, and nobody is left.
  cat >long.sh <<END
echo \$\$ >pid\$OMPI_COMM_WORLD_RANK
exec "$program" run --model pythia-70m --random-weights 1 --prompt-len 2000 --threads 1 --count \
  --wait-limit 300 --method \$1
END
  # Loading takes a third of a second of the processor's time; after one, ranks are in the prefill.
  in_prefill() { [ -d "/proc/$(cat "$1")" ] && [ "$(cut -d' ' -f14 "/proc/$(cat "$1")/stat")" -ge "$(getconf CLK_TCK)" ]; }
  for method in kvr:p=2 tsp:p=2; do
    for victim in 0 1; do
      rm -f pid0 pid1
      timeout 100 "${mpi[@]}" 2 bash long.sh $method >out.txt 2>err.txt &
      job=$!
      for ((i = 0; i < 300; ++i)); do [ -s pid0 ] && [ -s pid1 ] && break || sleep 0.1; done
      for ((i = 0; i < 600; ++i)); do in_prefill pid0 && in_prefill pid1 && break || sleep 0.1; done
      [ $i -lt 600 ] || fail "$method: no second of work in a minute"
      kill -0 "$(cat pid0)" && kill -0 "$(cat pid1)" || fail "$method ended before it was killed"
      start=$SECONDS
      kill -KILL "$(cat pid$victim)"
      wait $job
      status=$?
      name="$method, rank $victim killed"
      [ $status -ne 0 ] && [ $status -ne 124 ] || fail "$name: exit status $status"
      [ $((SECONDS - start)) -le 30 ] || fail "$name: ended after $((SECONDS - start)) s"
      [ "$(grep -c "exited on signal 9" err.txt)" -eq 1 ] || fail "$name: $(cat err.txt)"
      grep "exited on signal 9" err.txt | grep -q "rank $victim " || fail "$name: $(cat err.txt)"
      [ "$(grep -c '^kvcast:' err.txt)" -eq 0 ] || fail "$name: more than one error: $(cat err.txt)"
      [ ! -s out.txt ] || fail "$name: wrote to stdout: $(cat out.txt)"
      for rank in 0 1; do
        state=$(cut -d' ' -f3 "/proc/$(cat pid$rank)/stat" 2>/dev/null)
        [ -z "$state" ] || [ "$state" = Z ] || fail "$name: rank $rank still runs"
      done
    done
  done
  # One that is killed in a training: the others end, and what was saved is whole.
  cat >dying.sh <<END
echo \$\$ >pid\$OMPI_COMM_WORLD_RANK
exec "$program" train --quiet --model "$oracle/llama_mha" --tokenizer bytes --text text.txt \\
  --seq-len 16 --threads 1 --batch 4 --steps 1000000 --save-every 20 --output dying
END
  rm -f pid0 pid1
  timeout 100 "${mpi[@]}" 2 bash dying.sh >out.txt 2>err.txt &
  job=$!
  for ((i = 0; i < 600; ++i)); do [ -d dying/checkpoint-000020 ] && break || sleep 0.1; done
  kill -0 "$(cat pid1)" && [ $i -lt 600 ] || fail "training ended before it was killed: $(cat err.txt)"
  kill -KILL "$(cat pid1)"
  wait $job
  status=$?
  [ $status -ne 0 ] && [ $status -ne 124 ] || fail "training, rank 1 killed: exit status $status"
  grep "exited on signal 9" err.txt | grep -q "rank 1 " || fail "training, rank 1 killed: $(cat err.txt)"
  state=$(cut -d' ' -f3 "/proc/$(cat pid0)/stat" 2>/dev/null)
  [ -z "$state" ] || [ "$state" = Z ] || fail "training, rank 1 killed: rank 0 still runs"
  "$program" run --quiet --model "$(ls -d dying/checkpoint-?????? | tail -1)" --tokens 1,2,3 >/dev/null 2>err.txt ||
    fail "training, rank 1 killed: the last checkpoint: $(cat err.txt)"
fi

[ $failures -eq 0 ] && echo "all checks of runs on ranks passed"
exit $((failures > 0))
