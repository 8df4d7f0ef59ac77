# make          the binary ./flatgpt            make demo     everything once, on a real text (TEXT=my.txt for yours)
# make test     all tests                       make bench    every operation, training steps: measured, floor, ratio
# make mutants  the tests catch wrong maths     make asan     the tests under AddressSanitizer and UBSan
# make fuzz     a minute for each file parser   make deps     the Debian packages that the above need
JOBS := $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
MAKEFLAGS += $(JOBS)
# make V=1 shows the commands.
Q := $(if $(V),,@)
BUILD ?= build
OPT ?= -O3
# GCC 12 sees -Wrestrict in its own std::string. CI adds -Werror.
WARN ?= -Wall -Wextra -Wno-restrict
# No -ffast-math: compilers then delete NaN checks. Contraction to FMA is what the vector loops want.
FLAGS = -std=c++20 $(OPT) -g1 $(WARN) -ffp-contract=fast -fno-math-errno -fopenmp -MMD -MP -I. $(EXTRA)
LIBS = -fopenmp -lpcre2-8 $(if $(DNNL),-ldnnl) -lpthread

# Missing libraries are installed before the first compilation; oneDNN alone may stay missing (plain loops then).
DEPS := $(shell dev/deps.sh $(if $(filter deps,$(MAKECMDGOALS)),,quiet) >&2 || echo failed)
DNNL := $(wildcard /usr/include/dnnl.hpp /usr/include/oneapi/dnnl/dnnl.hpp)
ifeq ($(DEPS),failed)
$(error libraries are missing: see above)
endif

# The loops of layers/ are compiled once for each instruction set and chosen at run time; the base objects are linked
# first, so that an inline function which several objects hold is the one that every CPU can run.
LOOPS := embedding norm matmul attention ffn lm_head adamw table
ISAS := $(if $(filter x86_64,$(shell uname -m)),base avx2 avx512,base)
MARCH_base :=
MARCH_avx2 := -march=x86-64-v3
MARCH_avx512 := -march=x86-64-v4 -mprefer-vector-width=512

SRC := $(filter-out main.cpp,$(wildcard *.cpp)) $(wildcard *.cu) $(wildcard data/*.cpp) \
       layers/reference.cpp layers/cpu.cpp layers/linear.cpp
OBJ := $(SRC:%=$(BUILD)/%.o) $(BUILD)/data/gpt2_merges.o \
       $(foreach i,$(ISAS),$(LOOPS:%=$(BUILD)/layers/%.$i.o))
TEST_OBJ := $(patsubst %,$(BUILD)/%.o,$(wildcard test/test_*.cpp) test/main.cpp)

flatgpt: $(BUILD)/flatgpt
	@ln -sf $< $@
$(BUILD)/flatgpt: $(BUILD)/main.cpp.o $(OBJ)
	@echo "  link $@"
	$(Q)$(CXX) $(FLAGS) $^ $(LIBS) -o $@
$(BUILD)/test_all: $(TEST_OBJ) $(OBJ)
	@echo "  link $@"
	$(Q)$(CXX) $(FLAGS) $^ $(LIBS) -o $@
$(BUILD)/bench: $(BUILD)/dev/bench.cpp.o $(OBJ)
	@echo "  link $@"
	$(Q)$(CXX) $(FLAGS) $^ $(LIBS) -o $@

VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(BUILD)/main.cpp.o: EXTRA += -DVERSION='"$(VERSION)"'
$(BUILD)/layers/linear.cpp.o: EXTRA += $(if $(DNNL),-DHAVE_DNNL)
$(BUILD)/%.cpp.o: %.cpp
	@mkdir -p $(@D)
	@echo "  c++  $<"
	$(Q)$(CXX) $(FLAGS) -c $< -o $@
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  c++  $<"
	$(Q)$(CXX) $(FLAGS) -x c++ -c $< -o $@
define isa
$(BUILD)/%.$1.o: %.cpp
	@mkdir -p $$(@D)
	@echo "  c++  $$< ($1)"
	$$(Q)$$(CXX) $$(FLAGS) $$(MARCH_$1) -DISA=$1 -c $$< -o $$@
	@! nm -C $$@ | grep ' W ' || { echo "$$@: inline functions that every CPU could be given"; rm $$@; false; } >&2
endef
$(foreach i,$(ISAS),$(eval $(call isa,$i)))
# 50,000 pairs of uint16: the one table that is data, not code.
$(BUILD)/data/gpt2_merges.o: data/gpt2_merges.bin
	@mkdir -p $(@D)
	$(Q)printf '%s\n' '.section .rodata' '.global gpt2_merges' '.balign 4' 'gpt2_merges: .incbin "$<"' \
	    '.section .note.GNU-stack,"",%progbits' | $(CXX) -x assembler -c - -o $@

test: flatgpt $(BUILD)/test_all
	$(BUILD)/test_all $(ARGS)
test-long: flatgpt $(BUILD)/test_all
	FLATGPT_TEST_LONG=1 $(BUILD)/test_all $(ARGS)
bench: $(BUILD)/bench
	$(BUILD)/bench $(ARGS)
demo: flatgpt
	dev/demo.sh $(if $(TEXT),'$(TEXT)')
mutants: flatgpt $(BUILD)/test_all
	dev/mutants.sh
asan:
	$(MAKE) BUILD=build/asan build/asan/flatgpt build/asan/test_all \
	    OPT="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
	FLATGPT=build/asan/flatgpt build/asan/test_all $(ARGS)
fuzz:
	dev/fuzz.sh
deps: ;
clean:
	rm -rf build flatgpt
.PHONY: test test-long bench demo mutants asan fuzz deps clean flatgpt

-include $(shell [ -d $(BUILD) ] && find $(BUILD) -name '*.d')
