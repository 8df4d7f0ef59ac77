// bench.cpp - `flatgpt bench`: training steps, generation and each operation: time, floor, ratio.
// Single operations come last, because there are many, and one that fails then costs no other row.
//
// The floor of a row is the time that its FLOPs and bytes (layers/operations.inc) take at the
// peaks, which are measured first. Both best and median are shown: on a machine with other load the
// best is the figure to use, and its distance to the median shows the noise.
#include "bench.h"

#include <memory>
#include <sstream>

#include "base/console.h"
#include "base/table.h"
#include "files/json_write.h"
#include "model/decoder.h"
#include "model/families/families.h"

void Bench::print(const std::string& name, std::vector<double> times, const Cost& work, double floor,
                  double ratio) const {
    std::sort(times.begin(), times.end());
    const double best = times[0], median = times[times.size() / 2];
    if (floor == 0) floor = peak.floor(work);
    if (ratio == 0) ratio = floor / best;
    const double flops = work.flops(), gflops = flops / best / 1e9, gbytes = work.bytes / best / 1e9;
    if (o.json) {
        Json row = Json::object("name", name, "device", device.text, "best_us", best * 1e6, "median_us", median * 1e6,
                                "floor_us", floor * 1e6, "ratio", ratio);
        if (flops > 0) row.set("GFLOP/s", gflops);
        if (work.bytes > 0) row.set("GB/s", gbytes);
        if (device.gpu) row.set("algorithms", trains ? "fastest" : "first");
        row.print();
    } else {
        auto rate = [](double giga) { return giga > 0 ? Cell(giga, "%.1f") : Cell(); };
        print_table_line(ROW_WIDTHS, {name, Cell(best * 1e6, "%.1f"), Cell(median * 1e6, "%.1f"), rate(gflops),
                                      rate(gbytes), Cell(floor * 1e6, "%.1f"), Cell(ratio * 100, "%.0f %%")});
    }
    fflush(stdout);
}
void Bench::print_tokens(double per_second) const {
    if (!o.json) printf("%-46s %.*f tokens/s\n", "", per_second < 10 ? 1 : 0, per_second);
}
void Bench::short_of_memory(const std::string& what) const {
    fprintf(stderr, "flatgpt bench: %s: not enough memory, left out\n", what.c_str());
}

bool Bench::wanted(const std::string& name) {
    const std::string first = name.substr(0, name.find_first_of(" ,"));
    if (std::find(names.begin(), names.end(), first) == names.end()) names.push_back(first);
    bool is = false;
    std::istringstream texts(o.filter.empty() ? "|" : o.filter);
    for (std::string text; std::getline(texts, text, '|');) is = is || name.find(text) != std::string::npos;
    any = any || is;
    return is;
}
Status Bench::close() const {
    if (any) return {};
    return fail(Exit::usage, "--filter %s: no row has this in its name; there are %s", o.filter.c_str(),
                join(names, ", ").c_str());
}

TrainingStep::TrainingStep(const Config& c, int batch, int seq)
    : B(batch), S(seq), tok(size_t(B) * size_t(S)), target(tok) {
    for (size_t i = 0; i < tok.size(); i++) {
        tok[i] = int((int64_t(i) * 7919 + 13) % c.V);
        target[i] = int((int64_t(i) * 104729 + 7) % c.V);
    }
}
void TrainingStep::run(Model& model) {
    model.train.begin();
    model.batch.upload(tok.data(), target.data(), B, S);
    model.forward(true);
    model.loss(true, 1.0f / float(B * S));
    model.backward();
    model.train.update({1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f}, {}, 1);
}

namespace {
constexpr int PROMPT = 512;
std::string training(int B, int S) { return "training step B=" + std::to_string(B) + " T=" + std::to_string(S); }

Status bench_training(Bench& bench, const Config& c, int B, int S) {
    Model& model = *bench.device.model;
    TRY(model.allocate(c, {RunMode::train, B, S}));
    model.init(1);
    const int N = B * S;
    TrainingStep step(c, B, S);
    std::vector<double> times;
    bool ahead = false;
    for (double spent = 0; times.size() < (ahead ? 6 : 4) || (spent < 3 && times.size() < 50);) {
        const double start = now_seconds();
        step.run(model);
        if (ahead) (void)model.train.finish();    // finishes the previous step, as the trainer does
        ahead = bench.device.gpu;
        if (!ahead) (void)model.train.finish();
        times.push_back(now_seconds() - start);
        spent += times.back();
    }
    if (ahead) (void)model.train.finish();
    // The first step allocates and chooses algorithms. A GPU is waited for one step late, so its
    // times are steady only after two more.
    times.erase(times.begin(), times.begin() + (ahead ? 3 : 1));
    Cost work = training_cost(model.op, c, B, S);
    work.bytes = 0;    // caches may hold a small model's weights
    bench.print(training(B, S), times, work);
    std::sort(times.begin(), times.end());
    // A GPU at its power limit slows down under load, so the median time gives a run's speed.
    bench.print_tokens(N / times[ahead ? times.size() / 2 : 0]);
    return {};
}

Result<std::vector<int>> lengths_of(const BenchOptions& o) {
    std::vector<int> lengths;
    if (was_given(o.given, "--lengths") && o.lengths.empty())
        return fail(Exit::usage, "--lengths: expected numbers of tokens, as 256,512,1k, found none");
    std::istringstream texts(o.lengths);
    for (std::string text; std::getline(texts, text, ',');) {
        int T = 0;
        TRY(flag_set({.name = "--lengths", .to = &T, .help = "", .min = 1, .max = 1 << 20}, {text}));
        lengths.push_back(T);
    }
    return lengths;
}

Status run(const BenchOptions& o) {
    const std::vector<int> lengths = TRY(lengths_of(o));
    Config c = config_with(TRY(config_named(o.model)), o.shape);
    c.T = std::max(c.T, o.seq_len);
    TRY(check_overrides(o.shape, c));
    TRY(check_no_encoder(c, "bench"));
    Bench bench{o, TRY(open_device(o.device, true)), {}};
    const bool gpu = bench.device.gpu;
    const int S = std::min(c.T, o.seq_len ? o.seq_len : gpu ? 1024 : 256), B = o.batch ? o.batch : gpu ? 32 : 4;
    if (gpu) bench.peak.products = bench.peak.flops = measure_peak(bench.device);
    else bench.peak = cpu_peaks(bench.device.dtype == Dtype::bf16);
    if (!lengths.empty()) return bench_lengths(bench, c, std::max(1, o.batch), lengths);
    TRY(bench_ceilings(bench, c, B, S));
    const auto reopen = [&](bool train) -> Status {    // empty model: frees the previous one's memory
        bench.device.model.reset();
        DeviceOptions device = o.device;
        if (!train && is_fp8(gpu_dtype(device.dtype))) device.dtype = "bf16";    // fp8 is for training only
        bench.device = TRY(open_device(device, train));
        bench.trains = train;
        return {};
    };
    if (bench.wanted(training(B, S))) {
        TRY(bench_training(bench, c, B, S));
        if (o.profile) {
            TRY(reopen(true));
            TRY(profile_training(bench, c, B, S));
        }
    }
    if (o.steps_only) return bench.close();
    for (const char* weights : {"", "q8_0", "q4_k_m"}) {
        if (gpu && *weights) continue;
        for (int rows : {1, 2, 4, 8, 16, 64}) {
            if (!bench.wanted(decode_row(rows, weights))) continue;
            TRY(reopen(false));
            TRY(bench_decode(bench, c, rows, weights));
            if (o.profile && (rows == 1 || rows == 8 || rows == 64)) TRY(profile_decode(bench, c, rows, weights));
        }
        if (!bench.wanted(prefill_row(PROMPT, weights))) continue;
        TRY(reopen(false));
        TRY(bench_prefill(bench, c, PROMPT, weights));
    }
    TRY(reopen(true));
    TRY(bench_operations(bench, c, B, S));
    return bench.close();
}
}    // namespace

Command bench_command() {
    auto o = std::make_shared<BenchOptions>();
    Command c{"bench", "Measure a training step, generation and every operation: time, floor, ratio.",
              "flatgpt bench --filter attention --batch 32 --seq-len 1024"};
    c.flags = flag_groups({
        {"Common",
         {{"--filter", &o->filter, "only rows with this text in their name, or with one of several: 'prompt|1 seq'"},
          {"--steps-only", &o->steps_only, "the training step alone"},
          {"--profile", &o->profile, "also time and floor of each operation within a training step and a token"},
          {.name = "--lengths",
           .to = &o->lengths,
           .help = "only training steps of these numbers of tokens, as 256,512,1k: how attention and the rest grow, "
                   "beside T^2 and T; --batch 0 is then 1",
           .excludes = {"--filter", "--steps-only", "--profile", "--seq-len"}},
          {"--json", &o->json, "one JSON object per row on standard output"}}},
        {"Sizes",
         {{"--model", &o->model, "sizes: " + config_names()},
          {"--batch", &o->batch, "sequences; 0: 32 on a GPU, 4 on the CPU", 0, 65536},
          {"--seq-len", &o->seq_len, "tokens of a sequence, and the least context; 0: 1024 on a GPU, 256 on the CPU", 0,
           1 << 20}},
         config_flags(o->shape)},
        {"Device", device_flags(o->device, "bf16 on a GPU and where the CPU multiplies it, else fp32")},
    });
    c.given = &o->given;
    c.run = [o] { return run(*o); };
    return c;
}
