// cpu_tables.cpp - the tables of test_all: the CPU's, of every instruction set that it has, with our own products and
// with oneDNN's.
#include "layers/cpu.h"

#include "ops/ops.h"

namespace {
const int THREADS[] = {0, 1, 1, 2, 3};    // 0: as many as there are cores; twice the same
const char* const NAMES[] = {"base", "avx2", "avx512", "avx512bf16"};

template <class P> void add(std::vector<TestTable>& tables) {
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        tables.push_back({&cpu_ops_isa<P>(Isa(i)), DTYPE<P>});
        const Ops<float, P>* library = onednn_ops<P>(Isa(i));    // null also where it has no bf16
        if (!library) continue;
        // As for the number of threads, its word is taken where a user gets its products: of AMX.
        const bool taken = cpu_chosen().tiles && library == &cpu_ops<P>();
        tables.push_back({library, DTYPE<P>, TablePart::products, taken});
    }
}
}   // namespace

const int ORDERS = int(std::size(THREADS)), EVERY = 1;
const bool FAST_EXP = false;
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
    if (!onednn_ops<float>(Isa::base)) absent += "this build has no oneDNN; ";
    else if (!cpu_chosen().tiles) absent += "no AMX here; ";
    return absent;
}
