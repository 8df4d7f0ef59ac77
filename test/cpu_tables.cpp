// cpu_tables.cpp - the operation tables that test_all tests: one for each instruction set of this
// CPU (or only FLATGPT_ISA's), and those that multiply by AMX tiles or by their emulation.
#include "layers/cpu.h"

#include <cstring>

#include "test/ops/ops.h"

namespace {
const int THREADS[] = {0, 1, 1, 2, 3};    // 0: one per core; 1 twice: repeatable
const char* const NAMES[] = {"base", "avx2", "avx512", "avx512bf16"};

bool wanted(Isa isa) {
    (void)cpu_chosen();    // aborts if FLATGPT_ISA names none
    const char* only = getenv("FLATGPT_ISA");
    return cpu_supports(isa) && (!only || !*only || !strcmp(only, NAMES[int(isa)]));
}
template <class P> void add(std::vector<TestTable>& tables) {
    for (int i = 0; i < ISA_COUNT; i++)
        if (wanted(Isa(i))) tables.push_back({&cpu_ops_isa<P>(Isa(i)), DTYPE<P>});
    for (int i = 0; i < ISA_COUNT; i++) {         // only the narrowest and the widest vectors
        const bool best = Isa(i) == cpu_isa();    // base is slow emulated; test_amx.cpp compares its bits
        if (wanted(Isa(i)) && (i == 0 || best))
            tables.push_back({&cpu_ops_isa<P>(Isa(i), Tiles::emulated), DTYPE<P>, TablePart::products, best});
    }
    const bool amx = cpu_chosen().tiles == Tiles::amx;
    if (amx) tables.push_back({&cpu_ops<P>(), DTYPE<P>, TablePart::products});
    if (wanted(Isa::avx512bf16))    // only here attention uses tiles, AMX's for bf16
        for (Tiles kind : {Tiles::emulated, Tiles::amx})
            if (kind == Tiles::emulated || (amx && sizeof(P) == 2))
                tables.push_back({&cpu_ops_isa<P>(Isa::avx512bf16, kind), DTYPE<P>, TablePart::attention});
}
}    // namespace

const int ORDERS = int(std::size(THREADS)), EVERY = 1;
const bool FAST_EXP = false;
double share(const std::string& op, const Check::Output& output) {
    struct Row {
        const char *op, *output;
        double share;
    };
    for (const Row& r : {Row{"embedding_forward", "", 0.03},     // one rounding: 2^-24
                         {"embedding_backward", "dwte", 0.4},    // float sums of thousands, one after the other
                         {"embedding_backward", "", 0.1},
                         {"sum_of_squares", "sum without", 0.15},
                         {"sum_of_squares", "", 0.1},
                         {"add_losses", "", 0.1},
                         {"update_weights", "", 0.1},
                         {"activation", "", 0.05},
                         {"cross_entropy", "", 0.2},
                         {"norm_forward", "", 0.3},    // sums of 16392 terms
                         {"stream_norm_forward", "", 0.3},
                         {"norm", "", 0.2},
                         {"linear_attention", "", 1},
                         {"linear_gelu_forward", "", 0.3},    // sums of 2056, one after the other
                         {"linear", "", 0.15},
                         {"router_backward", "", 0.2},
                         {"router_forward", "", 0.1},
                         {"row_gate", "", 0.2},
                         {"experts_combine_backward", "", 0.2},
                         {"experts", "", 0.15},
                         {"attention_cached", "", 0.1},
                         {"attention_forward", "lse", 0.1},
                         {"attention_forward", "y", 0.2},
                         {"attention_backward", "dv", 0.3},
                         {"attention_backward", "", 0.8}})    // dp and delta cancel
        if (op.starts_with(r.op) && output.name.starts_with(r.output))
            return output.half ? 1 : r.share;    // rounding to bf16 may use the whole tolerance
    return 1;
}
void set_order(int order) { cpu_set_threads(THREADS[order]); }

const std::vector<TestTable>& test_tables() {
    static const std::vector<TestTable> all = [] {
        std::vector<TestTable> tables;
        add<float>(tables), add<bf16>(tables);
        return tables;
    }();
    return all;
}
std::string absent_tables() {
    std::string absent;
    for (int i = 0; i < ISA_COUNT; i++)
        if (!cpu_supports(Isa(i))) absent += std::string("this CPU has no ") + NAMES[i] + "; ";
        else if (!wanted(Isa(i))) absent += std::string("FLATGPT_ISA leaves out ") + NAMES[i] + "; ";
    if (cpu_chosen().tiles != Tiles::amx) absent += "no AMX here, its twin alone; ";
    return absent;
}
