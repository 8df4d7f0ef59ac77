// forecast.cpp - forecasts a step: runs the model's own step over a CostTable, with two clocks in
// place of a device and a link.
#include "forecast.h"

#include <algorithm>
#include <cmath>

// ---- one collective -------------------------------------------------------------------------------------------------

// In a ring through all ranks, each rank sends (ranks - 1) / ranks of the bytes. A machine has as
// many rings as ranks, each leaving the machine at another rank, so a rank sends 1 / node of its
// machine's bytes to other machines and the rest within. Both kinds of links work at once, so the
// slower one determines the time.
double collective_seconds(const Cluster& k, int ranks, int passes, double bytes) {
    if (ranks == 1) return 0;
    const double node = std::min(k.node, ranks), nodes = ranks / node;
    const double inside = bytes * (node - 1) / node / k.inside;
    const double outside = bytes * (nodes - 1) / nodes / node / k.outside;
    const double ring = (ranks - nodes) * k.hop_inside + (nodes - 1) * k.hop_outside;
    const double tree = (node - 1) * k.hop_inside + std::ceil(std::log2(nodes)) * k.hop_outside;
    const double hops = passes == 2 && k.trees ? std::min(ring, tree) : ring;
    return k.call + passes * (std::max(inside, outside) + hops);
}

// ---- a step ---------------------------------------------------------------------------------------------------------

namespace {
// The device runs one call after the other; meanwhile the link sends one message after the other.
// Each has a clock.
class Clocks final : public CostComm {
  public:
    Forecast f;
    Clocks(const Cluster& cluster, int n) : CostComm(n), k(cluster) {}

    void work(const Cost& w) {
        const double seconds = w.call.operation == Operation::adamw ? w.bytes / k.memory : w.flops() / k.flops;
        device += seconds;
        f.work += seconds;
    }
    void join(int64_t mark) override {
        const Message& m = messages[size_t(mark)];
        if (m.arrives <= device) return;
        f.*m.waiting += m.arrives - device;
        device = m.arrives;
    }

  private:
    struct Message {
        double arrives;
        double Forecast::*waiting;    // field to which waiting for it is added
    };
    const Cluster& k;
    double device = 0, link_time = 0;    // seconds at which device and link become free
    std::vector<Message> messages = {{0, &Forecast::waiting_for_gradients}};    // by mark

    void message(Kind kind, double whole, Element type) override {
        const bool gather = kind == Kind::all_gather;
        const double seconds = collective_seconds(k, ranks, passes(kind), whole);
        link_time = std::max(link_time, device) + seconds;
        messages.push_back({link_time, gather ? &Forecast::waiting_for_parameters : &Forecast::waiting_for_gradients});
        f.sending += seconds;
        f.collectives++;
        (gather ? f.parameters : type == Element::f64 ? f.verdict : f.gradients) += sends(kind, whole);
        CostComm::message(kind, whole, type);
    }
};
}    // namespace

Forecast forecast(const Workload& w, const Cluster& k) {
    CostTable count(w.op);
    Clocks clocks(k, w.plan.ranks);
    Model model(count.table);
    if (w.plan.ranks > 1) model.store.comm = &clocks;
    if (!model.allocate(w.c, w.plan).ok()) return {.work = INFINITY};
    count.each = [&](const Cost& x) { clocks.work(x); };
    // The second step counts: like later ones, it begins while the last step's parameters arrive.
    run_counted_step(model, w.accumulate);
    clocks.f = {};
    run_counted_step(model, w.accumulate);
    return clocks.f;
}

// ---- advice, scratch ------------------------------------------------------------------------------------------------

std::vector<std::string> forecast_advice(const Workload& w, const Cluster& k) {
    std::vector<std::string> lines;
    auto speed = [&](const Workload& x) { return x.accumulate * x.plan.B / forecast(x, k).step(); };
    const double now = speed(w);
    auto offer = [&](const std::string& what, const Workload& other, const char* but) {
        const double times = speed(other) / now;
        if (times > 1.02) lines.push_back(what + formatted(": %.2f times the tokens/s", times) + but);
    };
    if (w.plan.ranks == 1 || forecast(w, k).efficiency() > 0.95) return lines;
    Workload other = w;
    if (w.op.gradient == Element::f32 && w.plan.comm_dtype == Element::f32) {
        other.plan.comm_dtype = Element::bf16;
        offer("--reduce-dtype bf16", other, "");
    }
    for (int zero = w.plan.zero - 1; zero >= 0; zero--) {
        other = w;
        other.plan.zero = zero;
        offer("--zero " + std::to_string(zero), other, "; takes more memory");
    }
    const int64_t tokens = int64_t(w.accumulate) * w.plan.B * w.plan.S * w.plan.ranks;
    other = w;
    other.plan.B *= 2;
    offer("--batch " + std::to_string(other.plan.B) + " --total-batch " + std::to_string(2 * tokens), other,
          "; takes more memory");
    other = w;
    other.accumulate *= 4;
    offer("--total-batch " + std::to_string(4 * tokens), other, "");
    return lines;
}

int64_t collective_scratch(const Workload& w, bool gpu) {
    const int64_t ranks = w.plan.ranks;
    if (ranks == 1) return 0;
    int64_t largest = 0;
    for (const Bucket& b : config_buckets(w.c, w.plan.ranks)) largest = std::max(largest, b.size);
    const bool casts_to_bf16 = w.op.gradient == Element::f32 && w.plan.comm_dtype == Element::bf16;
    if (gpu) return casts_to_bf16 ? 2 * largest : 0;
    const int64_t message = std::max<int64_t>((4 << 20) / ranks, 256 << 10);
    return ranks * std::min(largest / ranks * element_bytes(w.op.gradient), message);
}
