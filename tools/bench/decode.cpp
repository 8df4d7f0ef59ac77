// decode.cpp - generation: one token after the other, for several sequences at once.
//
// A step with few sequences is bound by memory: it reads all weights and the caches once. A shared
// machine's bandwidth varies within seconds (47 and 90 GB/s were seen in one run), so on the CPU it
// is measured right before and after each step, and a step's floor is the time of its bytes at that
// bandwidth.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "bench.h"
#include "base/console.h"
#include "checkpoint/gguf.h"

namespace {
struct Measured {
    double seconds, floor, bandwidth;
    Cost work;
};

double middle(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
    return x[x.size() / 2];
}
template <class Get> std::vector<double> each(const std::vector<Measured>& tokens, Get get) {
    std::vector<double> x;
    for (const Measured& t : tokens) x.push_back(get(t));
    return x;
}

// Prints the ratios of floor to time, separately for slow and fast phases of the machine: if the
// 5th and 95th percentiles of the bandwidth differ by a factor over 1.4, tokens are divided at
// their geometric mean.
void print_ratios(const std::vector<Measured>& tokens) {
    auto bandwidths = each(tokens, [](const Measured& t) { return t.bandwidth; });
    std::sort(bandwidths.begin(), bandwidths.end());
    const double least = bandwidths[bandwidths.size() / 20], most = bandwidths[bandwidths.size() * 19 / 20];
    const double border = most > 1.4 * least ? std::sqrt(least * most) : 0;
    for (bool fast : {false, true}) {
        std::vector<Measured> some;
        std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(some),
                     [&](const Measured& t) { return (t.bandwidth >= border) == fast; });
        if (some.empty()) continue;
        auto ratios = each(some, [](const Measured& t) { return t.floor / t.seconds; });
        printf("%-46s %zu tokens beside reads at %.1f GB/s: median %.0f %%, best %.0f %% of the floor\n", "",
               some.size(), middle(each(some, [](const Measured& t) { return t.bandwidth; })) / 1e9,
               middle(ratios) * 100, *std::max_element(ratios.begin(), ratios.end()) * 100);
    }
}
std::string and_type(const std::string& weights) { return weights.empty() ? "" : ", " + weights; }
}    // namespace

std::string decode_row(int rows, const std::string& weights) {
    return "generation, " + std::to_string(rows) + (rows == 1 ? " sequence" : " sequences") + and_type(weights);
}
std::string prefill_row(int tokens, const std::string& weights) {
    return "prompt of " + std::to_string(tokens) + and_type(weights);
}

DecodeSteps::DecodeSteps(Model& g, KvCache& kv_cache, int rows, int V)
    : model(g), cache(kv_cache), tok(size_t(rows), 1),
      logits(model.op.sample ? 0 : size_t(rows) * size_t(V)), sample_args{.V = V} {}
DecodeSteps::~DecodeSteps() {
    if (last >= 0) model.op.wait(last);
    if (sample_args.at) model.op.release(sample_args.at, int64_t(sizeof(SampleState) * tok.size()));
    if (drawn) model.op.release_host(drawn, int64_t(sizeof *drawn * tok.size()));
}
Status DecodeSteps::open() {
    if (!model.op.sample) return {};
    const std::vector<SampleState> places(tok.size());
    const int64_t bytes = int64_t(sizeof(SampleState) * tok.size());
    sample_args.at = static_cast<SampleState*>(model.op.allocate(bytes));
    drawn = static_cast<int*>(model.op.allocate_host(int64_t(sizeof *drawn * tok.size())));
    if (!sample_args.at || !drawn) return fail(Exit::device, "out of memory");
    model.op.upload(sample_args.at, places.data(), bytes);
    return {};
}
void DecodeSteps::step() {
    const PendingHead head = extend(model, cache, last >= 0 ? nullptr : tok.data(), 1, {}, {},
                                    Pages::SumOrder::by_length, model.op.sample ? &sample_args : nullptr);
    if (!model.op.sample) return compute_logits(model, head, logits.data());
    model.op.download_async(drawn, cache.tok, int64_t(sizeof *drawn * tok.size()));
    const int64_t before = last;
    last = model.op.mark();
    if (before >= 0) model.op.wait(before);
}

Plan inference_plan(const Bench& bench, const Config& c, Plan plan, const std::string& weights) {
    if (bench.device.gpu) return plan;
    const BlockType floats = bench.device.dtype == Dtype::bf16 ? BlockType::bf16 : BlockType::f32;
    plan.stored = [floats](const Tensor& t) { return std::vector<FormatRows>{{t.rows, floats}}; };
    if (!weights.empty()) plan.stored = gguf_stored(*find_gguf_file_type(weights), c);
    return plan;
}
const Peaks& inference_peak(const Bench& bench) {
    return !bench.device.gpu && bench.device.dtype == Dtype::fp32 ? cpu_fma_peaks() : bench.peak;
}
Status inference_model(Bench& bench, const Config& c, const Plan& plan, const std::string& weights) {
    if (!bench.device.gpu) bench.device.model = std::make_unique<Model>(Table(cpu_packed_ops()));
    TRY(bench.device.model->allocate(c, inference_plan(bench, c, plan, weights)));
    bench.device.model->init(1);
    return {};
}

Status bench_prefill(Bench& bench, const Config& c, int tokens, const std::string& weights) {
    TRY(inference_model(bench, c, {RunMode::infer, 1, tokens}, weights));
    Model& model = *bench.device.model;
    KvCache cache;
    TRY(allocate_cache(model, cache, 1, tokens));
    const std::vector<int> tok(size_t(tokens), 1);
    std::vector<float> logits(static_cast<size_t>(c.V));
    std::vector<double> times;
    for (double spent = 0; times.size() < 4 || (spent < 2 && times.size() < 50); spent += times.back()) {
        cache.table.rewind(0, 0);
        const double start = now_seconds();
        compute_logits(model, extend(model, cache, tok.data(), tokens), logits.data());
        times.push_back(now_seconds() - start);
    }
    times.erase(times.begin());
    CostTable count(model.op);
    Model counted(count.table);
    KvCache no_cache;
    TRY(counted.allocate(c, {RunMode::infer, 1, tokens}));
    TRY(allocate_cache(counted, no_cache, 1, tokens));
    count.clear();
    compute_logits(counted, extend(counted, no_cache, tok.data(), tokens), logits.data());
    Cost work = count.all();
    work.bytes = 0;
    if (!weights.empty()) work.products = 0;    // no peak is measured for integer products
    bench.print(prefill_row(tokens, weights), times, work, bench.peak.floor(work));
    bench.print_tokens(tokens / *std::min_element(times.begin(), times.end()));
    return {};
}

Status bench_decode(Bench& bench, const Config& c, int rows, const std::string& weights) {
    const bool cpu = !bench.device.gpu;
    TRY(inference_model(bench, c, {RunMode::infer, rows, 1}, weights));
    Model& model = *bench.device.model;
    KvCache cache;
    TRY(allocate_cache(model, cache, rows, c.T));
    DecodeSteps steps(model, cache, rows, c.V);
    TRY(steps.open());
    const std::vector<int> tok(size_t(rows), 1);
    std::vector<float> logits(size_t(rows) * size_t(c.V));
    CostTable count(model.op);
    Model counted(count.table);
    KvCache no_cache;
    TRY(counted.allocate(c, {RunMode::infer, rows, 1}));
    TRY(allocate_cache(counted, no_cache, rows, c.T));
    auto next_work = [&] {    // weights, keys and values; the rest fits in caches
        count.clear();
        compute_logits(counted, extend(counted, no_cache, tok.data(), 1), logits.data());
        Cost work;
        for (Operation o : {Operation::linear_forward, Operation::linear_gelu_forward, Operation::norm_linear_forward,
                            Operation::norm_ffn_forward, Operation::attention_cached, Operation::rope_attention_cached})
            work += count.of(o).work;
        work.bytes += double(model.store.packed.bytes_beside_fp32());
        if (!weights.empty()) work.products = 0;    // no peak is measured for integer products
        return work;
    };
    // A GPU's steps overlap, so costs that were counted between them would be part of their times.
    // All costs are therefore counted before the first step.
    const int most = cpu ? std::min(c.T, 512) : std::min(c.T, 128);
    std::vector<Cost> counts;
    for (int t = 0; t < most && !cpu; t++) counts.push_back(next_work());
    Peaks peak = inference_peak(bench);
    std::vector<Measured> tokens;
    double spent = 0, before = cpu ? cpu_read() : 0;
    for (int t = 0; t < most && (t < 64 || !cpu || spent < 2); t++) {
        const double start = now_seconds();
        steps.step();
        const double seconds = now_seconds() - start, after = cpu ? cpu_read() : 0;
        const Cost work = cpu ? next_work() : counts[size_t(t)];
        const double bandwidth = cpu ? (before + after) / 2 : bench.peak.bytes;
        const bool steady = std::abs(after - before) <= 0.1 * (after + before) / 2;
        if (t > (cpu ? 2 : 8) && steady)
            peak.bytes = bandwidth, tokens.push_back({seconds, peak.floor(work), bandwidth, work});
        before = after, spent += seconds;
    }
    if (tokens.empty()) return {};
    auto times = each(tokens, [](const Measured& t) { return t.seconds; });
    const double floor = middle(each(tokens, [](const Measured& t) { return t.floor; }));
    const double ratio = middle(each(tokens, [](const Measured& t) { return t.floor / t.seconds; }));
    bench.print(decode_row(rows, weights), times, tokens[tokens.size() / 2].work, floor, ratio);
    bench.print_tokens(rows / middle(times));
    if (cpu && !bench.o.json) print_ratios(tokens);
    return {};
}
