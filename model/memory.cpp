// memory.cpp - the model's memory: laid out, filled, read, written; and what of it each rank holds.
#include "gpt.h"

#include <algorithm>
#include <type_traits>

// ---- memory ---------------------------------------------------------------------------------------------------------

namespace {
template <class T, class X = T> struct ActivationRow {
    X* Activations<T>::*field;
    int64_t per_token;
    Recompute kept_up_to;    // the strongest recomputation that still keeps it
};

// What a block keeps for its backward, per token.
template <class T> std::vector<ActivationRow<T>> activation_rows(const Config& c) {
    using A = Activations<T>;
    const Recompute never = Recompute::blocks, cheap = Recompute::cheap, none = Recompute::none;
    return {{&A::x, c.C, never},  {&A::ln1, c.C, none}, {&A::qkv, 3 * c.C, cheap}, {&A::atty, c.C, cheap},
            {&A::x2, c.C, cheap}, {&A::ln2, c.C, none}, {&A::fch, c.F, cheap},     {&A::fcg, c.F, none}};
}
template <class T> std::vector<ActivationRow<T, float>> statistic_rows(const Config& c) {
    using A = Activations<T>;
    const Recompute cheap = Recompute::cheap;
    return {{&A::mean1, 1, cheap}, {&A::rstd1, 1, cheap}, {&A::mean2, 1, cheap}, {&A::rstd2, 1, cheap},
            {&A::lse, c.NH, cheap}};
}

// Lays everything out; called twice: with base null to count, then to place.
struct Layout {
    char* base = nullptr;
    int64_t used = 0;
    std::vector<MemoryRow> purposes;

    void purpose(const char* name) {
        // Arrays a power of two apart share cache sets: each purpose starts 17 more cache lines into its page.
        used = round_up(used, 4096) + 64 * 17 * int64_t(purposes.size());
        purposes.push_back({name, used});
    }
    template <class X> void take(X*& p, int64_t n) {
        used = round_up(used, 64);
        p = base ? reinterpret_cast<X*>(base + used) : nullptr;
        used += n * int64_t(sizeof(X));
    }
    void finish() {
        for (size_t i = 0; i < purposes.size(); i++)
            purposes[i].bytes = (i + 1 < purposes.size() ? purposes[i + 1].bytes : used) - purposes[i].bytes;
    }
};

template <class T, class P> void place_activations(Layout& at, Gpt<T, P>& g, int64_t N) {
    const Config& c = g.c;
    at.purpose("activations");
    g.a.resize(size_t(c.L));
    for (int l = 0; l < c.L; l++) {
        Activations<T>& a = g.a[size_t(l)];
        const bool train = g.plan.use == Use::train;    // else nobody reads a block's activations again
        auto place = [&](const auto& rows) {
            for (const auto& row : rows)
                if (l == 0 || (train && g.plan.recompute <= row.kept_up_to)) at.take(a.*row.field, N * row.per_token);
                else a.*row.field = g.a[0].*row.field;
        };
        place(activation_rows<T>(c));
        place(statistic_rows<T>(c));
    }
    for (T** p : {&g.x_last, &g.lnf}) at.take(*p, N * c.C);
    for (float** p : {&g.mean_f, &g.rstd_f, &g.loss_of}) at.take(*p, N);
    for (int** p : {&g.in, &g.staged}) at.take(*p, 16 + 2 * N);
}

template <class T, class P> void lay_out(Layout& at, Gpt<T, P>& g, const Config& c, Plan plan) {
    if (plan.ranks == 1 && !g.comm) plan.zero = 0;    // nobody has the other parts
    g.c = c, g.plan = plan, g.tensors = config_tensors(c, plan.ranks);
    g.buckets = config_buckets(c, plan.ranks), g.flat = config_flat_size(c, plan.ranks);
    const int64_t N = int64_t(plan.B) * plan.S;
    const bool train = plan.use == Use::train;
    at.purpose("parameters");
    at.take(g.params, g.flat);
    g.master = nullptr;
    if (train) {
        at.purpose("gradients");
        const int64_t state = g.flat / (plan.zero ? plan.ranks : 1);
        at.take(g.grads, plan.zero == 2 ? state : g.flat);
        for (int i = 0; i < 3 && plan.zero == 2; i++) {
            int64_t most = 0;
            for (int k = 0; k <= c.L; k++)
                if (g.work_of(k) == i) most = std::max(most, g.buckets[size_t(k)].size);
            at.take(g.work[i], most);
        }
        at.purpose("optimizer state");
        at.take(g.m, state);
        at.used += 64 * 17;
        at.take(g.v, state);
        if (std::is_same_v<P, bf16> && plan.master) at.take(g.master, state);
        at.take(g.decays, g.flat / 64);
        at.take(g.loss_total, 1 + int64_t(g.buckets.size()) + 2 * plan.ranks);
        g.squares = g.loss_total + 1, g.said = g.squares + g.buckets.size();
        at.take(g.step, 1);
    }
    place_activations(at, g, N);
    at.purpose("activation gradients");
    g.dx = g.dt = g.dwide = nullptr;
    if (train)
        for (T** p : {&g.dx, &g.dt}) at.take(*p, N * c.C);
    if (train) at.take(g.dwide, N * std::max(c.F, 3 * c.C));
    at.purpose("logits");
    // Half of all rows at a time, as many as logits_bytes hold at most; from 256 rows on products are at speed.
    const int64_t most = std::min(g.op.logits_bytes / (int64_t(sizeof(T)) * c.Vp()), ceil_div(N, 2));
    g.head_rows = int(std::min(N, round_up(std::max<int64_t>(64, most), 16)));
    at.take(g.head, int64_t(g.head_rows) * c.Vp());
    at.finish();
}
}    // namespace

template <class T, class P> std::vector<MemoryRow> Gpt<T, P>::memory(const Config& config, const Plan& what) const {
    Gpt<T, P> g(op);
    g.comm = comm;
    Layout count;
    lay_out(count, g, config, what);
    count.purposes.push_back({"scratch of the operations", op.scratch_bytes(what.B, what.S, config.C, config.F,
                                                                             config.Vp(), g.head_rows,
                                                                             config.heads())});
    return count.purposes;
}

template <class T, class P> Status Gpt<T, P>::allocate(const Config& config, const Plan& what) {
    TRY(config_check(config));
    CHECK(!arena && what.B > 0 && what.S > 0 && what.S <= config.T, "B=%d S=%d context=%d", what.B, what.S, config.T);
    if (int64_t(what.B) * what.S > INT32_MAX / 4)
        return fail(Exit::usage, "batch x seq-len = %lld tokens at once, %d at most", (long long)what.B * what.S,
                    INT32_MAX / 4);
    Layout count, layout;
    lay_out(count, *this, config, what);
    arena_bytes = count.used;
    arena = op.allocate(arena_bytes);
    results = static_cast<char*>(op.allocate_host(2 * result_bytes()));
    if (!arena || !results)
        return fail(Exit::device,
                    "out of memory: the model needs %.2f GiB in one piece, %.2f GiB are free; a smaller --batch%s "
                    "needs less",
                    double(arena_bytes) / (1 << 30), double(op.free_bytes()) / (1 << 30),
                    what.use == Use::train ? ", or --recompute blocks," : " or --seq-len");
    layout.base = static_cast<char*>(arena);
    lay_out(layout, *this, config, what);
    const int64_t N = int64_t(what.B) * what.S;
    host_in.resize(size_t(IN_HEAD + 2 * N));
    host_loss.resize(size_t(N));
    w = bind<P>(c, plan.ranks, [&](const Tensor& t) { return params + t.offset; });
    here.assign(buckets.size(), 0);
    if (what.use == Use::infer) return {};
    dw = bind<Grad<P>>(c, plan.ranks, [&](const Tensor& t) {
        return made(t.bucket) + (t.offset - buckets[size_t(t.bucket)].offset);
    });
    std::vector<uint8_t> rows(size_t(flat / 64));
    for (const Tensor& t : tensors)
        for (int64_t i = t.offset / 64; i < ceil_div(t.offset + t.size(), 64); i++) rows[size_t(i)] = t.decay;
    op.upload(decays, rows.data(), int64_t(rows.size()));
    return {};
}

template <class T, class P> Gpt<T, P>::~Gpt() {
    if (arena) op.release(arena, arena_bytes);
    if (results) op.release_host(results, 2 * result_bytes());
}

template <class T, class P> void Gpt<T, P>::init(uint64_t seed) {
    const int64_t CHUNK = 1 << 20;
    std::vector<float> host(size_t(std::min(CHUNK, flat)));
    for (size_t i = 0; i < tensors.size(); i++) {
        const Tensor& t = tensors[i];
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02;
        const int64_t size = t.size(), held = t.file_rows * t.cols;    // rows that pad the vocabulary stay zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
#pragma omp parallel for schedule(static)
            for (int64_t k = 0; k < n; k++)
                host[size_t(k)] = from + k >= held       ? 0
                                  : t.init == Init::zero ? 0
                                  : t.init == Init::one
                                      ? 1
                                      : float(std * double(philox_normal(seed, i, uint64_t(from + k))));
            write(Part::weights, t.offset + from, n, host.data());
        }
    }
}

// ---- reading and writing --------------------------------------------------------------------------------------------

template <class T, class P> bool Gpt<T, P>::spread(Part part) const {
    return part == Part::gradients ? plan.zero == 2 : plan.zero && (part != Part::weights || master);
}
template <class T, class P> float* Gpt<T, P>::store(Part part) const {
    return part == Part::m ? m : part == Part::v ? v : master;
}

template <class T, class P> void Gpt<T, P>::read(Part part, int64_t offset, int64_t n, float* to) const {
    heartbeat();
    if (spread(part)) {
        int k = int(buckets.size());
        while (buckets[size_t(--k)].offset > offset) {}
        auto bucket = collected.find({part, k});
        CHECK(bucket != collected.end(), "bucket %d was not collected", k);
        std::copy_n(bucket->second.begin() + (offset - buckets[size_t(k)].offset), n, to);
        return;
    }
    auto get = [&](auto* from) {
        using X = std::remove_pointer_t<decltype(from)>;
        if constexpr (std::is_same_v<X, float>) {
            op.download(to, from + offset, n * int64_t(sizeof(float)));
        } else {
            std::vector<X> host(static_cast<size_t>(n));
            op.download(host.data(), from + offset, n * int64_t(sizeof(X)));
            for (int64_t i = 0; i < n; i++) to[i] = to_float(host[size_t(i)]);
        }
    };
    if (part == Part::gradients) get(grads);
    else if (part == Part::weights && !master) get(params);
    else get(store(part));
}

template <class T, class P> void Gpt<T, P>::write(Part part, int64_t offset, int64_t n, const float* from) {
    heartbeat();
    auto put = [&](auto* to, int64_t at, const float* source, int64_t count) {
        using X = std::remove_pointer_t<decltype(to)>;
        if constexpr (std::is_same_v<X, float>) {
            op.upload(to + at, source, count * int64_t(sizeof(float)));
        } else if (on_host()) {
            for (int64_t i = 0; i < count; i++) to[at + i] = from_float<X>(source[i]);
        } else {
            std::vector<X> host(static_cast<size_t>(count));
            for (int64_t i = 0; i < count; i++) host[size_t(i)] = from_float<X>(source[i]);
            op.upload(to + at, host.data(), count * int64_t(sizeof(X)));
        }
    };
    if (part == Part::weights) put(params, offset, from, n);
    if (part == Part::weights && !master) return;
    if (!spread(part)) return part == Part::gradients ? put(grads, offset, from, n) : put(store(part), offset, from, n);
    CHECK(part != Part::gradients, "nobody writes gradients that are spread");
    for (int k = 0; k < int(buckets.size()); k++) {
        const int64_t begin = std::max(offset, mine(k)), end = std::min(offset + n, mine(k) + part_of(k));
        if (begin < end) put(store(part), shard(k) + begin - mine(k), from + (begin - offset), end - begin);
    }
}

template <class T, class P> bool Gpt<T, P>::holds(Part part, int64_t offset, int64_t n) const {
    if (!spread(part) || part == Part::weights) return true;
    for (int k = 0; k < int(buckets.size()); k++)
        if (std::max(offset, mine(k)) < std::min(offset + n, mine(k) + part_of(k))) return true;
    return false;
}

// One bucket after the other: its parts meet where its gradients are made.
template <class T, class P> void Gpt<T, P>::collect() {
    const std::vector<int> owners = config_owners(c, plan.ranks);
    for (Part part : {Part::weights, Part::m, Part::v}) {
        if (!spread(part)) continue;
        comm->join(comm->mark());
        for (int k = 0; k < int(buckets.size()); k++) {
            float* whole = reinterpret_cast<float*>(made(k));
            op.copy(whole + plan.rank * part_of(k), store(part) + shard(k), part_of(k) * int64_t(sizeof(float)));
            comm->all_gather(whole, part_of(k), Element::f32);
            comm->join(comm->mark());
            if (owners[size_t(k)] != plan.rank) continue;
            std::vector<float>& to = collected[{part, k}];
            to.resize(size_t(buckets[size_t(k)].size));
            op.download(to.data(), whole, int64_t(to.size() * sizeof(float)));
        }
    }
}

template <class T, class P> uint64_t Gpt<T, P>::hash() const {
    if (comm) comm->join(comm->mark());
    std::vector<P> host(size_t(std::min<int64_t>(flat, 1 << 20)));
    uint64_t h = HASH_START;
    for (int64_t at = 0; at < flat; at += int64_t(host.size())) {
        const int64_t bytes = std::min(int64_t(host.size()), flat - at) * int64_t(sizeof(P));
        op.download(host.data(), params + at, bytes);
        h = hash_words(h, host.data(), bytes);
        heartbeat();
    }
    return h;
}

template struct Gpt<float>;
template struct Gpt<double>;
template struct Gpt<bf16>;
template struct Gpt<float, bf16>;
