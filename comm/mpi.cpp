// mpi.cpp - collectives of CPU ranks. MPI only moves bytes; sums are computed here, so that they
// have equal bits on every rank, in every run and with every MPI.
//
//   all_reduce      rank r receives the r-th piece of x from all ranks, adds in rank order, sends
//                   the sum to all ranks: each rank sends 2 (ranks - 1) / ranks times the size of x
//   reduce_scatter  does the first half of all_reduce, with equal additions
//   all_gather      does the second half of all_reduce
//   broadcast       a rank sends x to all ranks
//   pass_on         each rank sends its array to the next one of its ring
//   a few KiB       in all_reduce, every rank sends x to all, and each adds: one round, not two
//
// comm_dtype bf16: sent elements are rounded to bf16, except in an all_reduce of a few KiB. Each
// rank adds in float, its own piece unrounded. In all_reduce it rounds the sum before it sends it,
// and keeps the rounded sum, so all ranks have equal sums. One thread calls MPI, one collective at
// a time.
//
// MPI is loaded on demand, never linked: the binary runs where no MPI is installed.
#include "comm.h"

#include "base/memory.h"

#include <cstring>

std::string mpi_broadcast(Comm& mpi, const std::string& of_rank_0) {
    double length = mpi.rank == 0 ? double(of_rank_0.size()) : 0;
    mpi.all_reduce(&length, 1, Element::f64, Element::f64);
    mpi.join(mpi.mark());
    const int64_t n = round_up(int64_t(length), 64);
    std::string rows(size_t(n * mpi.ranks), '\0');
    if (mpi.rank == 0) memcpy(rows.data(), of_rank_0.data(), of_rank_0.size());
    mpi.all_gather(rows.data(), n / element_bytes(Element::bf16), Element::bf16);
    mpi.join(mpi.mark());
    return rows.substr(0, size_t(length));
}

#ifndef HAVE_MPI    // built without mpi.h
static const char without[] = "this binary was built without MPI: install libopenmpi-dev and make again";
Status mpi_available() { return fail(Exit::peer, "%s", without); }
Result<std::unique_ptr<Comm>> mpi_open(const RankInfo&) { return mpi_available(); }
#else
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>
#include <type_traits>

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

namespace {
// ---- the library --------------------------------------------------------------------------------

// clang-format mistakes a list of macro calls for an expression.
// clang-format off
#define MPI_FUNCTIONS(X) \
    X(Init_thread) X(Finalize) X(Get_library_version) X(Comm_rank) X(Comm_size) X(Comm_set_errhandler) \
    X(Error_string) X(Isend) X(Irecv) X(Testall)
// clang-format on
#define MPI_POINTER(f) decltype(&MPI_##f) f;
struct Library {
    MPI_FUNCTIONS(MPI_POINTER)
    MPI_Comm world;
    MPI_Datatype byte;
    MPI_Errhandler errors_return;
};
#ifdef OPEN_MPI    // its constants are addresses in the library
const char* const NAMES[] = {"libmpi.so.40", "libmpi.so"};
const char PACKAGE[] = "openmpi-bin";
#define CONSTANT(lib, field, symbol, constant) find(lib, symbol, &field)
// Without one of these variables Open MPI's MPI_Init starts a world of 1, or ends the process.
bool launched() { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_RANK"); }
#else
const char* const NAMES[] = {"libmpi.so.12", "libmpich.so.12", "libmpi.so"};
const char PACKAGE[] = "mpich";
#define CONSTANT(lib, field, symbol, constant) (field = constant, true)
bool launched() { return true; }
#endif

template <class P> bool find(void* lib, const char* symbol, P* to) {
    *to = reinterpret_cast<P>(dlsym(lib, symbol));
    return *to != nullptr;
}
Result<Library> load() {
    void* lib = nullptr;
    for (const char* name : NAMES)    // RTLD_GLOBAL, because MPI's plugins need its symbols
        if (!lib) lib = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!lib) return fail(Exit::peer, "%s is not here: install %s", NAMES[0], PACKAGE);
    Library l = {};
#define MPI_FOUND(f) find(lib, "MPI_" #f, &l.f)&&
    const bool all = MPI_FUNCTIONS(MPI_FOUND) CONSTANT(lib, l.world, "ompi_mpi_comm_world", MPI_COMM_WORLD) &&
                     CONSTANT(lib, l.byte, "ompi_mpi_byte", MPI_BYTE) &&
                     CONSTANT(lib, l.errors_return, "ompi_mpi_errors_return", MPI_ERRORS_RETURN);
    if (!all) return fail(Exit::peer, "%s is another MPI than the one this binary was built with", NAMES[0]);
    return l;
}
const Result<Library>& library() {
    static const Result<Library> l = load();
    return l;
}

// "Open MPI v4.1.4, package: ..." -> "Open MPI 4.1.4"; "MPICH Version:  4.0.2" -> "MPICH 4.0.2"
std::string version(const Library& l) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    l.Get_library_version(text, &length);
    std::istringstream words(std::string(text, strcspn(text, ",\n")));
    std::string result;
    for (std::string w; words >> w;) {
        if (w == "Version:") continue;
        if (w.size() > 1 && w[0] == 'v' && isdigit(static_cast<unsigned char>(w[1]))) w.erase(0, 1);
        result += (result.empty() ? "" : " ") + w;
    }
    return result;
}

// ---- sums ---------------------------------------------------------------------------------------

template <class T> using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
inline double wide(double x) { return x; }
template <class T> float wide(T x) { return to_float(x); }

template <class S, class T> void add(S* sum, const T* x, int64_t n, bool first) {
    if (first)
        for (int64_t i = 0; i < n; i++) sum[i] = wide(x[i]);
    else
        for (int64_t i = 0; i < n; i++) sum[i] += wide(x[i]);
}
template <class To, class From> void convert(To* to, const From* x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if constexpr (std::is_same_v<To, bf16>) to[i] = to_bf16(x[i]);
        else to[i] = wide(x[i]);
}

// out (n) = sum over ranks, in rank order. own (n): this rank's terms, may alias out; stage
// (ranks,stride): the other ranks' rows. One thread adds, because the other threads compute, and
// because received rows are still in this core's cache.
template <class T, class W>
void sum_rows(T* out, const T* own, const W* stage, int64_t stride, int64_t n, int rank, int ranks) {
    constexpr int64_t BLOCK = 1024;
    alignas(64) Sum<T> sum[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t block = std::min(BLOCK, n - i);
        for (int r = 0; r < ranks; r++)
            if (r == rank) add(sum, own + i, block, r == 0);
            else add(sum, stage + r * stride + i, block, r == 0);
        convert(out + i, sum, block);
    }
}

// ---- messages -----------------------------------------------------------------------------------

constexpr int64_t SMALL = 4096;    // bytes below which all ranks send to all
template <class T> constexpr int64_t LARGEST = int64_t(1 << 30) / int64_t(sizeof(T));    // elements of a message

struct Job {
    enum Kind { all_reduce, reduce_scatter, all_gather, broadcast, pass_on } kind;
    void *out, *x;
    int64_t n;
    Element type, comm_dtype;
    int from = 0;                  // broadcast's sender
    int next = 0, previous = 0;    // pass_on's ranks; it sends x and receives out
};
struct Buffer {
    void* p;
    int64_t n;
};
template <class T> Buffer bytes(T* p, int64_t n) { return {p, n * int64_t(sizeof(T))}; }

// x (n) as a matrix (ranks,row) whose last rows are short or empty; sent in chunks of `chunk`
// columns.
template <class T> struct Rows {
    T* x;
    int64_t n, row, chunk;
    T* at(int r, int64_t column) const { return x + r * row + column; }
    int64_t length(int r, int64_t column) const {
        return std::clamp<int64_t>(std::min(row, n - r * row) - column, 0, chunk);
    }
    Buffer piece(int r, int64_t column) const { return bytes(at(r, column), length(r, column)); }
};
int64_t row_of(int64_t n, int ranks) { return round_up(ceil_div(n, ranks), 64); }

class CollectiveRunner {
  public:
    Library mpi = {};
    int rank = 0, ranks = 1;

    ~CollectiveRunner() { free(stage); }
    void run(const Job& job) {
        if (job.type == Element::f64) run<double, double>(job);
        else if (job.type == Element::bf16) run<bf16, bf16>(job);
        else if (job.comm_dtype == Element::bf16) run<float, bf16>(job);
        else run<float, float>(job);
    }
    void check_mpi(int rc, const char* what) const {
        if (rc == MPI_SUCCESS) return;
        char text[MPI_MAX_ERROR_STRING] = "";
        int length;
        mpi.Error_string(rc, text, &length);
        fprintf(stderr, "rank %d: MPI_%s failed: %s\n", rank, what, text);
        sleep(5);    // a rank has usually died: the coordinator reports it first
        end_process(Exit::peer);
    }

  private:
    std::vector<MPI_Request> requests;
    char* stage = nullptr;
    int64_t stage_bytes = 0;

    template <class T, class W> void run(const Job& job) {
        T *x = static_cast<T*>(job.x), *out = static_cast<T*>(job.out);
        const int64_t n = job.n;
        if (ranks == 1) {
            if (out && out != x) memcpy(out, x, size_t(n) * sizeof(T));
        } else if (job.kind == Job::all_reduce && n * int64_t(sizeof(T)) <= SMALL) {
            T* others = staged<T>(ranks * n);
            exchange([&](int) { return bytes(x, n); }, [&](int r) { return bytes(others + r * n, n); });
            sum_rows(x, x, others, n, n, rank, ranks);
        } else if (job.kind == Job::pass_on) {
            for (int64_t i = 0; i < n; i += LARGEST<T>) {
                const int64_t size = std::min(LARGEST<T>, n - i);
                exchange([&](int r) { return bytes(x + i, r == job.next ? size : 0); },
                         [&](int r) { return bytes(out + i, r == job.previous ? size : 0); });
            }
        } else if (job.kind == Job::broadcast) {
            for (int64_t first = 0; first < n; first += LARGEST<T>) {
                const Buffer whole = bytes(x + first, std::min(LARGEST<T>, n - first)), nothing = {x, 0};
                exchange([&](int) { return rank == job.from ? whole : nothing; },
                         [&](int r) { return r == job.from ? whole : nothing; });
            }
        } else if (job.kind == Job::all_gather) {
            const Rows<T> rows = {x, n * ranks, n, LARGEST<T>};
            for (int64_t column = 0; column < n; column += rows.chunk) gather(rows, column);
        } else if (job.kind == Job::reduce_scatter) {
            const Rows<T> rows = {x, n * ranks, n, mpi_chunk(n, ranks, sizeof(T))};
            for (int64_t column = 0; column < n; column += rows.chunk) scatter<T, W>(out + column, rows, column);
        } else {
            const int64_t row = row_of(n, ranks);
            const Rows<T> rows = {x, n, row, mpi_chunk(row, ranks, sizeof(T))};
            for (int64_t column = 0; column < row; column += rows.chunk) {
                scatter<T, W>(rows.at(rank, column), rows, column);
                if constexpr (std::is_same_v<T, W>) gather(rows, column);
                else gather_rounded<W>(rows, column);
            }
        }
    }
    // Adds one chunk of this rank's row over all ranks, from `column` on, and writes the sum to
    // `out`.
    template <class T, class W> void scatter(T* out, const Rows<T>& rows, int64_t column) {
        const int64_t n = rows.length(rank, column), padded = ranks * rows.chunk;
        W* from = staged<W>(std::is_same_v<T, W> ? padded : 2 * padded);
        auto received = [&](int r) { return bytes(from + r * rows.chunk, n); };
        if constexpr (std::is_same_v<T, W>) {
            exchange([&](int r) { return rows.piece(r, column); }, received);
        } else {
            W* to = from + padded;
            for (int r = 0; r < ranks; r++)
                if (r != rank) convert(to + r * rows.chunk, rows.at(r, column), rows.length(r, column));
            exchange([&](int r) { return bytes(to + r * rows.chunk, rows.length(r, column)); }, received);
        }
        sum_rows(out, rows.at(rank, column), from, rows.chunk, n, rank, ranks);
    }
    // Sends one chunk of this rank's row to all other ranks, and receives the same chunk of each
    // other rank's row.
    template <class T> void gather(const Rows<T>& rows, int64_t column) {
        exchange([&](int) { return rows.piece(rank, column); }, [&](int r) { return rows.piece(r, column); });
    }
    template <class W, class T> void gather_rounded(const Rows<T>& rows, int64_t column) {
        W* moved = staged<W>(ranks * rows.chunk);
        auto piece = [&](int r) { return bytes(moved + r * rows.chunk, rows.length(r, column)); };
        convert(moved + rank * rows.chunk, rows.at(rank, column), rows.length(rank, column));
        exchange([&](int) { return piece(rank); }, piece);
        for (int r = 0; r < ranks; r++) convert(rows.at(r, column), moved + r * rows.chunk, rows.length(r, column));
    }
    // Sends buffer send(r) to each other rank r, and receives from rank r into buffer receive(r).
    template <class Send, class Receive> void exchange(Send send, Receive receive) {
        requests.clear();
        for (int s = 1; s < ranks; s++) {
            const int r = (rank + ranks - s) % ranks;
            if (const Buffer b = receive(r); b.n)
                check_mpi(mpi.Irecv(b.p, int(b.n), mpi.byte, r, 0, mpi.world, &requests.emplace_back()), "Irecv");
        }
        for (int s = 1; s < ranks; s++) {    // each rank sends to a different one first
            const int r = (rank + s) % ranks;
            if (const Buffer b = send(r); b.n)
                check_mpi(mpi.Isend(b.p, int(b.n), mpi.byte, r, 0, mpi.world, &requests.emplace_back()), "Isend");
        }
        wait();
    }
    // Polls MPI, which moves no bytes otherwise. After a millisecond it sleeps between polls, which
    // frees the core for computation while a slower rank is behind.
    void wait() {
        using namespace std::chrono;
        const auto start = steady_clock::now();
        for (int done = 0;;) {
            check_mpi(mpi.Testall(int(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "Testall");
            if (done) return;
            if (steady_clock::now() - start < milliseconds(1)) sched_yield();
            else std::this_thread::sleep_for(microseconds(50));
        }
    }
    template <class T> T* staged(int64_t n) {
        if (const int64_t need = round_up(n * int64_t(sizeof(T)), 64); need > stage_bytes) {
            free(stage);
            stage = static_cast<char*>(aligned_alloc(64, size_t(need)));
            if (!stage) out_of_memory();
            stage_bytes = need;
        }
        return reinterpret_cast<T*>(stage);
    }
};

// ---- the engine ---------------------------------------------------------------------------------

const char LAUNCH_ADVICE[] = ": start the ranks by this MPI's own mpirun, under Slurm by `srun --mpi=pmix`";

class Mpi final : public Comm {
  public:
    Status status;    // result of MPI's start

    explicit Mpi(const RankInfo& info) {
        rank = info.rank;
        ranks = info.ranks;
        runner.mpi = library().value, runner.rank = rank, runner.ranks = ranks;
        start();
    }
    std::string name() const override { return "MPI (" + version(runner.mpi) + ")"; }
    void all_reduce(void* x, int64_t n, Element type, Element comm_dtype) override {
        enqueue({Job::all_reduce, nullptr, x, n, type, comm_dtype});
    }
    void reduce_scatter(void* out, void* x, int64_t n, Element type, Element comm_dtype) override {
        enqueue({Job::reduce_scatter, out, x, n, type, comm_dtype});
    }
    void all_gather(void* x, int64_t n, Element type) override {
        enqueue({Job::all_gather, nullptr, x, n, type, type});
    }
    void broadcast(void* x, int64_t n, Element type, int from) override {
        enqueue({Job::broadcast, nullptr, x, n, type, type, from});
    }
    void pass_on(void* to, const void* from, int64_t n, Element type, int ring) override {
        enqueue({Job::pass_on, to, const_cast<void*>(from), n, type, type, 0, neighbour(ring, 1), neighbour(ring, -1)});
    }
    int64_t mark() override { return enqueued; }
    void join(int64_t mark) override { wait_until(mark); }

  private:
    static constexpr int64_t QUEUE = 256;    // limit of pending collectives
    CollectiveRunner runner;
    std::mutex mutex;
    std::condition_variable_any changed;
    Job queue[QUEUE];
    int64_t enqueued = 0;    // collectives; written by the caller's thread alone
    int64_t done = 0;        // finished collectives
    std::jthread thread;     // last member: joins before the others are destroyed

    // Starts the thread that calls MPI. It blocks all signals except those of faults (SIGSEGV,
    // ...), so that MPI's own threads inherit the mask and the main thread gets the signals. Then
    // restores the signal handlers that MPI has replaced.
    void start() {
        struct sigaction before[NSIG] = {};
        for (int s = 1; s < NSIG; s++) sigaction(s, nullptr, &before[s]);
        sigset_t all, mask;
        sigfillset(&all);
        for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, s);
        pthread_sigmask(SIG_BLOCK, &all, &mask);
        std::promise<Status> begun;
        std::future<Status> how = begun.get_future();
        thread = std::jthread([this](std::stop_token stop, std::promise<Status> p) { work(stop, std::move(p)); },
                              std::move(begun));
        pthread_sigmask(SIG_SETMASK, &mask, nullptr);
        status = how.get();
        for (int s = 1; s < NSIG; s++) sigaction(s, &before[s], nullptr);
    }
    Status begin() {
        const Library& mpi = runner.mpi;
        int level = 0, its_rank = -1, its_ranks = 0;
        runner.check_mpi(mpi.Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "Init_thread");
        mpi.Comm_set_errhandler(mpi.world, mpi.errors_return);
        runner.check_mpi(mpi.Comm_rank(mpi.world, &its_rank), "Comm_rank");
        runner.check_mpi(mpi.Comm_size(mpi.world, &its_ranks), "Comm_size");
        if (its_rank == rank && its_ranks == ranks) return {};
        return fail(Exit::peer, "rank %d of %d ranks expected, but MPI says rank %d of %d%s", rank, ranks, its_rank,
                    its_ranks, its_ranks == 1 ? LAUNCH_ADVICE : "");
    }
    void work(std::stop_token stop, std::promise<Status> begun) {
        const Status how = begin();
        begun.set_value(how);
        if (!how.ok()) return;
        while (true) {
            std::unique_lock lock(mutex);
            if (!changed.wait(lock, stop, [&] { return enqueued > done; })) break;
            const Job job = queue[done % QUEUE];
            lock.unlock();
            runner.run(job);
            lock.lock();
            done++;
            count_progress();
            changed.notify_all();
        }
        runner.mpi.Finalize();
    }
    void enqueue(const Job& job) {
        wait_until(enqueued + 1 - QUEUE);
        std::lock_guard lock(mutex);
        queue[enqueued++ % QUEUE] = job;
        changed.notify_all();
    }
    void wait_until(int64_t count) {
        std::unique_lock lock(mutex);
        if (done >= count) return;
        Waiting waiting(activity);
        changed.wait(lock, [&] { return done >= count; });
    }
};
}    // namespace

Status mpi_available() { return library().status; }
Result<std::unique_ptr<Comm>> mpi_open(const RankInfo& info) {
    TRY(mpi_available());
    if (info.ranks > 1 && !launched())
        return fail(Exit::peer, "rank %d of %d ranks expected, but MPI finds no launcher%s", info.rank, info.ranks,
                    LAUNCH_ADVICE);
    auto mpi = std::make_unique<Mpi>(info);
    if (!mpi->status.ok()) return mpi->status;
    return std::unique_ptr<Comm>(std::move(mpi));
}
#endif
