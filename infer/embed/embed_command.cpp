// embed_command.cpp - `flatgpt embed`: vectors of texts, as JSON lines or .npy, or a search.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/countdown.h"
#include "base/file.h"
#include "base/table.h"
#include "embeddings.h"
#include "files/json_write.h"
#include "files/npy.h"
#include "infer/eval/text_loss.h"
#include "infer/load.h"

namespace {
struct Options {
    ModelOptions model;
    std::string text = "-", field, format = "auto", pooling = "auto", out, search;
    int dims = 0, top = 10, seq_len = 0, longest_line = 32;
    bool normalize = true, json = false, overwrite = false;
    DeviceOptions device;
};

struct Embedder {
    LoadedModel m;
    EmbedOptions options;
    int64_t cut = 0;    // texts that were longer than the model takes

    int dims() const { return options.dims ? options.dims : m.model->c.C; }
    // With the tokens that the tokenizer puts around a text (BOS, [CLS], EOS). Exit 3: no tokens.
    Result<std::vector<std::vector<int>>> encode(const std::vector<Line>& lines) {
        const Vocabulary& v = m.tokenizer.vocabulary();
        const size_t longest = size_t(m.model->plan.S), around = v.before.size() + v.after.size();
        std::vector<std::vector<int>> texts;
        for (const Line& line : lines) {
            std::vector<int> ids = m.tokenizer.encode(line.text, false);
            if (ids.size() + around > longest) {
                cut++;
                ids.resize(longest > around ? longest - around : 0);
            }
            ids.insert(ids.begin(), v.before.begin(), v.before.end());
            ids.insert(ids.end(), v.after.begin(), v.after.end());
            if (ids.empty() || ids.size() > longest)
                return fail(Exit::input, "line %lld: expected a text of 1 to %zu tokens, found %zu",
                            (long long)line.number, longest, ids.size());
            texts.push_back(std::move(ids));
        }
        return texts;
    }
    Result<std::vector<float>> embed(const std::vector<Line>& lines) {
        const std::vector<std::vector<int>> texts = TRY(encode(lines));
        Countdown countdown{"embed", "texts"};
        return embed_texts(*m.model, texts, options, std::ref(countdown));
    }
};

std::string json_line(const Line& line, const float* vector, int dims) {
    std::string text = formatted("{\"line\":%lld,\"embedding\":[", (long long)line.number);
    for (int i = 0; i < dims; i++) text += formatted(i ? ",%.9g" : "%.9g", double(vector[i]));
    return text + "]}\n";
}

// The vectors of all lines to a file or standard output, in groups that fit memory.
Status write_vectors(const Options& o, Embedder& embedder, TextLines& file) {
    const bool npy = o.out.ends_with(".npy");
    const int dims = embedder.dims();
    NewFile out;
    if (!o.out.empty()) out = TRY(NewFile::create(o.out));
    int64_t rows = 0, at = npy ? int64_t(npy_header(0, dims).size()) : 0;
    for (;;) {
        const std::vector<Line> lines = TRY(file.next(TEXT_GROUP));
        if (lines.empty()) break;
        const std::vector<float> vectors = TRY(embedder.embed(lines));
        rows += int64_t(lines.size());
        if (npy) {
            const int64_t bytes = int64_t(vectors.size() * sizeof(float));
            TRY(out.write(at, vectors.data(), bytes));
            at += bytes;
            continue;
        }
        for (size_t i = 0; i < lines.size(); i++) {
            const std::string text = json_line(lines[i], &vectors[i * size_t(dims)], dims);
            if (o.out.empty()) fwrite(text.data(), 1, text.size(), stdout);
            else TRY(out.write(at, text.data(), int64_t(text.size())));
            at += int64_t(text.size());
        }
    }
    if (o.out.empty()) return {};
    const std::string header = npy_header(rows, dims);
    if (npy) TRY(out.write(0, header.data(), int64_t(header.size())));
    TRY(out.commit(o.overwrite ? Overwrite::yes : Overwrite::no));
    fprintf(stderr, "%s of %d numbers in %s\n", counted(rows, "vector").c_str(), dims, o.out.c_str());
    return {};
}

struct Hit {
    Line line;
    double cosine;
};
double cosine(const float* a, const float* b, int n) {
    double dot = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        dot += double(a[i]) * double(b[i]);
        aa += double(a[i]) * double(a[i]);
        bb += double(b[i]) * double(b[i]);
    }
    return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0;
}

// The lines whose vectors have the largest cosine with the query's; of equal ones, the first.
Status search(const Options& o, Embedder& embedder, TextLines& file) {
    const std::vector<float> query = TRY(embedder.embed({{o.search, 0}}));
    const int dims = embedder.dims();
    std::vector<Hit> best;
    int64_t all = 0;
    for (;;) {
        std::vector<Line> lines = TRY(file.next(TEXT_GROUP));
        if (lines.empty()) break;
        const std::vector<float> vectors = TRY(embedder.embed(lines));
        all += int64_t(lines.size());
        for (size_t i = 0; i < lines.size(); i++)
            best.push_back({std::move(lines[i]), cosine(query.data(), &vectors[i * size_t(dims)], dims)});
        std::stable_sort(best.begin(), best.end(), [](const Hit& a, const Hit& b) { return a.cosine > b.cosine; });
        best.resize(std::min(best.size(), size_t(o.top)));
    }
    for (const Hit& hit : best) {
        if (o.json) Json::object("cosine", hit.cosine, "line", hit.line.number, "text", hit.line.text).print();
        else
            printf("%7.4f  %8lld  %s\n", hit.cosine, (long long)hit.line.number,
                   escape_control(hit.line.text.substr(0, 4000)).c_str());
    }
    fprintf(stderr, "%zu of %s\n", best.size(), counted(all, "text").c_str());
    return {};
}

Status run(const Options& o) {
    if (!o.out.empty()) {
        if (!o.out.ends_with(".npy") && !o.out.ends_with(".jsonl"))
            return fail(Exit::usage, "--out %s: expected a name that ends in .npy or .jsonl", o.out.c_str());
        TRY(check_writable(o.out, "--out"));
        std::error_code none;
        if (!o.overwrite && std::filesystem::exists(o.out, none))
            return fail(Exit::usage, "--out %s: it exists; give another name, or --overwrite", o.out.c_str());
    }
    Embedder e;
    TRY(load_model(e.m, o.model, o.device, false, [&](const Config& c, bool gpu) {
        const int S = sequence_length(o.model, c, o.seq_len);
        return Capacity{std::max(1, saturating_rows(gpu) / S), S, c.mask_kind != MaskKind::causal};
    }));
    const Config& c = e.m.model->c;
    TRY(check_length(o.model, c, o.seq_len));
    TRY(check_tokenizer(e.m));
    if (o.dims > c.C)
        return fail(Exit::usage, "--dims %d: expected at most the %d numbers of this model's vectors", o.dims, c.C);
    e.options = {.dims = o.dims, .normalize = o.normalize};
    if (o.pooling == "auto") e.options.pooling = TRY(pooling_of(e.m.path, c));
    else e.options.pooling = Pooling(std::find(POOLINGS.begin(), POOLINGS.end(), o.pooling) - POOLINGS.begin());
    if (o.text == "-") note_typed_input();
    TextLines file = TRY(TextLines::open(
        {.files = {o.text}, .field = o.field, .format = text_format(o.format), .longest = o.longest_line}));
    TRY(o.search.empty() ? write_vectors(o, e, file) : search(o, e, file));
    if (e.cut)
        Progress().note(formatted("note: %s cut to the %d tokens that the model takes (--seq-len)",
                                  (counted(e.cut, "text") + (e.cut == 1 ? " was" : " were")).c_str(),
                                  e.m.model->plan.S));
    return {};
}
}    // namespace

Command embed_command() {
    auto o = std::make_shared<Options>();
    Command c{"embed", "Turn texts into vectors, or find the texts that are closest to one.",
              "flatgpt embed runs/a --text questions.jsonl --out questions.npy"};
    std::vector<std::string> poolings = POOLINGS;
    poolings.insert(poolings.begin(), "auto");
    c.flags = flag_groups({
        {"Common",
         {{"MODEL", &o->model.model, MODEL_HELP, 0, 0, {}, true},
          {"--checkpoint", &o->model.checkpoint, "of a run: best (lowest validation loss), last, or a step"},
          adapter_flag(o->model),
          {"--text", &o->text, "a file with a text on each line, JSON lines, CSV or Parquet; -: standard input"},
          {.name = "--pooling",
           .to = &o->pooling,
           .help = "the vector of a text is the mean of its positions' last states, the first one or the last one; "
                   "auto: by the model's 1_Pooling/config.json, else the last for a causal model, the mean for others",
           .choices = poolings},
          {"--dims", &o->dims, "only the vector's first numbers (matryoshka); 0: all", 0, 1 << 20},
          {"--normalize", &o->normalize, "scale each vector to length 1"},
          {.name = "--out",
           .to = &o->out,
           .help = "the file for the vectors: .npy (NumPy, fp32) or .jsonl; none: JSON lines on standard output",
           .excludes = {"--search"}},
          {.name = "--overwrite", .to = &o->overwrite, .help = "replace the file of --out", .needs = {"--out"}},
          {"--search", &o->search, "instead of vectors: the texts with the largest cosine to this one"},
          {.name = "--top", .to = &o->top, .help = "texts to print", .min = 1, .max = 1e6, .needs = {"--search"}},
          {.name = "--json", .to = &o->json, .help = "one JSON object per text found", .needs = {"--search"}},
          {"--seq-len", &o->seq_len, "tokens of a text at most, longer ones are cut; 0: the context, at most 2048", 0,
           1 << 20}}},
        {"Text files",
         {},
         {{"--field", &o->field, "the key of JSON, or the column of CSV and Parquet, that holds the text (none: text)"},
          {.name = "--format",
           .to = &o->format,
           .help = "what the file is; auto: by its name and content",
           .choices = TEXT_FORMATS},
          {"--longest-line", &o->longest_line, "MiB: a longer line is refused", 1, 1024}}},
        {"Device", inference_flags(o->device, o->model, "bf16 on a GPU, as the file has them on a CPU")},
    });
    c.run = [o] { return run(*o); };
    return c;
}
