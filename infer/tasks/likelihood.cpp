// likelihood.cpp - see likelihood.h.
#include "likelihood.h"

#include <algorithm>

#include "base/common.h"
#include "infer/decode/cached_sequences.h"

namespace {
// At least CLUSTER_GROUPS groups with CLUSTER_TOKENS equal first tokens are a cluster, which shares
// these. Smaller clusters would make smaller passes.
constexpr size_t CLUSTER_TOKENS = 32, CLUSTER_GROUPS = 8;
constexpr size_t MOST_SEQUENCES = 1024;    // in the cache
// The cache holds as many times the tokens of a pass, or one group: answers, and prompts that share
// little, have keys and values that no pass counts.
constexpr size_t CACHED_PASSES = 4;

struct Group {
    size_t first, count;    // requests
    size_t shared;          // tokens at the beginning of all requests' inputs
};
struct Cluster {
    std::vector<Group> groups;
    size_t root = 0;    // tokens at the beginning of all groups, before any continuation
};
// Tokens that a pass appends to a sequence, and the requests that their logits score.
struct Section {
    int seq;
    size_t from, to;    // positions
    Group requests;     // the first one has the tokens
};
// Sequence 0 holds the cluster's root. The others belong to the groups that run.
struct GroupBatch {
    size_t first, count;    // groups of the cluster
};

class Scorer {
  public:
    Scorer(Model& g, const std::vector<LikelihoodRequest>& r, const LikelihoodOptions& o)
        : model(g), requests(r), options(o), results(r.size()) {}
    Result<std::vector<Likelihood>> run();

  private:
    // Number of a request's tokens that run: the last one is only a target.
    size_t inputs(size_t request) const { return requests[request].tokens.size() - 1; }
    size_t common(size_t a, size_t b, size_t most) const;
    bool can_share() const { return model.c.linear == LinearAttention::none && model.c.mask_kind == MaskKind::causal; }
    size_t unscored(const Group& group) const;
    std::vector<Group> make_groups() const;
    std::vector<Cluster> make_clusters(std::vector<Group> groups) const;
    size_t pages_of(const Cluster& cluster, const Group& group) const;
    std::vector<GroupBatch> make_batches(const Cluster& cluster) const;
    Status allocate(const std::vector<Cluster>& clusters);
    Status open_cache(const std::vector<Cluster>& clusters);
    void run_batch(const Cluster& cluster, const GroupBatch& batch);
    void run_together(std::vector<Section> sections);
    void pass(const std::vector<Section>& sections);

    Model& model;
    const std::vector<LikelihoodRequest>& requests;
    const LikelihoodOptions& options;
    std::vector<Likelihood> results;
    KvCache cache;
    size_t most_pages = 0;    // limit of a batch with several groups
    int64_t done = 0;
};

// ---- what runs together -------------------------------------------------------------------------

size_t Scorer::common(size_t a, size_t b, size_t most) const {
    const Ids &x = requests[a].tokens, &y = requests[b].tokens;
    most = std::min({most, inputs(a), inputs(b)});
    return size_t(std::mismatch(x.begin(), x.begin() + ptrdiff_t(most), y.begin()).first - x.begin());
}

// A prompt with bidirectional attention is shared only whole, by the request that has it.
std::vector<Group> Scorer::make_groups() const {
    std::vector<Group> groups;
    const bool alone = model.c.mask_kind != MaskKind::causal;
    for (size_t i = 0; i < requests.size(); i++) {
        const size_t all = alone ? std::min(size_t(requests[i].from), inputs(i)) : inputs(i);
        Group* last = groups.empty() ? nullptr : &groups.back();
        const bool joins = last && !alone && requests[last->first].group == requests[i].group;
        const size_t shared = joins ? common(last->first, i, last->shared) : 0;
        if (shared == 0) {
            groups.push_back({i, 1, all});
            continue;
        }
        last->count++;
        last->shared = shared;
    }
    return groups;
}

// Tokens at a group's beginning whose logits predict no token of a continuation.
size_t Scorer::unscored(const Group& group) const {
    size_t most = group.shared;
    for (size_t k = group.first; k < group.first + group.count; k++)
        most = std::min(most, size_t(requests[k].from) - 1);
    return most;
}

std::vector<Cluster> Scorer::make_clusters(std::vector<Group> groups) const {
    std::vector<Cluster> clusters(1);    // the first has no root
    auto tokens_less = [&](const Group& a, const Group& b) {
        return requests[a.first].tokens < requests[b.first].tokens;
    };
    if (can_share()) std::stable_sort(groups.begin(), groups.end(), tokens_less);
    for (size_t i = 0, end; i < groups.size(); i = end) {
        size_t root = unscored(groups[i]);
        for (end = i + 1; end < groups.size() && can_share(); end++) {
            const size_t shared = common(groups[i].first, groups[end].first, std::min(root, unscored(groups[end])));
            if (shared < CLUSTER_TOKENS || 2 * shared < root) break;
            root = shared;
        }
        const bool cluster = end - i >= CLUSTER_GROUPS;
        if (cluster) clusters.push_back({{}, root});
        Cluster& to = cluster ? clusters.back() : clusters[0];
        to.groups.insert(to.groups.end(), groups.begin() + ptrdiff_t(i), groups.begin() + ptrdiff_t(end));
    }
    for (Cluster& cluster : clusters)
        std::stable_sort(cluster.groups.begin(), cluster.groups.end(),
                         [](const Group& a, const Group& b) { return a.shared > b.shared; });
    return clusters;
}

// Most pages that a group's sequences need beside the root's.
size_t Scorer::pages_of(const Cluster& cluster, const Group& group) const {
    size_t pages = size_t(pages_for(int(group.shared))) - cluster.root / Pages::SIZE + 1;
    for (size_t k = group.first; k < group.first + group.count; k++)
        pages += size_t(pages_for(int(inputs(k)))) - group.shared / Pages::SIZE + 1;
    return pages;
}

// Groups in the order of their length, as many as a pass of their beginnings and most_pages hold.
std::vector<GroupBatch> Scorer::make_batches(const Cluster& cluster) const {
    std::vector<GroupBatch> batches;
    size_t longest = 0, sequences = 0, pages = 0;
    for (size_t i = 0; i < cluster.groups.size(); i++) {
        const Group& group = cluster.groups[i];
        const size_t more = std::max<size_t>(group.shared - cluster.root, 1), own_pages = pages_of(cluster, group);
        if (!batches.empty()) {
            GroupBatch& last = batches.back();
            const bool fits = (last.count + 1) * std::max(longest, more) <= size_t(model.plan.max_tokens()) &&
                              sequences + group.count <= MOST_SEQUENCES && pages + own_pages <= most_pages;
            if (fits && (options.groups == 0 || last.count < size_t(options.groups))) {
                last.count++;
                longest = std::max(longest, more);
                sequences += group.count;
                pages += own_pages;
                continue;
            }
        }
        batches.push_back({i, 1});
        longest = more;
        sequences = group.count;
        pages = own_pages;
    }
    return batches;
}

// Allocates sequences and pages for the largest batch.
Status Scorer::allocate(const std::vector<Cluster>& clusters) {
    size_t pages = 0, sequences = 0, longest = 0;
    for (const Cluster& cluster : clusters)
        for (const GroupBatch& batch : make_batches(cluster)) {
            size_t own_pages = size_t(pages_for(int(cluster.root))) + 1, own_sequences = 1;
            for (size_t i = batch.first; i < batch.first + batch.count; i++) {
                const Group& group = cluster.groups[i];
                own_pages += pages_of(cluster, group);
                own_sequences += group.count;
                for (size_t k = group.first; k < group.first + group.count; k++) longest = std::max(longest, inputs(k));
            }
            pages = std::max(pages, own_pages);
            sequences = std::max(sequences, own_sequences);
        }
    CacheOptions kind;
    kind.pages = int(pages);
    return allocate_cache(model, cache, int(sequences), int(longest), kind);
}
// In training, little memory may be left beside gradients and activations: batches become smaller
// until their cache fits.
Status Scorer::open_cache(const std::vector<Cluster>& clusters) {
    most_pages = CACHED_PASSES * size_t(ceil_div(model.plan.max_tokens(), Pages::SIZE)) + 2 * MOST_SEQUENCES;
    Status s = allocate(clusters);
    while (s.code == Exit::device && most_pages > 1) {
        most_pages /= 2;
        s = allocate(clusters);
    }
    return s;
}

// ---- forward passes -----------------------------------------------------------------------------

void Scorer::pass(const std::vector<Section>& sections) {
    std::vector<int> seqs, lengths;
    size_t S = 0;
    for (const Section& p : sections) {
        seqs.push_back(p.seq);
        lengths.push_back(int(p.to - p.from));
        S = std::max(S, p.to - p.from);
    }
    Ids tokens(sections.size() * S);
    std::vector<RowTarget> wanted;
    std::vector<size_t> targeted;    // request of each of `wanted`
    for (size_t b = 0; b < sections.size(); b++) {
        const Section& p = sections[b];
        const Ids& own = requests[p.requests.first].tokens;
        std::copy(own.begin() + ptrdiff_t(p.from), own.begin() + ptrdiff_t(p.to), tokens.begin() + ptrdiff_t(b * S));
        for (size_t pos = p.from; pos < p.to; pos++)
            for (size_t k = p.requests.first; k < p.requests.first + p.requests.count; k++)
                if (pos + 1 >= size_t(requests[k].from)) {
                    wanted.push_back({int(b * S + pos - p.from), requests[k].tokens[pos + 1]});
                    targeted.push_back(k);
                }
    }
    const PendingHead head = extend(model, cache, tokens.data(), int(S), seqs, lengths, Pages::SumOrder::prefill);
    if (wanted.empty()) return;
    std::vector<TokenScore> scores(wanted.size());
    score_tokens(model, head, wanted, options.ranked, scores.data());
    for (size_t i = 0; i < wanted.size(); i++) {
        results[targeted[i]].logprob += double(scores[i].logprob);
        results[targeted[i]].greedy &= scores[i].likeliest;
    }
}

// Runs sections of different sequences in as few passes as the activations allow. The longest come
// first, so that little is padded.
void Scorer::run_together(std::vector<Section> sections) {
    std::stable_sort(sections.begin(), sections.end(),
                     [](const Section& a, const Section& b) { return a.to - a.from > b.to - b.from; });
    for (size_t i = 0, end; i < sections.size(); i = end) {
        const size_t length = sections[i].to - sections[i].from;
        const size_t fit = std::max<size_t>(1, size_t(model.plan.max_tokens()) / std::max<size_t>(length, 1));
        end = std::min(sections.size(), i + fit);
        std::vector<Section> together(sections.begin() + ptrdiff_t(i), sections.begin() + ptrdiff_t(end));
        while (!together.empty()) {
            const size_t most = size_t(chunk_length(model, cache, together.size()));
            std::vector<Section> now, rest;
            for (const Section& p : together) {
                const size_t to = std::min(p.to, p.from + most);
                now.push_back({p.seq, p.from, to, p.requests});
                if (to < p.to) rest.push_back({p.seq, to, p.to, p.requests});
            }
            pass(now);
            together = std::move(rest);
        }
    }
}

void Scorer::run_batch(const Cluster& cluster, const GroupBatch& batch) {
    std::vector<Section> beginnings, ends;
    int seq = 0;
    for (size_t i = batch.first; i < batch.first + batch.count; i++) {
        const Group& group = cluster.groups[i];
        seq++;
        if (cluster.root) cache.table.fork(0, seq);
        if (group.shared > cluster.root) beginnings.push_back({seq, cluster.root, group.shared, group});
        for (size_t k = 0; k < group.count; k++) {
            const size_t request = group.first + k;
            if (inputs(request) > group.shared)
                ends.push_back({seq + int(k), group.shared, inputs(request), {request, 1, 0}});
        }
        seq += int(group.count) - 1;
    }
    run_together(beginnings);
    seq = 0;
    for (size_t i = batch.first; i < batch.first + batch.count; i++) {
        const int first = ++seq;
        for (; seq < first + int(cluster.groups[i].count) - 1; seq++) cache.table.fork(first, seq + 1);
        done += int64_t(cluster.groups[i].count);
    }
    run_together(ends);
    for (int b = 1; b <= seq; b++) cache.table.rewind(b, 0);
    if (options.progress) options.progress(done, int64_t(requests.size()));
}

Result<std::vector<Likelihood>> Scorer::run() {
    if (requests.empty()) return results;
    const std::vector<Cluster> clusters = make_clusters(make_groups());
    TRY(open_cache(clusters));
    for (const Cluster& cluster : clusters) {
        cache.table.rewind(0, 0);
        if (cluster.root) run_together({{0, 0, cluster.root, {cluster.groups[0].first, 0, 0}}});
        for (const GroupBatch& batch : make_batches(cluster)) run_batch(cluster, batch);
    }
    for (Likelihood& l : results) l.greedy &= options.ranked;
    return std::move(results);
}
}    // namespace

Result<std::vector<Likelihood>> likelihoods(Model& model, const std::vector<LikelihoodRequest>& requests,
                                            const LikelihoodOptions& options) {
    for (const LikelihoodRequest& r : requests)
        CHECK(r.from >= 1 && size_t(r.from) < r.tokens.size() && r.tokens.size() <= size_t(model.c.T) + 1,
              "%d of %zu tokens", r.from, r.tokens.size());
    return Scorer(model, requests, options).run();
}
