// launches.cpp - cost and launches of each operation of `flatgpt bench`, of a training step, a
// prompt, generated tokens and a checked draft, on a GPU that this machine lacks. dev/gpu_time.py
// derives times from them.
//     build/emu/launches --gpu h100 --model llama-3.2-1b --prompt 8192
//
// The CUDA backend runs on the emulator, which pretends the GPU's number of multiprocessors and its
// compute capability, records launches and computes nothing. Costs come from the counting table
// (layers/operations.inc), as do bench's floors. Prints a line of JSON for the GPU, then one for
// each operation; a kernel is named by its address in this binary's file. The last row of each
// table except bench's counts copies between host and device and the host's waits.
#include <numeric>

#include "base/console.h"
#include "files/json_write.h"
#include "layers/attention/visible_keys.h"
#include "train/gpu_plan.h"
#include "test/cuda_on_cpu/runtime.h"
#include "tools/bench/bench.h"

namespace {
std::vector<emu::Launched> launched_by(const std::function<void()>& call) {
    std::vector<emu::Launched> all;
    call();    // warm-up: may try algorithms
    emu::launched_now = &all;
    call();
    emu::launched_now = nullptr;
    return all;
}

void print(const char* table, const std::string& name, int64_t times, const Cost& work,
           const std::vector<emu::Launched>& launched) {
    const CallSizes& c = work.call;
    const Heads& h = c.heads;
    std::vector<std::string> launches, spans;
    for (const emu::Launched& l : launched)
        launches.push_back(l.kernel ? formatted("{\"kernel\":\"%zx\",\"blocks\":%lld,\"threads\":%u,\"shared\":%zu}",
                                                size_t(emu::address_in_file(l.kernel)),
                                                (long long)(int64_t(l.blocks.x) * l.blocks.y * l.blocks.z), l.threads,
                                                l.shared)
                                    : formatted("{\"product\":[%u,%u,%u]}", l.blocks.x, l.blocks.y, l.blocks.z));
    if (h.keys || h.window)    // spans of the first sequence stand for all
        for (int i = 0; i < c.S; i++) {
            const Span span = keys_of(h, c.S, 0, i);
            spans.push_back(formatted("[%d,%d]", span.from, span.to));
        }
    printf(
        "{\"table\":\"%s\",\"name\":%s,\"times\":%lld,\"products\":%.17g,\"arithmetic\":%.17g,\"bytes\":%.17g,"
        "\"B\":%d,\"S\":%d,\"NH\":%d,\"NKV\":%d,\"HS\":%d,\"softcap\":%g,\"globals\":%d,\"stride\":%d,"
        "\"linear\":%d,\"spans\":[%s],\"launches\":[%s]}\n",
        table, json_string(name).c_str(), (long long)times, work.products, work.arithmetic, work.bytes, c.B, c.S, h.NH,
        h.NKV, h.HS, double(h.softcap), h.global_tokens, h.stride, int(h.linear), join(spans, ",").c_str(),
        join(launches, ",").c_str());
}

// Records the operations that a model calls, in order. Calls of equal name and cost share a row.
class Calls : public CostTable {
  public:
    struct Row {
        std::string name;
        Cost work;
        std::vector<emu::Launched> launched;
        int64_t times;
    };
    std::vector<Row> rows;
    int64_t later = 0;    // waits of the host for the previous step
    explicit Calls(const Table& like) : CostTable(like) {
        current = this;
        table.wait = [](int64_t) { current->waited++; };
    }
    void begin() { rows.clear(), clear(), waited = 0; }    // without rows of earlier calls
    void end() { later = waited; }                         // without the waits of later destructors

  private:
    inline static Calls* current = nullptr;
    int64_t waited = 0;
    void call(const Cost& work, const std::function<void()>& run) override {
        CostTable::call(work, run);
        const CallSizes& c = work.call;
        if (c.operation <= Operation::download_async && c.operation != Operation::zero) return;
        std::string name = operation_name(c.operation);
        if (c.out) name += formatted(" %d to %d", c.in, c.out);
        for (Row& r : rows)
            if (r.name == name && r.work.bytes == work.bytes && r.work.flops() == work.flops()) {
                r.times++;
                return;
            }
        rows.push_back({name, work, {}, 1});
        if (c.operation != Operation::zero) rows.back().launched = launched_by(run);
    }
};
template <class Run>
Status print_calls(const char* table, const Table& op, const Config& c, const Plan& plan, Run run) {
    Calls calls(op);
    Model model(calls.table);
    TRY(model.allocate(c, plan));
    calls.begin();
    run(model, calls);
    for (const Calls::Row& r : calls.rows) print(table, r.name, r.times, r.work, r.launched);
    auto calls_of = [&](auto... operations) { return (calls.of(operations).calls + ...); };
    auto bytes_of = [&](auto... operations) { return (calls.of(operations).work.bytes + ...) / 2; };
    printf(
        "{\"table\":\"%s\",\"uploads\":%lld,\"downloads\":%lld,\"bytes\":%.17g,\"waits\":%lld,"
        "\"later\":%lld}\n",
        table, (long long)calls_of(Operation::upload, Operation::upload_async),
        (long long)calls_of(Operation::download, Operation::download_async),
        bytes_of(Operation::upload, Operation::upload_async, Operation::download, Operation::download_async),
        (long long)calls_of(Operation::download), (long long)calls.later);
    return {};
}

constexpr int DRAFT = 8, POSITION = 1000;
constexpr int SEQUENCES[] = {1, 2, 4, 8, 16, 64};

// A decode step of `sequences` sequences at `position`. Its tokens come from the step before, on
// the device; that first step, whose tokens the host uploads, is not counted.
Status print_token(const std::string& table, const Table& op, const Config& c, int sequences, int position) {
    const Plan plan = {RunMode::infer, sequences, std::max(1, position)};
    return print_calls(table.c_str(), op, c, plan, [&](Model& g, Calls& calls) {
        KvCache cache;
        CHECK(allocate_cache(g, cache, sequences, std::min(c.T, 2 * (POSITION + DRAFT))).ok(), "no memory for a cache");
        const std::vector<int> prompt(size_t(sequences) * size_t(position), 1);
        if (position) extend(g, cache, prompt.data(), position);
        DecodeSteps steps(g, cache, sequences, c.V);
        CHECK(steps.open().ok(), "no memory for tokens");
        steps.step();
        calls.begin();
        steps.step();
        calls.end();
    });
}
// A prompt from position 0; or, if position > 0, a draft after a prompt of that length, with the
// logits of all its tokens, not only of the last one, downloaded.
Status print_prompt(const std::string& table, const Table& op, const Config& c, int tokens, int position) {
    return print_calls(table.c_str(), op, c, {RunMode::infer, 1, std::max(tokens, position)},
                       [&](Model& g, Calls& calls) {
                           KvCache cache;
                           CHECK(allocate_cache(g, cache, 1, tokens + position).ok(), "no memory for a cache");
                           const std::vector<int> tok(size_t(std::max(tokens, position)), 1);
                           std::vector<int> rows(size_t(position ? tokens : 1));
                           std::iota(rows.begin(), rows.end(), position ? 0 : tokens - 1);
                           std::vector<float> logits(rows.size() * size_t(c.V));
                           if (position) extend(g, cache, tok.data(), position);
                           calls.begin();
                           compute_logits(g,
                                          extend(g, cache, tok.data(), tokens, {}, {},
                                                 position ? Pages::SumOrder::decode : Pages::SumOrder::prefill),
                                          logits.data(), rows);
                           calls.end();
                       });
}

Status run(const Gpu& gpu, BenchOptions& o, int prompt) {
    emu::config.runs = false;
    emu::config.capability = gpu.capability, emu::config.multiprocessors = gpu.multiprocessors;
    emu::config.memory_bytes = size_t(1) << 46;    // never touched: kernels do not run
    emu::config.shared_limit = emu::multiprocessor_of(gpu.capability).shared_limit;
    o.json = true, o.device.device = "cuda";
    Config c = config_with(TRY(config_named(o.model)), o.shape);
    c.T = std::max(c.T, o.seq_len);
    TRY(check_overrides(o.shape, c));
    Bench bench{o, TRY(open_device(o.device, true)), {}};
    printf("{\"gpu\":\"%s\",\"capability\":%d,\"multiprocessors\":%d,\"peak\":%.17g,\"bandwidth\":%.17g}\n", gpu.text,
           gpu.capability, gpu.multiprocessors, gpu.peak, gpu.bandwidth);
    bench.on_operation = [](const std::string& name, const Cost& work, const std::function<void()>& call) {
        print("bench", name, 1, work, launched_by(call));
    };
    const int B = o.batch, S = o.seq_len;
    TRY(bench_operations(bench, c, B, S));
    const Table& op = bench.device.model->op;
    TRY(print_calls("step", op, c, {RunMode::train, B, S},
                    [](Model& g, Calls& calls) { run_counted_step(g), calls.end(); }));
    for (int sequences : SEQUENCES)
        TRY(print_token(sequences == 1 ? "token" : formatted("token of %d sequences", sequences), op, c, sequences, 0));
    if (c.T >= POSITION + DRAFT) {
        TRY(print_token(formatted("token at position %d", POSITION), op, c, 1, POSITION));
        TRY(print_prompt(formatted("draft of %d at position %d", DRAFT, POSITION), op, c, DRAFT, POSITION));
    }
    return print_prompt(formatted("prompt of %d", std::min(prompt, c.T)), op, c, std::min(prompt, c.T), 0);
}
}    // namespace

int main(int argc, char** argv) {
    BenchOptions o;
    o.batch = 32, o.seq_len = 1024;
    std::string gpu = "h100";
    int prompt = 512;
    Command c{"launches", "What operations cost and launch on a GPU.", "launches --gpu h100 --batch 32"};
    c.flags = config_flags(o.shape);
    c.flags.insert(c.flags.end(), {{"--gpu", &gpu, "which: " + gpu_names()},
                                   {"--model", &o.model, "sizes: " + config_names()},
                                   {"--batch", &o.batch, "sequences", 1, 65536},
                                   {"--seq-len", &o.seq_len, "tokens of a sequence", 1, 1 << 20},
                                   {"--prompt", &prompt, "tokens of a prompt", 1, 1 << 20},
                                   {"--dtype", &o.device.dtype, "as bench's"}});
    const Result<bool> parsed = command_parse(c, {argv + 1, argv + argc});
    Status s = parsed.status;
    if (s.ok()) {
        const Result<Gpu> found = gpu_named(gpu);
        s = found.ok() ? run(found.value, o, prompt) : found.status;
    }
    if (!s.ok()) fprintf(stderr, "launches: %s\n", s.message.c_str());
    return int(s.code);
}
