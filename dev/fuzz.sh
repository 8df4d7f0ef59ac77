#!/bin/bash
# A libFuzzer run for each parser of files, under AddressSanitizer and UBSan. Corpora stay in
# build/fuzz.
# Usage: fuzz.sh [TARGET...]   FUZZ_SECONDS=60 for each
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL    # make's own -j would leave one job to the one that is started here
cd "$(dirname "$0")/.." || exit 1
targets=("$@")
[ $# -gt 0 ] || for t in test/fuzz_*.cpp; do t=${t#test/fuzz_}; targets+=("${t%.cpp}"); done
out=build/fuzz
mkdir -p $out

check=$out/check.cpp
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >$check
works() { clang++ -fsanitize=fuzzer,address,undefined $check -o $out/check 2>/dev/null; }
runtime=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -1)
works || dev/deps.sh quiet clang ${runtime:+"$runtime"}
if ! works; then
    echo "fuzz: no clang++ with libFuzzer here"
    echo "0 passed, 0 failed, ${#targets[@]} skipped"
    exit 0
fi

flags="-std=c++20 -O1 -g1 -I. -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
# What reads files is instrumented; g++ has built all that it calls beside, as for the product.
parsers=$(ls files/*.cpp files/*/*.cpp data/*.cpp data/*/*.cpp checkpoint/{json,config*,generation*,gguf*,tensor_check}.cpp \
    model/config*.cpp infer/model_defaults.cpp infer/chat/{messages,chat_encoder}.cpp infer/jinja/*.cpp \
    infer/sampling/{grammar*,json_schema*}.cpp train/{conversations,pairs}.cpp train/reward/prompts.cpp)
objects=($(printf "$out/%s.o\n" $parsers))
entries=("${targets[@]/#/$out/test/fuzz_}")
{ make NVCC= build/product.a && make BUILD=$out NVCC= CXX=clang++ \
    FLAGS="$flags -fsanitize=fuzzer-no-link -MMD -MP" "${objects[@]}" "${entries[@]/%/.cpp.o}"; } >$out/log 2>&1 ||
    { tail -30 $out/log; exit 1; }

# One valid sample of each format to begin with.
seed() { mkdir -p "$out/$1" && cp "$2" "$out/$1/seed_$3"; }
shard() { printf '\x10\x04\x00\x00\x00\x00\x00\x00'"$1" && head -c 1028 /dev/zero; }    # of 1024 + 16 bytes
seed sentencepiece test/golden/tokenizers/prefixed.model 1
seed sentencepiece test/golden/tokenizers/symbols.model 2
seed sentencepiece test/golden/pieces/unigram.model 3
for t in bert t5 albert bytes; do { printf '\xFF' && cat test/golden/pieces/$t.json; } >$out/sample && seed tokenizer $out/sample $t; done
seed safetensors test/golden/tiny.safetensors 1
seed safetensors test/golden/hf_tiny/model.safetensors 2
seed gguf test/golden/gguf/formats.gguf 1
for t in gguf_config gguf_tokenizer; do seed $t test/golden/gguf/tiny_llama.gguf 1 && seed $t test/golden/gguf/tiny_olmo2.gguf 2; done
LC_ALL=C sed 's/\x04\(\x00\{7\}\)gpt2/\x06\1gemma4/' test/golden/gguf/tiny_olmo2.gguf >$out/sample && seed gguf_tokenizer $out/sample 3
seed config test/golden/hf_tiny/config.json 1
seed config test/golden/checkpoint_1/config.json 2
for file in test/golden/families/*/config.json; do seed config "$file" "$(basename "$(dirname "$file")")"; done
printf '[{"role": "user", "content": "a"}]' >$out/sample && seed chat $out/sample 1
printf '{"do_sample": true, "temperature": 0.5, "eos_token_id": [1, 2], "stop_strings": ["a"]}' >$out/sample && seed chat $out/sample 2
line() { printf %s "$1" >$out/sample && seed conversation $out/sample $((++lines)); }
lines=0
line '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<|im_end|>"}]}'
line '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "<|im"}]}, {"role": "assistant", "content": [{"type": "text", "text": " b"}]}]}'
line '{"tools": [{"name": "f"}], "messages": [{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "4", "name": "f"}]}'
line '{"prompt": "q", "completion": "a", "chosen": "b", "rejected": "c", "answer": 4}'
line '{"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}], "answer": "x"}'
line '{"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}'
line '{"source": "reverse a b", "target": "b a"}'
printf '{"text": "a b", "pair": "c", "label": "yes"}\n{"text": "d", "label": 1}\n' >$out/sample && seed labels $out/sample 1
printf '{"text": ["a", "b"], "labels": ["O", "X"]}\n' >$out/sample && seed labels $out/sample 2
printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nc' >$out/sample && seed vocab_txt $out/sample 1
seed state test/golden/checkpoint_1/state.json 1
printf 'root ::= "a" x* # b\nx ::= [^a-c\\n]{1,3} | (. "\\u00e9")? | root' >$out/sample && seed grammar $out/sample 1
printf '{"type": "object", "properties": {"a": {"enum": [1, "b"]}, "c": {"items": {"$ref": "#"}, "maxItems": 3}}, "required": ["a"]}' >$out/sample && seed grammar $out/sample 2
for t in test/golden/templates/*.jinja; do seed template "$t" "$(basename "$t")"; done
# The small templates, one a file, and loops that put values into values: chains are what
# destructors recurse over.
i=0; while IFS= read -r t; do printf %s "$t" >$out/sample && seed template $out/sample $((++i)); done < <(
    sed -n 's/^\["\(.*\)", \(".*"\|null\)\],\?$/\1/p' test/golden/templates/snippets.json
    for v in '[ns.l]' '[ns.l].index' '{1: ns.l}.get' 'namespace(l=ns.l)' 'loop' '(ns.l, ns.l)' '[ns.l]|map("list")'; do
        echo "{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = $v %}{% endfor %}{{ ns.l }}"
    done)
shard '\x88\xd8\x34\x01\x01\x00\x00\x00\x08\x00\x00\x00' >$out/sample && seed shard $out/sample 1
printf 'some text\n' | gzip >$out/sample && seed text $out/sample 1
printf '\x28\xb5\x2f\xfd\x04\x58\x59\x00\x00\x73\x6f\x6d\x65\x20\x74\x65\x78\x74\x2c\x20\x55\xc7\xee\xda' >$out/sample && seed text $out/sample 2
printf '\xff\xfea\x00b\x00' >$out/sample && seed text $out/sample 3
shard '\xa1\xd9\x34\x01\x07\x00\x00\x00\x04\x00\x00\x00' >$out/sample && seed shard $out/sample 2
# The last byte of a document chooses its format and field.
for choice in 0 2 8; do printf '{"text": "a \\u00e9", "a": {"b": "c"}}\n\n{"text": "", "a": {"b": null}}\n'$choice >$out/sample && seed documents $out/sample lines_$choice; done
for choice in 0 3 9; do printf '[{"text": "a", "a": {"b": "c"}},\n "d", {"x": [1, {"y": "]"}], "text": "e"}]'$choice >$out/sample && seed documents $out/sample values_$choice; done
for choice in 4 :; do printf 'id,text,a.b\r\n1,"a, ""b""\nc",d\r\n2,e,\r\n'$choice >$out/sample && seed documents $out/sample csv_$choice; done
printf 'id\ttext\ta.b\n1\ta\tb\n5' >$out/sample && seed documents $out/sample tsv
printf 'some\ntext\n7' >$out/sample && seed documents $out/sample text
for file in test/golden/parquet/*.parquet; do seed parquet "$file" "$(basename "$file")"; done

try() {    # target: prints the verdict
    local artifact=$out/$1-
    if clang++ $flags -fsanitize=fuzzer $out/test/fuzz_"$1".cpp.o "${objects[@]}" build/product.a -lpcre2-8 -lutf8proc -lz -lzstd \
            -lpthread -o $out/fuzz_"$1" >$out/"$1".log 2>&1 &&
        $out/fuzz_"$1" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
            -print_final_stats=1 -artifact_prefix="$artifact" $out/"$1" >$out/"$1".log 2>&1; then
        echo "passed  $1: $(sed -n 's/stat::number_of_executed_units: *//p' $out/"$1".log) inputs"
    else
        echo "FAILED  $1: $out/$1.log"
        tail -30 $out/"$1".log
    fi
}
for t in "${targets[@]}"; do    # as many at a time as there are cores
    mkdir -p $out/"$t"
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    try "$t" | tee $out/verdict_"$t" &
done
wait
passed=$(cat "${targets[@]/#/$out/verdict_}" | grep -c ^passed)
echo "$passed passed, $((${#targets[@]} - passed)) failed, 0 skipped"
[ "$passed" = ${#targets[@]} ]
