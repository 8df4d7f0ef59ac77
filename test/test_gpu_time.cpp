// test_gpu_time.cpp - the inputs of dev/gpu_time.py: dev/launches.cpp's operations, bench's output.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/cost_table.h"
#include "train/gpu_plan.h"
#include "test.h"

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("gpu time: the emulated backend launches each operation of bench and of a step, at the model's own costs") {
    if (!fs::exists("build/emu/launches")) SKIP("no build/emu/launches: make test builds it");
    const ProcessResult r = run_process({"build/emu/launches", "--gpu", "h200", "--batch", "2", "--seq-len", "128"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    std::istringstream text(r.out);
    std::string line;
    REQUIRE(std::getline(text, line));
    const json gpu = json::parse(line);
    CHECK((gpu["multiprocessors"] == 132 && gpu["bandwidth"] == 4.8e12));
    std::map<std::string, double> flops, bytes;
    std::map<std::string, json> bench, copies, attention;
    while (std::getline(text, line)) {
        const json row = json::parse(line);
        const std::string table = row["table"];
        if (row.contains("uploads")) {
            copies[table] = row;
            continue;
        }
        if (row["name"] == "attention_cached") attention[table] = row;
        const double times = row["times"];
        flops[table] += times * (row["products"].get<double>() + row["arithmetic"].get<double>());
        bytes[table] += times * row["bytes"].get<double>();
        if (table == "bench") bench[row["name"]] = row;
        for (const json& l : row["launches"]) {
            if (l.contains("product")) continue;
            CHECK((l["blocks"] > 0 && l["threads"] > 0 && l["threads"] <= 1024));
        }
    }
    // The costs of a training step, counted without a device.
    Gpu h200 = gpu_named("h200").value;
    const Cost step = training_cost(planned_table(h200, Dtype::bf16), config_named("gpt2").value, 2, 128);
    CHECK(flops["step"] == doctest::Approx(step.flops()));
    CHECK(bytes["step"] < step.bytes * 1.0000001);    // without copies between host and device
    CHECK(bytes["step"] > 0.99 * step.bytes);
    CHECK(bytes["token"] > 2 * 123e6);    // every matrix, read once
    // Launches of our kernels, and sizes of products that the library launches.
    CHECK(bench["activation_forward, gelu_tanh"]["launches"].size() == 1);
    CHECK(bench["linear_forward qkv"]["launches"] == json::parse(R"([{"product":[2304,256,768]}])"));
    CHECK(bench["attention_backward"]["launches"].size() == 3);
    const double causal = bench["attention_forward"]["products"],
                 documents = bench["attention_forward, 8 documents"]["products"];
    CHECK(documents < 0.2 * causal);
    // A token waits only for the token before (later); a prompt waits for its own logits.
    for (const char* token : {"token", "token of 4 sequences", "token at position 1000"}) {
        const json& c = copies[token];
        CHECK((c["uploads"] == 0 && c["downloads"] == 1 && c["waits"] == 0 && c["later"] == 1));
    }
    CHECK((copies["step"]["waits"] == 0 && copies["prompt of 512"]["waits"] == 1));
    CHECK(copies["draft of 8 at position 1000"]["bytes"] > 8 * 50257 * 2);
    // Positions whose bf16 keys and values are read or written: cached ones and the call's own.
    auto cached = [&](const char* table) { return attention[table]["bytes"].get<double>() / (2 * 2 * 768); };
    CHECK(cached("token") < 10);
    CHECK((cached("token at position 1000") > 1000 && cached("token at position 1000") < 1010));
    CHECK((cached("draft of 8 at position 1000") > 1008 && cached("draft of 8 at position 1000") < 1030));
    CHECK(attention["draft of 8 at position 1000"]["S"] == 8);
    // Keys that the queries of bench's rows see.
    CHECK(bench["attention_forward"]["spans"].empty());
    const json& pattern = bench["attention_backward, window 8, stride 64, 4 global"];
    CHECK((pattern["spans"].size() == 128 && pattern["spans"][100] == json({93, 101}) && pattern["stride"] == 64));
    CHECK(bench["attention_forward, 8 documents"]["spans"][100] == json({96, 101}));
    for (const char* name : {"update_weights, adamw 32M", "cross_entropy, 256 rows", "experts_forward, 2 of 8",
                             "rope_backward, QK-norm", "sample, 1 text, top-p 0.9"})
        CHECK_MESSAGE(!bench[name]["launches"].empty(), name);
}

TEST_CASE("gpu time: a mask says which tiles are visited and masked, a way passes what it is named by") {
    const ProcessResult r = run_process({"python3", "-c", R"(
import sys
sys.path.insert(0, 'dev')
import gpu_ways as g
from sass_read import Instruction as I
S, rows = 40, range(40)
pattern = lambda j: j < 3 or j % 5 == 0
row = {'S': S, 'spans': [(max(0, i - 6), i + 1) for i in rows], 'globals': 3, 'stride': 5}
by_query, by_key = (list(g.streams_of(row, keys)) for keys in (False, True))
print([sum(s[i][1] - s[i][0] for s in by_query) for i in rows] ==
      [sum(j > i - 7 or pattern(j) for j in range(i + 1)) for i in rows])
print(by_key[0] == [(j, min(S, j + 7)) for j in rows],
      sorted(s for some in by_key[1:] for s in some) == [(j, S) for j in rows if pattern(j)])
print(list(g.visits(g.causal(8), 4, 2)), list(g.visits([(max(0, i - 1), i + 1) for i in range(8)], 4, 2)))
code = [I(0, 'P0', 'BRA', '0x20'), I(16, '', 'FSEL', 'R0, R0, -INF , !P0'), I(32, '', 'HMMA.16816', 'R0'),
        I(48, '', 'EXIT', '')]
print([[i.address for i in g.way_with(p, code)] for p in ('HMMA', 'HMMA|' + g.MASK)])
)"});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(r.out == "True\nTrue True\n[(2, 0), (4, 2)] [(2, 0), (3, 0)]\n[[0, 32, 48], [0, 16, 32, 48]]\n");
}

TEST_CASE("gpu time: the rows that bench prints are read, whatever their names") {
    const std::string file = temporary_directory() + "/bench.txt";
    auto row = [](const std::string& name, const char* numbers) {
        return name + std::string(name.size() < 46 ? 46 - name.size() : 0, ' ') + " " + numbers + "\n";
    };
    write_file(file,
               "NVIDIA H100 bf16\n\nB=32 S=1024 C=768 NH=12 NKV=12 HS=64\n\n"
               "                                                  best us  median us    GFLOP/s     GB/s   ratio\n" +
                   row("attention_forward", "      161.4      163.9   320000.1   1230.5       70.1    43 %") +
                   row("router_forward, 2 of 8", "       10.5       11.0                2400.9        8.1    77 %") +
                   row("attention_forward, window 64, stride 64, 4 global", "   99.5   101.0    240.9    8.1   108 %") +
                   row("", "128000 tokens/s") + "\nduring: SM 1755 to 1980 MHz\n");
    const ProcessResult r = run_process({"python3", "-c",
                                         "import sys; sys.path.insert(0, 'dev'); import gpu_measured; "
                                         "print(sorted(gpu_measured.bench_rows(open(sys.argv[1])).items()))",
                                         file});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(r.out ==
          "[('attention_forward', 163.9), ('attention_forward, window 64, stride 64, 4 global', 101.0), "
          "('router_forward, 2 of 8', 11.0)]\n");
}

TEST_CASE("gpu time: a block waits for loads that need each other in turn, and at barriers; overlap hides its begin") {
    const ProcessResult r = run_process({"python3", "-c", R"(
import sys
sys.path.insert(0, 'dev')
import gpu_latency as g
from sass_read import Instruction as I
def code(*lines):
    return [I(16 * n, predicate, op, operands) for n, (predicate, op, operands) in enumerate(lines)]
load = lambda to, at: ('', 'LDG.E', f'R{to}, desc[UR4][R{at}.64]')
clocks = lambda *lines: g.waits(code(*lines), memory=600)
add, end, bar = ('', 'FADD', 'R8, R2, R4'), ('', 'EXIT', ''), ('', 'BAR.SYNC.DEFER_BLOCKING', '0x0')
print(clocks(load(2, 10), load(4, 12), add, end), clocks(load(2, 10), load(4, 2), add, end))
print(clocks(load(2, 10), load(4, 12), bar, end))
print(clocks(load(2, 10), ('', 'ACQBULK', ''), ('', 'FADD', 'R8, R2, R2'), end))
print(clocks(('', 'ISETP.GE.AND', 'P0, PT, R1, R3, PT'), ('P0', 'BRA', '0x20'), end))
wide = ('', 'LDG.E.128', 'R4, desc[UR4][R10.64]')
way = g.way_through(code(('P0', 'BRA', '0x40'), wide, wide, wide, ('P1', 'BRA', '0x60'), wide, bar, end))
print([i.address for i in way])
constants = g.LAUNCH, g.MEMORY, g.FETCH
rows = [r._replace(us=1e6 * g.seconds(r)) for r in g.FITTED]
print(all(abs(x / y - 1) < 1e-9 for x, y in zip(g.fit(rows), constants)))
)"});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(r.out == "(603, 4) (1202, 4)\n(44, 4)\n(2, 2)\n(7, 3)\n[0, 64, 80, 96, 112]\nTrue\n");
}
