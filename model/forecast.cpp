// forecast.cpp - the forecast: gpt.cpp's step again, with two clocks instead of a device and a wire.
#include "forecast.h"

#include <algorithm>
#include <cmath>

// ---- one collective -------------------------------------------------------------------------------------------------

// A ring through all ranks carries (ranks - 1) / ranks of the bytes past every rank. As many rings as a machine has
// ranks, each leaving the machine at another one, share the bytes: a rank sends 1 / node of its machine's bytes to
// other machines, the rest within. Both kinds of links work at once: the slower one counts.
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
double wire_bytes(const Workload& w) {
    return double(element_bytes(w.gradients == Element::f32 ? w.plan.wire : w.gradients));
}

// Function by function as in gpt.cpp. The device does one thing after the other, the wire likewise and beside it.
class Simulation {
  public:
    Forecast f;

    Simulation(const Workload& workload, const Cluster& cluster) : w(workload), k(cluster) {
        const Config& c = w.c;
        const double N = double(w.plan.B) * w.plan.S;
        double block = 4.0 * c.C * w.plan.S;
        for (const Tensor& t : config_tensors(c))
            if (t.bucket == 1) block += 2.0 * double(t.size());
        block_forward = N * block / k.flops;
        block_backward = 2 * block_forward;
        if (w.plan.recompute == Recompute::blocks) block_backward += N * (block - 2.0 * c.C * c.F) / k.flops;
        head = N * (config_flops_per_token(c, w.plan.S) - 3.0 * c.L * block) / k.flops;
        buckets = config_buckets(c, w.plan.ranks);
        here.resize(buckets.size());
    }

    void step() {
        for (int i = 0; i < w.accumulate; i++) {
            forward();
            loss();
            backward(i + 1 == w.accumulate);
        }
        update();
    }

  private:
    const Workload& w;
    const Cluster& k;
    std::vector<Bucket> buckets;
    double block_forward, block_backward, head;    // seconds of a batch
    double now = 0, wire = 0;                      // seconds: the device, the wire have done what they were given
    double work_mark[3] = {};
    std::vector<double> here;

    void forward() {
        await(0);
        for (int l = 0; l < w.c.L; l++) {
            await(1 + l);
            work(block_forward);
        }
    }
    void loss() {
        prepare(0);
        work(head);
    }
    void backward(bool last) {
        prepare(w.c.L);
        for (int l = w.c.L - 1; l >= 0; l--) {
            if (l + 1 < w.c.L) prepare(1 + l);
            work(block_backward);
            send(1 + l, last);
        }
        send(0, last);
    }
    void update() {
        join(wire, f.waiting_for_gradients);
        const int64_t numbers = 1 + int64_t(buckets.size()) + 2 * w.plan.ranks;
        join(collective(2, 8.0 * double(numbers), f.verdict), f.waiting_for_gradients);
        if (!w.plan.zero) work(adamw_bytes() * double(config_flat_size(w.c, w.plan.ranks)) / k.memory);
        for (size_t b = 0; b < buckets.size() && w.plan.zero; b++) {
            work(adamw_bytes() * double(buckets[b].size) / w.plan.ranks / k.memory);
            const double bytes = double(buckets[b].size * element_bytes(w.weights));
            here[b] = collective(1, bytes, f.parameters);
        }
    }

    void await(int b) {
        if (w.plan.zero) join(here[size_t(b)], f.waiting_for_parameters);
    }
    void prepare(int b) {
        if (w.plan.zero == 2) join(work_mark[work_of(b)], f.waiting_for_gradients);
    }
    void send(int b, bool last) {
        if (!(last || w.plan.zero == 2)) return;
        const double bytes = double(buckets[size_t(b)].size) * wire_bytes(w);
        work_mark[work_of(b)] = collective(w.plan.zero ? 1 : 2, bytes, f.gradients);
    }
    static int work_of(int b) { return Shards::work_buffer(b); }

    void work(double seconds) {
        now += seconds;
        f.work += seconds;
    }
    void join(double mark, double& waited) {
        if (mark <= now) return;
        waited += mark - now;
        now = mark;
    }
    double collective(int passes, double bytes, double& sent) {
        const int ranks = w.plan.ranks;
        if (ranks == 1) return now;
        const double seconds = collective_seconds(k, ranks, passes, bytes);
        wire = std::max(wire, now) + seconds;
        f.sending += seconds;
        f.collectives++;
        sent += passes * bytes * (ranks - 1) / ranks;
        return wire;
    }
    // Bytes of memory per parameter: gradient read, m and v read and written, and what the weights are kept in.
    double adamw_bytes() const {
        const double weights = double(element_bytes(w.weights));
        const bool master = w.weights == Element::bf16 && w.plan.master;
        return 4 + 16 + (master ? 8 + weights : 2 * weights);
    }
};
}    // namespace

Forecast forecast(const Workload& w, const Cluster& k) {
    Simulation s(w, k);
    s.step();    // the next one begins as all others do: while the parameters of the one before arrive
    s.f = {};
    s.step();
    return s.f;
}

// ---- advice, scratch ------------------------------------------------------------------------------------------------

std::vector<std::string> forecast_advice(const Workload& w, const Cluster& k) {
    std::vector<std::string> lines;
    auto speed = [&](const Workload& x) { return x.accumulate * x.plan.B / forecast(x, k).step(); };
    const double now = speed(w);
    auto offer = [&](const std::string& what, const Workload& other, const char* but) {
        const double times = speed(other) / now;
        char text[32];
        snprintf(text, sizeof text, ": %.2f times the tokens/s", times);
        if (times > 1.02) lines.push_back(what + text + but);
    };
    if (w.plan.ranks == 1 || forecast(w, k).efficiency() > 0.95) return lines;
    Workload other = w;
    if (w.gradients == Element::f32 && w.plan.wire == Element::f32) {
        other.plan.wire = Element::bf16;
        offer("--reduce-dtype bf16", other, "");
    }
    for (int zero = w.plan.zero - 1; zero >= 0; zero--) {
        other = w, other.plan.zero = zero;
        offer("--zero " + std::to_string(zero), other, "; takes more memory");
    }
    const int64_t tokens = int64_t(w.accumulate) * w.plan.B * w.plan.S * w.plan.ranks;
    other = w, other.plan.B *= 2;
    offer("--batch " + std::to_string(other.plan.B) + " --total-batch " + std::to_string(2 * tokens), other,
          "; takes more memory");
    other = w, other.accumulate *= 4;
    offer("--total-batch " + std::to_string(4 * tokens), other, "");
    return lines;
}

int64_t collective_scratch(const Workload& w, bool gpu) {
    const int64_t ranks = w.plan.ranks;
    if (ranks == 1) return 0;
    int64_t largest = 0;
    for (const Bucket& b : config_buckets(w.c, w.plan.ranks)) largest = std::max(largest, b.size);
    const bool narrow = w.gradients == Element::f32 && w.plan.wire == Element::bf16;
    if (gpu) return narrow ? 2 * largest : 0;
    const int64_t message = std::max<int64_t>((4 << 20) / ranks, 256 << 10);
    return ranks * std::min(largest / ranks * element_bytes(w.gradients), message);
}
