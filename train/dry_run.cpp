// dry_run.cpp - `flatgpt train --dry-run`: a run's memory and work, its ranks' communication.
#include <algorithm>

#include "base/table.h"
#include "layers/peaks.h"
#include "model/adapter.h"
#include "model/cost_table.h"
#include "train.h"

namespace {
// ---- memory -------------------------------------------------------------------------------------

// Most bytes of optimizer state that ParamStore::collect gathers on one rank for a checkpoint.
int64_t collected_bytes(const Config& c, const Plan& plan, bool bf16) {
    if (!plan.zero) return 0;
    const std::vector<Bucket> buckets = config_buckets(c, plan.ranks);
    const std::vector<int> owners = config_owners(c, plan.ranks);
    std::vector<int64_t> of_rank(size_t(plan.ranks), 0);
    double numbers = plan.average ? 1 : 0;    // read as floats, for each parameter
    for (const OptimizerState& s : plan.optimizer->states) numbers += s.size != StateSize::row;
    for (const Element type : plan.state_types) numbers += type == Element::uint8 ? 1.0 / 64 : 0;
    if (plan.master && bf16) numbers++;
    for (size_t k = 0; k < buckets.size(); k++)
        of_rank[size_t(owners[k])] += int64_t(numbers * 4 * double(buckets[k].size));
    return *std::max_element(of_rank.begin(), of_rank.end());
}

// Bytes of host memory for a copy of the checkpoint on each rank, from the first one on that a
// thread writes.
Result<int64_t> checkpoint_copy(const Trainer& t) {
    CostTable count(t.device.model->op);
    CostComm comm(t.plan.ranks);
    Model model(count.table);
    if (t.plan.ranks > 1) model.store.comm = &comm;
    TRY(model.allocate(t.config, t.plan));
    return CheckpointWriter::copy_bytes(model);
}

Status add_cpu_rows(const Trainer& t, std::vector<MemoryRow>& rows) {
    int64_t largest = 0;    // bytes; a matrix is transposed through a buffer
    for (const Tensor& x : config_tensors(t.config))
        if (x.layout == FileLayout::transposed) largest = std::max(largest, x.size() * int64_t(sizeof(float)));
    rows.push_back({"a checkpoint in the making",
                    largest + (4 << 20) + collected_bytes(t.config, t.plan, t.device.dtype == Dtype::bf16)});
    // Libraries allocate memory on first use. A toy model runs first, so that this process's
    // measured memory includes theirs.
    Device toy = TRY(open_device(t.o.device, true));
    Model& g = *toy.model;
    TRY(g.allocate({256, 256, 1, 4, 256}, {RunMode::train, 1, 256}));
    g.init(1);
    const std::vector<int> zeros(256);
    g.batch.upload(zeros.data(), zeros.data(), 1, 256);
    g.forward(true);
    g.loss(true, 1.0f / 256);
    g.backward();
    toy.model.reset();
    rows.push_back({"program, libraries, tokenizer, batches", resident_bytes()});
    return {};
}

// Suggests single changes with which a run that does not fit would fit.
void advise_memory(const Trainer& t, int64_t total) {
    const Plan& plan = t.plan;
    auto needs = [&](const Plan& p) { return total_bytes(memory_cost(t.device.model->op, t.config, p).value); };
    const int64_t have = t.device.total_bytes, rest = total - needs(plan);
    printf("              more than this GPU's %s\n", human_bytes(double(have)).c_str());
    auto offer = [&](const std::string& what, const Plan& other) {
        const int64_t bytes = needs(other) + rest;
        if (bytes <= have) printf("              %s: %s\n", what.c_str(), human_bytes(double(bytes)).c_str());
    };
    Plan other = plan;
    for (other.zero++; other.zero <= 2 && plan.ranks > 1; other.zero++)
        offer("--zero " + std::to_string(other.zero), other);
    other = plan;
    other.recompute = Recompute::blocks;
    if (plan.recompute != Recompute::blocks) offer("--recompute blocks", other);
    other = plan;
    other.B = 1;
    if (plan.B > 1) offer("--batch 1", other);
    if (plan.recompute == Recompute::blocks && (plan.ranks == 1 || plan.zero == 2)) return;    // offered above
    other.zero = plan.ranks > 1 ? 2 : 0;
    other.recompute = Recompute::blocks;
    offer(std::string(plan.ranks > 1 ? "--zero 2 " : "") + "--recompute blocks --batch 1", other);
}

// ---- ranks --------------------------------------------------------------------------------------

// Rates that a rank is assumed to have unless options set them.
struct Rates {
    int node = 8;                             // ranks per machine
    double inside = 370e9, outside = 50e9;    // bytes/s within a machine, between machines
    double flops = 0;                         // achieved FLOP/s
};
// Assumptions for GPUs: a machine has eight, each with a 400 Gb/s network adapter. NVLink sends 370
// of its 450 GB/s (NCCL on H100s). Products reach 45 % of their type's peak (llm.c's 1.6B model on
// H100s: 47 to 49 %). The peak of fp32 is 1/15 of bf16's peak, and that of tf32 is half of it; fp8
// counts as bf16, because it was not measured. From a planned GPU's data sheet, link and peak are
// multiplied by the same fractions.
// Assumptions for CPUs: a machine runs one process and has 10 Gb/s Ethernet. Products reach 60 % of
// their peak (README). With AMX they reach 24 % of the tiles' peak in bf16, and 45 % in fp32
// (dev/speed.md).
Rates assumed_rates(const Trainer& t) {
    const TrainOptions& o = t.o;
    Rates r;
    if (t.device.gpu) {
        const Dtype d = t.device.dtype;
        const double part = d == Dtype::bf16 || is_fp8(d) ? 1 : d == Dtype::tf32 ? 0.5 : 1.0 / 15;
        if (t.device.link > 0) {
            r.inside = 370.0 / 450 * t.device.link;
            r.outside = std::min(r.outside, r.inside);
        }
        r.flops = 0.45 * part * (t.device.peak > 0 ? t.device.peak : 989e12);
    } else {
        r.node = 1;
        r.inside = 10e9;
        r.outside = 1.25e9;
        if (!(o.tflops > 0)) {
            const bool half = t.device.dtype == Dtype::bf16;
            const Peaks peaks = cpu_peaks(half);
            r.flops = (!peaks.tiles ? 0.6 : half ? 0.24 : 0.45) * peaks.products;
        }
    }
    if (o.node_ranks) r.node = o.node_ranks;
    if (o.bandwidth > 0) r.outside = 1e9 * o.bandwidth;
    if (o.tflops > 0) r.flops = 1e12 * o.tflops;
    return r;
}

// Least seconds in which each rank sends `bytes`. A machine has `node` ranks, and `node` rings lead
// through all ranks. Each ring leaves the machine at another rank, so a rank sends 1 / node of its
// machine's outgoing bytes. The rank's other bytes stay within the machine. The links within and
// between machines work at once, so the slower ones determine the time.
double sending_seconds(const Rates& r, int ranks, double bytes) {
    const double node = std::min(r.node, ranks), whole = bytes * ranks / (ranks - 1);
    const double within = whole * (node - 1) / node, out = whole * (ranks - node) / ranks / node;
    return std::max(within / r.inside, out / r.outside);
}

std::string decimal_bytes(double n) { return decimal(n, "B"); }
std::string duration(double seconds) {
    return seconds < 1 ? formatted("%.1f ms", 1e3 * seconds) : formatted("%.2f s", seconds);
}

Status print_ranks(const Trainer& t) {
    const Plan& plan = t.plan;
    const Rates r = assumed_rates(t);
    const CostComm sent = TRY(step_messages(t.device.model->op, t.config, plan, int(t.batches.full)));
    const int node = std::min(r.node, plan.ranks), nodes = int(ceil_div(plan.ranks, node));
    printf("ranks         %d, %d on each of %d machine%s, --zero %d\n", plan.ranks, node, nodes, nodes == 1 ? "" : "s",
           plan.zero);
    std::string parts;
    const double all = sent.sums + sent.gathers + sent.passes;
    if (plan.zero || plan.cp > 1)
        parts = " " + decimal_bytes(sent.sums) + ", parameters " + decimal_bytes(sent.gathers);
    printf("on the wire   each rank sends %s a step in %lld collectives: gradients as %s%s\n",
           decimal_bytes(all).c_str(), (long long)sent.calls, plan.comm_dtype == Element::bf16 ? "bf16" : "fp32",
           parts.c_str());
    if (plan.cp > 1)
        printf("context       %d ranks share each sequence, %d positions each; keys, values and their gradients: %s\n",
               plan.cp, plan.S, decimal_bytes(sent.passes).c_str());
    std::string links = formatted("%.4g GB/s", (nodes == 1 ? r.inside : r.outside) / 1e9);
    if (nodes > 1 && node > 1) links += formatted(" to other machines, %.4g within", r.inside / 1e9);
    const double flops = t.planned_flops() * double(t.o.total_batch) / plan.ranks;
    printf("time          %s of work at %.3g TFLOP/s; beside it at least %s of sending at %s; not measured\n",
           duration(flops / r.flops).c_str(), r.flops / 1e12, duration(sending_seconds(r, plan.ranks, all)).c_str(),
           links.c_str());
    return {};
}
}    // namespace

static std::string rate_text(const Schedule& s) {
    const bool falls = s.decay != Decay::constant, late = s.decay == Decay::wsd;
    std::string text = formatted("%.3g", s.lr);
    if (s.warmup) text += formatted(" from step %lld on", (long long)s.warmup);
    if (late) text += formatted(", up to step %lld", (long long)s.decay_begin + 1);
    return text +
           (falls ? formatted(", then falling to %.3g in step %lld", learning_rate(s, s.steps - 1), (long long)s.steps)
                  : "");
}

// Tokens of a sequence in a step: --seq-len, or those of a source and of its target.
static int sequence_tokens(const Trainer& t) {
    return t.config.encoder_layers ? t.seq2seq.source_length() + t.seq2seq.target_length() : t.o.seq_len;
}
static std::string sequence_text(const Trainer& t) {
    return t.config.encoder_layers
               ? formatted("(%d of a source + %d of a target)", t.seq2seq.source_length(), t.seq2seq.target_length())
               : std::to_string(t.o.seq_len);
}

// Prints data, steps and work; without --data, as far as options determine them.
static void print_run(const Trainer& t) {
    const TrainOptions& o = t.o;
    const bool has_data = t.has_data();
    const std::string mixture = has_data ? t.mixture_text(t.samples_before(o.steps), "              ") : "";
    if (has_data) printf("data          %s\n%s", t.data.source().text().c_str(), mixture.c_str());
    else
        printf(
            "data          none given (--data)%s\n",
            t.vocabulary_assumed ? "; the vocabulary is assumed to be GPT-2's (set it by --tokenizer or --vocab)" : "");
    if (const std::string text = t.task->text(t); !text.empty()) printf("objective     %s\n", text.c_str());
    // --total-batch counts sequences of --seq-len tokens, also where a pair has others.
    const double counted = t.batches.tokens_before(o.steps), ratio = double(sequence_tokens(t)) / o.seq_len;
    const double tokens = counted * ratio, of_step = double(o.total_batch) * ratio;
    const bool at_most = t.config.encoder_layers && t.task->pair != Seq2SeqKind::span_corruption;
    std::string steps = t.plan.rings() > 1 ? formatted(" x %d (%s)", t.plan.rings(), o.cp > 1 ? "rings" : "ranks") : "";
    if (o.batch_warmup) steps += formatted(", from 1 batch on in the first %lld steps", (long long)o.batch_warmup);
    if (o.steps) steps += formatted("; %lld steps = %s tokens", (long long)o.steps, human_count(tokens).c_str());
    if (has_data) steps += formatted(", %.2f epochs", counted / double(std::max<int64_t>(1, t.pass_tokens())));
    printf("step          %s%.0f tokens = %d x %s x %d (accumulated)%s\n", at_most ? "at most " : "", of_step, o.batch,
           sequence_text(t).c_str(), int(t.batches.full), steps.c_str());
    if (o.steps) printf("rate          %s\n", rate_text(t.schedule).c_str());
    const double flops = t.planned_flops() / ratio;
    printf("work          %s per token, %s per step%s\n", decimal(flops, "FLOP").c_str(),
           decimal(flops * of_step, "FLOP").c_str(),
           o.steps ? (", " + decimal(flops * tokens, "FLOP") + " in all").c_str() : "");
    printf("optimizer     %s\n", t.optimizer_text().c_str());
    if (const double before = t.loss->prepare_flops(); before > 0)
        printf("reference     %s, once, before the first step\n", decimal(before, "FLOP").c_str());
}

// Prints, for --table, the parts of a step's work, and what attention's scores would take if they
// were stored.
static void print_parts(const Trainer& t) {
    const Config& c = t.config;
    const int B = t.o.batch, S = t.target_positions(), layers = softmax_layers(c);
    const PartCosts parts = part_costs(t.device.model->op, c, t.plan);
    printf("by part       of a batch of %d x %s tokens and one update, without recomputation; FLOP/B: FLOPs per byte\n",
           B, sequence_text(t).c_str());
    const std::vector<int> COLUMNS = {-24, 12, 12, 12, 12, 9, 7};
    print_table_line(COLUMNS, {"", "parameters", "forward", "backward", "update", "bytes", "FLOP/B"});
    auto line = [&](const std::string& name, const PartCost& part) {
        const Cost all = part.all();
        auto flops = [](const Cost& work) { return work.flops() > 0 ? Cell(decimal(work.flops(), "FLOP")) : Cell(); };
        print_table_line(COLUMNS, {"  " + name, part.parameters ? Cell(part.parameters) : Cell(), flops(part.forward),
                                   flops(part.backward), flops(part.update), decimal_bytes(all.bytes),
                                   all.flops() > 0 ? Cell(all.flops() / all.bytes, "%.3g") : Cell()});
    };
    PartCost total;
    for (size_t i = 0; i < parts.size(); i++) {
        const PartCost& part = parts[i];
        total.parameters += part.parameters;
        total.forward += part.forward;
        total.backward += part.backward;
        total.update += part.update;
        if (part.parameters || part.all().bytes > 0) line(cost_part_name(CostPart(i), layers > 0), part);
    }
    line("total", total);
    if (!layers) return;
    if (c.encoder_layers) {
        const double T = t.plan.source, encoder = T * T, own = double(S) * S, cross = S * T;
        const double all = double(B) * c.NH * (c.encoder_layers * encoder + layers * (own + cross));
        printf("scores        are not stored: %s as fp32 in all\n", human_bytes(4 * all).c_str());
        return;
    }
    const double scores = score_elements(c, B, S);
    printf("scores        %d x %d x %d x %d in each of %d layers are not stored:\n", B, c.NH, S, S, layers);
    printf("              %s a layer as fp32, %s as bf16 (%.0f and %.0f bytes), %s as fp32 in all\n",
           human_bytes(4 * scores).c_str(), human_bytes(2 * scores).c_str(), 4 * scores, 2 * scores,
           human_bytes(4 * scores * layers).c_str());
    printf("              nor is a mask of %d x %d: %s as fp32\n", S, S, human_bytes(4.0 * S * S).c_str());
    printf("crossovers    T = 3 d_k = %d: beyond it a head's scores are more elements than its q, k and v\n", 3 * c.HS);
    printf("              T = d = %d: beyond it q k^T of all positions has more FLOPs than a product of d x d%s\n",
           c.attention_width(), c.attention_width() == c.C ? "" : " (d: all heads' size)");
}

Status Trainer::dry_run() {
    printf("model         %s parameters: %s\n", human_count(double(config_parameters(config))).c_str(),
           config_text(config, config_listed(config)).c_str());
    if (const int64_t trained = trained_parameters(config); trained < config_parameters(config))
        printf("trained       %s of them%s\n", human_count(double(trained)).c_str(),
               config.adapter.any() ? formatted(", in adapters beside %s", config.adapter.base.c_str()).c_str() : "");
    print_run(*this);
    printf("operations    %s\nmemory%s\n", device.text.c_str(), plan.ranks > 1 ? " of a rank" : "");
    std::vector<MemoryRow> rows = TRY(memory_cost(device.model->op, config, plan));
    if (plan.ranks > 1)
        rows.push_back({"scratch of the collectives", collective_scratch(device.model->op, config, plan, device.gpu)});
    TRY(loss->add_memory(rows, o.batch));
    add_report_memory(rows);
    if (device.gpu) rows.push_back({device.planned ? "the driver (a guess)" : "the driver", device.context_bytes});
    else TRY(add_cpu_rows(*this, rows));
    const std::vector<int> COLUMNS = {-42, 12, 0};
    for (const MemoryRow& r : rows)
        print_table_line(COLUMNS, {std::string("  ") + r.purpose, human_bytes(double(r.bytes))});
    const int64_t total = total_bytes(rows);
    print_table_line(COLUMNS, {"  total", human_bytes(double(total)), formatted(" (%lld bytes)", (long long)total)});
    if (o.async_save)
        print_table_line(
            COLUMNS, {"  more in host memory from a checkpoint on", human_bytes(double(TRY(checkpoint_copy(*this)))),
                      " if there is as much, else none"});
    if (config.mask_kind != MaskKind::all) printf("generation    its cache takes %s\n", cache_text(config).c_str());
    if (device.gpu && total > device.total_bytes) advise_memory(*this, total);
    if (o.table) print_parts(*this);
    return plan.ranks > 1 ? print_ranks(*this) : Status{};
}
