// trace.cpp - see trace.h.
#include "trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/console.h"
#include "base/file.h"
#include "base/table.h"

static Trace* current;
// Columns of a line; negative widths align to the left.
static const std::vector<int> WIDTHS = {-5, -25, -14, -11, 13, 13, 13, 13, 13, 13};

// One function per operation writes the lines of its outputs.
struct Trace::Outputs {
    typedef Activation T;
    typedef Input I;
    typedef Parameter P;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define NO_OUTPUT
#define OUTPUT(array, ...) current->write(__func__, #array, array, __VA_ARGS__);
#define OPERATION(name, need, arguments, outputs, ...) \
    static void name arguments { outputs }
#include "layers/operations.inc"
#undef OPERATION
#undef OUTPUT
#undef NO_OUTPUT
#pragma GCC diagnostic pop
};

Trace::Trace(const Table& observed, std::string name, FILE* stream)
    : table(observed), real(observed), path(std::move(name)), file(stream) {
    current = this;
    table.begin_capture = nullptr;    // lines are written by the host
#define OPERATION(name, ...)                         \
    if (real.name)                                   \
        table.name = [](auto... a) {                 \
            current->real.name(a...);                \
            if (current->model) Outputs::name(a...); \
        };
#include "layers/operations.inc"
#undef OPERATION
    // upload and copy are not traced: they move bytes without shape or type. Besides,
    // Table::on_host is true if these two functions are equal.
    table.upload = real.upload;
    table.copy = real.copy;
    const std::vector<Cell> titles = {"layer", "operation", "output", "shape", "mean", "std", "first four"};
    fprintf(file, "%s\n", table_line(WIDTHS, titles).c_str());
}
Trace::~Trace() {
    const bool failed = ferror(file);
    if (fclose(file) != 0 || failed) Progress().note("warning: --trace: " + path + " could not be written to its end");
}
Result<std::unique_ptr<Trace>> Trace::open(const std::string& path, const Table& real) {
    TRY(check_writable(path, "--trace"));
    FILE* const file = fopen(path.c_str(), "w");
    if (!file) return fail(Exit::io, "--trace: %s: %s", path.c_str(), strerror(errno));
    setlinebuf(file);    // a process that dies leaves the lines before
    return std::unique_ptr<Trace>(new Trace(real, path, file));
}

Status open_trace(const std::string& path, std::unique_ptr<Model>& model, std::unique_ptr<Trace>& trace) {
    if (path.empty()) return {};
    trace = TRY(Trace::open(path, model->op));
    model = std::make_unique<Model>(trace->table);
    return {};
}
Flag trace_flag(std::string& path, const std::string& passes, const std::vector<std::string>& excludes) {
    return {.name = "--trace",
            .to = &path,
            .help =
                "a file for a line about each array that an operation writes: layer, operation, name, shape, mean, "
                "standard deviation, first four numbers; " +
                passes,
            .excludes = excludes,
            .level = Level::expert};
}

// ---- the lines ----------------------------------------------------------------------------------

#define FIELD(of, array) \
    { of.array, #array }
void Trace::start(const Model& g) {
    names.clear();
    auto add = [&](int layer, std::initializer_list<std::pair<const void*, const char*>> arrays) {
        for (auto& [p, name] : arrays) names.emplace(std::pair(layer, p), name);    // the first of two names stays
    };
    for (int l = 0; l < g.c.L; l++) {
        const Activations& a = g.a[size_t(l)];
        // A block's output is the next block's input. Without a backward pass all blocks have one
        // buffer for it.
        add(l, {{l + 1 < g.c.L ? g.a[size_t(l) + 1].in : g.x_last, "out"}});
        add(l,
            {FIELD(a, ln1), FIELD(a, qkv), FIELD(a, qkv_rot), FIELD(a, atty), FIELD(a, decay_gates), FIELD(a, out1),
             FIELD(a, x2), FIELD(a, ln2), FIELD(a, fch), FIELD(a, fcg), FIELD(a, router_logits), FIELD(a, expert_up),
             FIELD(a, expert_act), FIELD(a, expert_out), FIELD(a, shared_gate), FIELD(a, shared_act), FIELD(a, out2)});
    }
    add(-1, {FIELD(g.a[0], x), FIELD(g, embedded), FIELD(g, lnf), FIELD(g, head), FIELD(g, losses)});
    // Gradients of the parameters: tensor "0.qkvw" has gradient "dqkvw".
    for (const Tensor& t : g.tensors) {
        if (g.plan.mode != RunMode::train) break;
        if (t.name.starts_with("encoder.")) continue;    // layers below are the decoder's
        const size_t dot = t.name.find('.');
        const Gradient* p = g.op.at(g.store.gradients(t.bucket), t.offset - g.store.buckets[size_t(t.bucket)].offset);
        names.emplace(std::pair(dot == t.name.npos ? -1 : atoi(t.name.c_str()), p), "d" + t.name.substr(dot + 1));
    }
    model = &g;
}

template <class X> void Trace::write(const char* operation, const char* argument, X* p, int64_t rows, int64_t cols) {
    const int64_t n = rows * std::abs(cols);
    if (!p || !n) return;
    std::vector<char> bytes(size_t(real.bytes(p, n)));
    std::vector<float> x(static_cast<size_t>(n));
    real.download(bytes.data(), p, int64_t(bytes.size()));
    if constexpr (std::is_same_v<X, int>) std::copy_n(reinterpret_cast<const int*>(bytes.data()), n, x.begin());
    else if constexpr (std::is_same_v<X, double>) to_floats(x.data(), bytes.data(), Element::f64, n);
    else to_floats(x.data(), bytes.data(), real.element(p), n);
    double mean = 0, squares = 0;
    for (float v : x) mean += double(v) / double(n);
    for (float v : x) squares += (double(v) - mean) * (double(v) - mean) / double(n);

    const int layer = model->pass.layer;
    const auto own = names.find({layer, p}), outside = own == names.end() ? names.find({-1, p}) : own;
    const std::string name = outside == names.end() ? argument : outside->second;
    const std::string shape = std::to_string(rows) + (cols > 0 ? "x" + std::to_string(cols) : "");
    std::vector<Cell> cells = {layer < 0 ? Cell("-") : Cell(layer), operation, name, shape};
    for (double v : {mean, std::sqrt(squares)}) cells.emplace_back(v, "%.6g");
    for (int64_t i = 0; i < std::min<int64_t>(4, n); i++) cells.emplace_back(double(x[size_t(i)]), "%.6g");
    fprintf(file, "%s\n", table_line(WIDTHS, cells).c_str());
}
