#!/bin/bash
# Breaks the maths on purpose, one line at a time, and demands that a test notices. Called by
# `make mutants`.
# Usage: mutants.sh [PATTERN | K/N]: only the rows that this regular expression matches; or each
# N-th, from the K-th on.
# A row of mutants.txt: file ;; function ;; change (dev/mutate.py explains
# both) ;; test cases that must fail; and where only some CPUs run this line, ;; their flag in
# /proc/cpuinfo. Kernels (layers/*.cu) are tested on the emulator.
#
# Each worker has a tree of its own. The layers' loops are first compiled and tested for this CPU's
# best instruction set alone; only a mutant that survives this is compiled for the others, too.
# Afterwards the objects from before are put back.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL    # make's own -j would leave one job to those that are started here
export EMU_CC=90    # all kernels
export WARN=-w    # a mutant may leave a variable unused
export EXTRA="-g0 -Wl,-s$(command -v ld.lld >/dev/null && echo " -fuse-ld=lld")"    # shorter linking: no symbols, and lld
export FLATGPT_TEST_LIMIT=${FLATGPT_TEST_LIMIT:-120}    # one that never ends is caught by name after that
cd "$(dirname "$0")/.."
rows=$(cat dev/mutants.txt) pattern=${1:-}
if [[ $pattern =~ ^([0-9]+)/([1-9][0-9]*)$ ]]; then
    rows=$(awk -v k="${BASH_REMATCH[1]}" -v n="${BASH_REMATCH[2]}" 'NR % n == k % n' dev/mutants.txt) pattern=
fi
all=build/mutants cores=$(nproc)
workers=$((cores < 4 ? cores : 4))
jobs=$(((cores + workers - 1) / workers))
[ $jobs -gt 1 ] || export OMP_NUM_THREADS=2    # two threads in each worker: wrong sharing shows
cpu() { grep -qw "$1" /proc/cpuinfo; }
best=base
cpu avx2 && best=avx2
cpu avx512bw && best=avx512
cpu avx512_bf16 && best=avx512bf16

# All files but the layers' are compiled with -O1, which takes less time.
compile() {    # tree, arguments of make
    make -C "$1" -j$jobs NVCC= TOTAL=0 LONG_LOOPS=layers/% "${@:2}" >"$1/build/log" 2>&1
}
remove_binaries() {    # tree: so that make links again
    (cd "$1/build" && rm -f flatgpt test_all test_ranks emu/flatgpt emu/launches emu/test_cuda emu/ladder_*)
}
passes() {    # tree, binary, test cases; the first failure ends it
    (cd "$1" && timeout -k 10 "${all_limit:-900}" "$2" -tc="$3" -aa=1 >build/log 2>&1)
    tests_status=$?
    return $tests_status
}
# A mutant that writes beside its buffers can break malloc. The test binary then ends by a signal
# (status 128 + its number), and may not even name the case. A binary that cannot start ends without
# one, and 137 is SIGKILL: the time limit, or no memory.
crashed() { [ "$tests_status" -gt 128 ] && [ "$tests_status" != 137 ]; }
passes_best() {    # of the layers' tests, those of the best instruction set
    FLATGPT_ISA=$best passes "$@"
}
binary_of() {    # file, test cases
    case $2 in
        "model on cuda"* | "cuda choice"* | emulator:*) echo build/emu/test_cuda && return ;;
    esac
    case $1 in
        train_gpt.cu) echo build/test_all ;;    # no kernels
        dev/*.cu) echo build/test_all ;;    # runs ladders
        *.cu | *.cuh | layers/scratch.h | layers/attention/row_order.h | test/cuda_on_cpu/*) echo build/emu/test_cuda ;;
        *) echo build/test_all ;;
    esac
}
split() {    # row: sets file, change (with its function), cases, flag
    local function
    IFS=$'\x1f' read -r file function change cases flag <<<"${1// ;; /$'\x1f'}"
    change="$function: $change"
}
can_run() {    # file, flag: is it compiled, and can its tests run?
    [ -z "$2" ] || cpu "$2" || return
    case $1 in
        comm/mpi.cpp) command -v mpirun >/dev/null ;;
    esac
}
goals_of() {    # binary, file, test cases
    [ "$1" != build/test_all ] || echo flatgpt
    case $3 in    # whose tests run another binary
        *"cuda command line"*) echo build/emu/flatgpt ;;
        *"gpu time"*) echo build/emu/launches ;;
    esac
    [ "$2" != comm/mpi.cpp ] || echo build/test_ranks
    [[ $2 != dev/*.cu ]] || echo "build/emu/ladder_$(basename "$2" .cu)"
    echo "$1"
}

try() {    # tree, row: prints the verdict
    local tree=$1 file change cases flag binary goals later=() object tests_status=0
    split "$2"
    binary=$(binary_of "$file" "$cases")
    mapfile -t goals < <(goals_of "$binary" "$file" "$cases")
    while IFS= read -r object; do later+=(-o "$object"); done < <(cd "$tree" && find build/layers -name '*.base.o' \
        -o -name '*.avx2.o' -o -name '*.avx512.o' -o -name '*.avx512bf16.o' | grep -v "\.$best\.o$")
    cp -p "$tree/$file" "$tree/build/original"
    touch "$tree/build/began"
    if ! "$tree/dev/mutate.py" apply "$2" >"$tree/build/mutant" || ! cp "$tree/build/mutant" "$tree/$file"; then
        echo "FAILED   $file: the mutant cannot be made: $change"
    elif ! compile "$tree" "${later[@]}" "${goals[@]}"; then echo "FAILED   $file: the mutant does not compile: $change"
    elif passes_best "$tree" "$binary" "$cases" && compile "$tree" "${goals[@]}" && passes "$tree" "$binary" "$cases"; then
        echo "SURVIVED $file: $change"
    elif grep -q FAILED "$tree/build/log" || crashed; then echo "caught   $file: $change"
    else echo "FAILED   $file: the tests did not run: $(tail -1 "$tree/build/log")"
    fi
    cp -p "$tree/build/original" "$tree/$file"
    remove_binaries "$tree"
    (cd "$tree/build" &&
        find . -type f \( -name '*.o' -o -name '*.d' \) -newer began -print0 |
            (cd ../../before && xargs -0r cp -p --parents -t "$OLDPWD"))
}

dev/mutate.py check || exit 1    # each row, whichever are tried

rm -rf $all && mkdir -p $all/0/build $all/claimed || exit 1
git ls-files -z | xargs -0 cp -a --parents -t $all/0
find build -mindepth 1 -maxdepth 1 ! -name mutants ! -name asan ! -name fuzz ! -name demo -exec cp -a {} $all/0/build/ \;
remove_binaries $all/0    # `make` may have linked them with nvcc's objects; these trees are without nvcc
compile $all/0 flatgpt build/test_all build/test_ranks build/emu/{flatgpt,launches,test_cuda,ladder_token} ||
    { tail $all/0/build/log; exit 1; }
gone=
shopt -s nocasematch
for binary in build/test_all build/emu/test_cuda; do    # every row names a test case that its binary has
    mapfile -t names < <(cd $all/0 && "$binary" -ltc)
    while IFS= read -r row; do
        split "$row"
        [ "$(binary_of "$file" "$cases")" = $binary ] || continue
        for name in "${names[@]}"; do [[ $name == $cases ]] && continue 2; done
        echo "FAILED   $file: $binary has no such test case: $cases"
        gone=1
    done <dev/mutants.txt
done
shopt -u nocasematch
[ -z "$gone" ] || exit 1
list=() clean_all= clean_cuda= skipped=0
while IFS= read -r row; do
    [[ $row =~ $pattern ]] || continue
    split "$row"
    can_run "$file" "$flag" || { echo "skipped  $file: not on this machine: $change"; skipped=$((skipped + 1)); continue; }
    list+=("$row")
    case $(binary_of "$file" "$cases") in
        build/test_all) clean_all+="${clean_all:+,}$cases" ;;
        *) clean_cuda+="${clean_cuda:+,}$cases" ;;
    esac
done <<<"$rows"
[ ${#list[@]} -gt 0 ] || [ $skipped -gt 0 ] || { echo "mutants.sh: no row matches $1" >&2; exit 2; }
unbroken() {    # binary, test cases: a test that fails without a mutant proves nothing
    local all_limit=3600
    local -x FLATGPT_TEST_LIMIT=600    # other workers keep all cores busy
    [ -z "$2" ] || { passes_best $all/0 "$1" "$2" && passes $all/0 "$1" "$2"; } ||
        echo "FAILED   before anything is broken: $(grep -a ^FAILED $all/0/build/log || tail -1 $all/0/build/log)"
}
cp -a $all/0/build $all/before
for ((w = 1; w < workers; w++)); do cp -a $all/0 $all/$w; done
{
    for ((w = 0; w < workers; w++)); do
        {
            [ $w -gt 0 ] || { unbroken build/test_all "$clean_all"; unbroken build/emu/test_cuda "$clean_cuda"; }
            for ((i = 0; i < ${#list[@]}; i++)); do
                mkdir $all/claimed/$i 2>/dev/null && try $all/$w "${list[i]}"
            done
        } &
    done
    wait
} | tee $all/verdicts
printf '\nNot caught:\n'
grep -v ^caught $all/verdicts || echo none
passed=$(grep -c ^caught $all/verdicts)
failed=$((${#list[@]} - passed + $(grep -c "^FAILED   before" $all/verdicts)))
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
