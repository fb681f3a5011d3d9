#!/usr/bin/env bash
# wrong_request_test.sh PROGRAM ARGUMENT...: the program says in one line what is wrong, with status 2.
program=$1
said=$("$@" 2>&1 >/dev/null)
status=$?
printf '%s\n' "$said"
[[ $status == 2 && $(wc -l <<<"$said") == 1 && $said == *"$(basename "$program"): "* ]]
