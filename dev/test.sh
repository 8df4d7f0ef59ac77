#!/bin/bash
# `make test`: runs the test binaries and closes with the sum of their closing lines.
# Usage: dev/test.sh BINARY... [-- ARGUMENTS OF EACH]. Emulated ones, which keep one core busy, run
# beside the others, as an sm_90 and, as far as they differ, an sm_80; what they print comes last. A
# case that never ends fails by itself (test/limit.h). FLATGPT_TEST_TOTAL, seconds, is for what
# hangs outside of cases.
total=${FLATGPT_TEST_TOTAL:-3600}
binaries=() beside=() passed=0 failed=0 skipped=0 logs=$(mktemp -d)
end() {    # what still runs was to be ended: its output may say why
    local running
    running=$(jobs -pr)
    [ -z "$running" ] || { kill $running; tail -n 50 "$logs"/[0-9]*; }
    rm -rf "$logs"
}
trap end EXIT
while [ $# -gt 0 ] && [ "$1" != -- ]; do binaries+=("$1"); shift; done
shift
start() {
    printf '\n---- %s\n' "$*"
    exec timeout --foreground -k 30 "$total" "$@" 2>&1
}
count() {    # what was printed, its exit status
    local status=$2 p=0 f=0 s=0 line
    case $status in 124 | 137) printf 'FAILED  %s: killed, or over its limit of %s s (FLATGPT_TEST_TOTAL)\n' \
        "$(sed -n 's/^---- //p;2q' "$1")" "$total" ;; esac
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -1)
    [ -z "$line" ] || read -r p f s <<<"$(tr -cd '0-9 ' <<<"$line")"
    [ "$status" = 0 ] || [ "$f" != 0 ] || f=1    # died without counting it
    [ -n "$line" ] || f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
run() {
    (start "$@") | tee "$logs/now"
    count "$logs/now" "${PIPESTATUS[0]}"
}
run_beside() {
    start "$@" >"$logs/${#beside[@]}" &
    beside+=($!)
}
for binary in "${binaries[@]}"; do
    [[ $binary == */emu/* ]] || continue
    run_beside env EMU_CC=90 "$binary" "$@"
    [ $# -gt 0 ] || run_beside env EMU_CC=80 "$binary" -tc='model*,attention:*,attention cached*,cuda attention*'
done
for binary in "${binaries[@]}"; do
    case $binary in
        */emu/*) ;;
        */test_all) run env CUDA_VISIBLE_DEVICES= "$binary" "$@" ;;    # the CPU's tests, wherever it runs
        *) run "$binary" "$@" ;;
    esac
done
for i in "${!beside[@]}"; do
    wait "${beside[i]}"
    status=$?
    cat "$logs/$i"
    count "$logs/$i" $status
done
[ -e /dev/nvidia0 ] || printf '\nno GPU here: the CUDA backend was tested on the emulator\n'
printf '\n%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ]
