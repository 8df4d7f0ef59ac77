// sampling.cu - draws the next token of a few texts on the device: only ids are downloaded.
//
// In double, because draws must equal those of the host's Sampler. Two kernels, for up to 16 rows
// at a time:
//   parts   a block has 1024 tokens of a row: computes their scores, the likeliest token, and
//           prefix sums of their weights exp((score - the part's largest) / temperature). For top-k
//           and top-p it sorts the tokens by likelihood first (Batcher 1968); else ids order them.
//   choose  a block has a row, a thread each part. It finds the likeliest token, or the first at
//           which the sum over all parts exceeds the random number. By ids it finds the part, then
//           the token in it. By likelihood it works in rounds: seven pivots are spread over the
//           remaining tokens; each list counts its tokens before each pivot and sums their weights;
//           then tokens before or behind all candidates are dropped. The cuts of top-k and top-p
//           are found in this way, too. At the end it advances positions for the next step.
// min-p without an order needs the largest score before it sums: the parts are summed twice.
//
// Bound by latency, not by bytes: a block of parts sorts in 55 rounds with a barrier after each;
// 152k tokens are 149 blocks, about one a multiprocessor, and 0.3 to 0.6 MB of logits; lists of 20
// bytes a token stay in L2. Top-p 0.9 and the draw take 9 to 13 rounds together, and 43 to 76
// dependent reads from L2 (normal logits, alike in all lists or rising along the vocabulary; 50k
// and 152k tokens; simulated). One pivot a round took 23 to 36 rounds, 108 to 222 reads; on an H200
// (2026-11-27, 50k) 123 us more than a draw without top-p. No GPU has timed the present rounds.
//
// All sums go over fixed parts in a fixed order: bits do not depend on grid or rows.
#include "cuda.cuh"
#include "sampling.h"

namespace {
constexpr int PART = SampleScratch::PART, THREADS = 256, EACH = PART / THREADS;

enum class Way { likeliest, ids, likelihood };    // no draw; order of a draw

struct Token {
    double score;
    int id;
};
__device__ inline bool before(const Token& a, const Token& b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}
__device__ inline Token block_first(Token own) {
    return block_reduce(own, Token{-INFINITY, INT32_MAX}, [](Token a) {
#pragma unroll
        for (int bit = 16; bit; bit >>= 1) {
            const Token b = {__shfl_xor_sync(0xffffffff, a.score, bit), __shfl_xor_sync(0xffffffff, a.id, bit)};
            if (before(b, a)) a = b;
        }
        return a;
    });
}
// Inclusive prefix sum over the block's threads, and the sum over all.
template <class X> struct Sums { X to_here, all; };
template <class X> __device__ inline Sums<X> block_sums(X x) {
    SHARED(X[32], of_warp);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const X left = __shfl_up_sync(0xffffffff, x, by);
        if (lane >= by) x += left;
    }
    if (lane == 31) of_warp[warp] = x;
    __syncthreads();
    X earlier = 0, all = 0;
    for (int w = 0; w < warps; w++) {
        if (w == warp) earlier = all;
        all += of_warp[w];
    }
    __syncthreads();    // the next sums must not overwrite these
    return {earlier + x, all};
}

// Data between the kernels (SampleScratch). Each part has a list: its tokens, by likelihood or by
// id, and the prefix sums of their weights. In a list by id, the sum at a token without weight is
// -inf, so the token is never drawn.
struct Lists {
    double *score, *sum, *top, *base, *all;    // base: reference score of weights; all: their sum
    int *id, *first, *length;                  // first: the likeliest token
    Lists(void* scratch, const SampleScratch& s) {
        score = static_cast<double*>(scratch), sum = score + s.tokens;
        top = sum + s.tokens, base = top + s.lists, all = base + s.lists;
        id = reinterpret_cast<int*>(all + s.lists), first = id + s.tokens, length = first + s.lists;
    }
};

// ---- parts --------------------------------------------------------------------------------------

// Sorts the first n of the block's tokens, n a power of two, likeliest first.
__device__ inline void sort(Token* tokens, int n) {
    for (int size = 2; size <= n; size *= 2)
        for (int by = size / 2; by > 0; by /= 2) {
            for (int i = threadIdx.x; i < n / 2; i += THREADS) {
                const int a = 2 * i - (i & (by - 1)), b = a + by;
                const Token left = tokens[a], right = tokens[b];
                if (before(right, left) == ((a & size) == 0)) tokens[a] = right, tokens[b] = left;
            }
            __syncthreads();
        }
}

// Computes the lists of all parts. again: the second pass, for min-p; weights are then relative to
// the row's largest score, and weights below min_p count as 0.
template <class T, Way way> __global__ void __launch_bounds__(THREADS)
    parts_kernel(Lists to, const T* logits, const int* token_counts, const double* bias, const SampleState* at,
                 SampleParams d, Logits z, int V, int Vp, bool again) {
    SHARED(Token[PART], tokens);
    const int n = blockIdx.y, from = blockIdx.x * PART, mine = threadIdx.x * EACH;
    const int64_t list = int64_t(n) * gridDim.x + blockIdx.x;
    const T* row = logits + int64_t(n) * Vp;
    if (token_counts) token_counts += at[n].text * V;
    Token own[EACH], top = {-INFINITY, INT32_MAX};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int v = from + mine + i;
        own[i] = {-INFINITY, v};
        if (v >= V) continue;
        own[i].score =
            score_of(logit_of(to_float(row[v]), z), bias ? bias[v] : 0, token_counts ? token_counts[v] : 0, d);
        if (before(own[i], top)) top = own[i];
    }
    top = block_first(top);
    double base = top.score, least = 0;
    if (again) {
        Token best = {-INFINITY, INT32_MAX};
        for (int part = threadIdx.x; part < int(gridDim.x); part += THREADS)
            best.score = fmax(best.score, to.top[int64_t(n) * gridDim.x + part]);
        base = block_first(best).score, least = d.min_p;
    } else if (threadIdx.x == 0) to.top[list] = top.score, to.first[list] = top.id;
    if (way == Way::likeliest) return;

    if (way == Way::likelihood) {
        int size = EACH;
        while (size < PART && size < V - from) size *= 2;
#pragma unroll
        for (int i = 0; i < EACH; i++) tokens[mine + i] = own[i];
        __syncthreads();
        sort(tokens, size);
#pragma unroll
        for (int i = 0; i < EACH; i++) own[i] = tokens[mine + i];
    }
    double weight[EACH], sum = 0;
    int length = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        weight[i] = weight_of(own[i].score, base, d);
        if (weight[i] < least) weight[i] = 0;
        sum += weight[i], length += weight[i] > 0;
    }
    const Sums<double> sums = block_sums(sum);
    double upto = sums.to_here - sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t index = list * PART + mine + i;
        upto += weight[i];
        to.sum[index] = way == Way::likelihood || weight[i] > 0 ? upto : -INFINITY;
        if (way == Way::likelihood) to.score[index] = own[i].score, to.id[index] = own[i].id;
    }
    length = block_sums(length).all;
    if (threadIdx.x == 0) to.base[list] = base, to.all[list] = sums.all, to.length[list] = length;
}

// ---- choose -------------------------------------------------------------------------------------

// The list of this thread's part. Its first `length` tokens are still candidates.
struct List {
    const double *score, *sum;
    const int* id;
    int length;
    double factor;    // for its weights
    __device__ Token operator[](int i) const { return {score[i], id[i]}; }
    __device__ double weight(int n) const { return n > 0 ? factor * sum[n - 1] : 0; }    // weight of the first n
};

// Pivot: token n of the list of thread `list`. At equal scores the token of the earlier list comes
// first, because lists are in the order of their tokens' ids.
struct Pivot {
    double score;
    int list, n;
};
// n[i]: number of this thread's tokens that come before pivot i, known to lie between early and
// late. All binary searches advance together, so that each step waits for memory once.
template <int P>
__device__ inline void count_before(int (&n)[P], const List& list, int early, int late, const Pivot (&pivots)[P]) {
    const int t = int(threadIdx.x);
    for (int& x : n) x = early;
    int step = 1;
    while (2 * step <= late - early) step *= 2;
    for (; early < late && step > 0; step /= 2) {
        double score[P];
#pragma unroll
        for (int i = 0; i < P; i++) score[i] = list.score[min(n[i] + step, late) - 1];
#pragma unroll
        for (int i = 0; i < P; i++)
            if (n[i] + step <= late &&
                (score[i] > pivots[i].score || (score[i] == pivots[i].score && t < pivots[i].list)))
                n[i] += step;
    }
    for (int i = 0; i < P; i++)
        if (pivots[i].list == t) n[i] = pivots[i].n;
}
// Shortens the list for top-k: cuts off tokens behind the k-th likeliest of the lists' first
// tokens, because k likelier tokens precede them.
__device__ inline void cut_by_firsts(List& list, int k) {
    SHARED(Token[1024], firsts);
    const int lists = blockDim.x;
    const Token none = {-INFINITY, INT32_MAX}, own = list.length > 0 ? list[0] : none;
    firsts[threadIdx.x] = own;
    __syncthreads();
    int rank = 0;
    for (int i = 0; i < lists; i++) rank += before(firsts[i], own);
    const Token last = block_first(rank == k - 1 ? own : none);
    if (last.id == none.id) return;
    const Pivot pivot[1] = {{last.score, last.id / PART, 0}};
    int n[1];
    count_before(n, list, 0, list.length, pivot);
    list.length = n[0] + (pivot[0].list == int(threadIdx.x));
}

// Each thread has a sorted list; value(n) is the weight, or the number, of its first n tokens.
// Finds the first token, by likelihood over all lists, at which the sum of values is enough(), and
// cuts off all tokens behind it. Returns its id, or -1 if no sum is enough. If the sum before a
// pivot is enough, the result comes before the pivot; else it is the pivot or a later token.
constexpr int PIVOTS = 7;    // with 8, registers spill on sm_100
struct PivotSums {
    double x[PIVOTS];
};    // weights, or number, of tokens before each pivot
template <class Value, class Enough> __device__ int cut(List& list, Value value, Enough enough) {
    SHARED(Pivot[PIVOTS], pivots);
    SHARED(int, id);
    if (!enough(block_sum(value(list.length)))) return -1;
    int early = 0, late = list.length;    // tokens too early; tokens not too late
    for (;;) {
        const int length = late - early;
        const Sums<int> left = block_sums(length);
        if (left.all == 1) break;
#pragma unroll
        for (int i = 0; i < PIVOTS; i++) {    // spread over the vocabulary and over each list
            const int rank = int(left.all * (2 * i + 1LL) / (2 * PIVOTS)) - (left.to_here - length);
            if (rank < 0 || rank >= length) continue;
            const int n = early + (left.all <= PIVOTS ? rank : length * (2 * (5 * i % PIVOTS) + 1) / (2 * PIVOTS));
            pivots[i] = {list.score[n], int(threadIdx.x), n};
        }
        __syncthreads();
        int n[PIVOTS];
        count_before(n, list, early, late, pivots);
        PivotSums own;
#pragma unroll
        for (int i = 0; i < PIVOTS; i++) own.x[i] = value(n[i]);
        const PivotSums all = block_reduce(own, PivotSums{}, [](PivotSums x) {
            for (double& sum : x.x) sum = warp_sum(sum);
            return x;
        });
        for (int i = 0; i < PIVOTS; i++)
            if (enough(all.x[i])) late = min(late, n[i]);
            else early = max(early, n[i]);
    }
    if (early < late) id = list.id[early];
    __syncthreads();
    list.length = late;
    return id;
}

__device__ int draw_by_likelihood(List& list, double top, const SampleParams& d, const SampleState& at) {
    auto weight = [&](int n) { return list.weight(n); };
    auto all = [&] { return block_sum(list.weight(list.length)); };
    if (d.top_k > 0) cut_by_firsts(list, d.top_k);
    if (d.top_k > 0)
        cut(
            list, [](int n) { return double(n); }, [&](double n) { return n >= d.top_k; });
    if (d.top_p < 1) {
        const double part = d.top_p * all();
        cut(list, weight, [&](double sum) { return sum > 0 && sum >= part; });    // top-p 0 leaves one token
    }
    if (d.min_p > 0) {
        int n = 0;
        for (int end = list.length; n < end;) {
            const int middle = (n + end) / 2;
            if (weight_of(list.score[middle], top, d) < d.min_p) end = middle;
            else n = middle + 1;
        }
        list.length = n;
    }
    const double part = random_part(all(), d, at);
    return cut(list, weight, [&](double sum) { return sum > part; });
}

// Returns the drawn token, or -1 if rounding leaves none.
__device__ int draw_by_ids(const Lists& from, int64_t first_list, int parts, double factor, const SampleParams& d,
                           const SampleState& at) {
    SHARED(int, part);
    SHARED(double, rest);
    const int t = threadIdx.x;
    const double own = t < parts ? factor * from.all[first_list + t] : 0;
    const Sums<double> sums = block_sums(own);
    const double drawn = random_part(sums.all, d, at);
    const int found = int(block_first({0, own > 0 && sums.to_here > drawn ? t : INT32_MAX}).id);
    if (found == INT32_MAX) return -1;
    if (t == found) part = t, rest = (drawn - (sums.to_here - own)) / factor;
    __syncthreads();
    const double* sum = from.sum + (first_list + part) * PART;
    int id = INT32_MAX;
    for (int i = PART - 1 - t; i >= 0; i -= blockDim.x)
        if (sum[i] > rest) id = i;
    id = block_first({0, id}).id;
    return id == INT32_MAX ? -1 : part * PART + id;
}

// A block draws for one row; each thread has a part of the vocabulary.
template <Way way> __global__ void __launch_bounds__(1024, 1)
    choose_kernel(int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos, const Lists from,
                  SampleParams d, int V, int parts) {
    const int n = blockIdx.x, t = threadIdx.x;
    const int64_t first_list = int64_t(n) * parts, own = first_list + (t < parts ? t : 0);
    const Token top = block_first(t < parts ? Token{from.top[own], from.first[own]} : Token{-INFINITY, INT32_MAX});
    int id = -1;
    if (way != Way::likeliest && fabs(top.score) < INFINITY) {
        const double factor = t < parts ? weight_of(from.base[own], top.score, d) : 0;
        if (way == Way::likelihood) {
            List list = {from.score + own * PART, from.sum + own * PART, from.id + own * PART,
                         t < parts ? from.length[own] : 0, factor};
            id = draw_by_likelihood(list, top.score, d, at[n]);
        } else id = draw_by_ids(from, first_list, parts, factor, d, at[n]);
    }
    if (t != 0) return;
    if (id < 0) id = top.id;
    ids[n] = id;
    if (token_counts) {
        int& count = token_counts[at[n].text * V + id];
        count = count_token(count);
    }
    // Kernels of the next step read these positions before they wait for the previous kernel
    // (Launch::overlaps), but never too early: the embedding lets these kernels start only after
    // this kernel's end.
    at[n].pos++;
    if (cache_pos) cache_pos[n]++;
    if (pos) pos[n]++;
}

template <class T, Way way> void run(int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos,
                                     const T* logits, const double* bias, SampleParams d, Logits z, int N, int V,
                                     int Vp) {
    for (int n = 0; n < N; n += SampleScratch::ROWS) {
        const int rows = N - n < SampleScratch::ROWS ? N - n : SampleScratch::ROWS;
        const SampleScratch s(rows, V);
        const Lists lists(cuda_scratch(s.bytes), s);
        const Launch grid = {dim3(unsigned(s.parts), unsigned(rows)), dim3(THREADS)};
        for (bool again : {false, true})
            if (!again || (way == Way::ids && d.min_p > 0))
                launch(parts_kernel<T, way>, grid, lists, logits + int64_t(n) * Vp, token_counts, bias, at + n, d, z, V,
                       Vp, again);
        const Launch threads = {dim3(unsigned(rows)), dim3(unsigned(round_up(s.parts, 32)))};
        launch(choose_kernel<way>, threads, ids + n, token_counts, at + n, cache_pos ? cache_pos + n : nullptr,
               pos ? pos + n : nullptr, lists, d, V, s.parts);
    }
}
template <class T> void sample(int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos, const T* logits,
                               const double* bias, SampleParams d, Logits z, int N, int V, int Vp) {
    CHECK(V <= SampleParams::MAX_VOCAB, "%d tokens", V);
    if (d.top_k >= V) d.top_k = 0;
    auto with = [&](auto way) { run<T, way>(ids, token_counts, at, cache_pos, pos, logits, bias, d, z, N, V, Vp); };
    if (d.temperature == 0) with(std::integral_constant<Way, Way::likeliest>());
    else if (d.top_k > 0 || d.top_p < 1) with(std::integral_constant<Way, Way::likelihood>());
    else with(std::integral_constant<Way, Way::ids>());
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) { o.sample = sample<T>; });
}    // namespace
