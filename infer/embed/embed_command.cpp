// embed_command.cpp - `flatgpt embed`: vectors of texts, as JSON lines or .npy, or a search.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/console.h"
#include "base/file.h"
#include "base/shorten.h"
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
    std::vector<std::string> given;    // names of the options that were set
    bool normalize = true, json = false, overwrite = false;
    DeviceOptions device;
};

struct Embedder {
    LoadedModel m;
    std::string file;
    EmbedOptions options;
    int64_t done = 0, cut = 0;    // texts; those that were longer than plan.S tokens
    Progress progress;

    int dims() const { return options.dims ? options.dims : options.width(m.model->c.C); }
    size_t tokens_around() const {
        return m.tokenizer.vocabulary().before.size() + m.tokenizer.vocabulary().after.size();
    }
    // Tokenizes a text and puts the tokenizer's tokens around it (BOS, [CLS], EOS). Exit 3: none.
    Result<std::vector<int>> encode(const std::string& text, const std::string& where) {
        EncodedText e = m.tokenizer.encode_text(text, m.model->plan.S);
        cut += e.whole > e.ids.size();
        if (e.ids.empty())
            return fail(Exit::input, "%s: expected a text of at least one token, found an empty one; remove it",
                        where.c_str());
        return std::move(e.ids);
    }
    // Returns the next lines of the file, with their vectors; no lines: the end. Both take some 64
    // MiB, or one longer line.
    Result<std::vector<Line>> next(TextLines& lines, std::vector<float>* vectors) {
        const int64_t most = (int64_t(64) << 20) / (4 * dims()) * int64_t(sizeof(Line));    // a line's least bytes
        std::vector<Line> group = TRY(lines.next(std::clamp<int64_t>(most, 1, 4 << 20)));
        std::vector<std::vector<int>> texts;
        for (const Line& line : group)
            texts.push_back(TRY(encode(line.text, file + ":" + std::to_string(line.number))));
        *vectors = embed_texts(*m.model, texts, options);
        done += int64_t(group.size());
        if (!group.empty()) progress.line("embed: " + counted(done, "text"));
        return group;
    }
};

// Digits are as few as a float needs; nlohmann writes them for a double, twice as many.
std::string json_line(const Line& line, const float* vector, int dims) {
    std::string text = formatted("{\"line\":%lld,\"embedding\":[", (long long)line.number);
    for (int i = 0; i < dims; i++) text += formatted(i ? ",%.9g" : "%.9g", double(vector[i]));
    return text + "]}\n";
}

// Writes the vectors of all lines to a file or to standard output.
Status write_vectors(const Options& o, Embedder& embedder, TextLines& file) {
    const bool npy = o.out.ends_with(".npy");
    const int dims = embedder.dims();
    NewFile out;
    if (!o.out.empty()) out = TRY(NewFile::create(o.out));
    int64_t at = npy ? NPY_HEADER_BYTES : 0;
    for (;;) {
        std::vector<float> vectors;
        const std::vector<Line> lines = TRY(embedder.next(file, &vectors));
        if (lines.empty()) break;
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
    if (npy) TRY(out.write(0, npy_header(embedder.done, dims).data(), NPY_HEADER_BYTES));
    TRY(out.commit(o.overwrite ? Overwrite::yes : Overwrite::no));
    embedder.progress.clear();
    fprintf(stderr, "%s of %d numbers in %s\n", counted(embedder.done, "vector").c_str(), dims, o.out.c_str());
    return {};
}

struct Hit {
    Line line;
    double cosine;    // with the query's vector
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

// A text on one line of at most `most` bytes.
std::string one_line(std::string text, size_t most) {
    for (char& c : text)
        if (isspace(static_cast<unsigned char>(c))) c = ' ';
    return escape_control(shorten(text, most));
}

// Prints the lines whose vectors have the largest cosine with the query's; among equal cosines, the
// first lines.
Status search(const Options& o, Embedder& embedder, TextLines& file) {
    const std::vector<int> query = TRY(embedder.encode(o.search, "--search"));
    const std::vector<float> wanted = embed_texts(*embedder.m.model, {query}, embedder.options);
    const int dims = embedder.dims();
    std::vector<Hit> best;
    for (;;) {
        std::vector<float> vectors;
        std::vector<Line> lines = TRY(embedder.next(file, &vectors));
        if (lines.empty()) break;
        for (size_t i = 0; i < lines.size(); i++)
            best.push_back({std::move(lines[i]), cosine(wanted.data(), &vectors[i * size_t(dims)], dims)});
        std::stable_sort(best.begin(), best.end(), [](const Hit& a, const Hit& b) { return a.cosine > b.cosine; });
        best.resize(std::min(best.size(), size_t(o.top)));
    }
    embedder.progress.clear();
    for (const Hit& hit : best) {
        if (o.json) Json::object("cosine", hit.cosine, "line", hit.line.number, "text", hit.line.text).print();
        else
            printf("%7.4f  %8lld  %s\n", hit.cosine, (long long)hit.line.number, one_line(hit.line.text, 4000).c_str());
    }
    fprintf(stderr, "found %zu of %s\n", best.size(), counted(embedder.done, "text").c_str());
    return {};
}

Status check_options(const Options& o) {
    if (was_given(o.given, "--search") && o.search.empty())
        return fail(Exit::usage, "--search: expected a text to search for, found none");
    if (o.out.empty()) return {};
    if (!o.out.ends_with(".npy") && !o.out.ends_with(".jsonl"))
        return fail(Exit::usage, "--out %s: expected a name that ends in .npy or .jsonl", o.out.c_str());
    TRY(check_writable(o.out, "--out"));
    std::error_code none;
    if (!o.overwrite && std::filesystem::exists(o.out, none))
        return fail(Exit::usage, "--out %s: it exists; give another name, or --overwrite", o.out.c_str());
    return {};
}

Status run(const Options& o) {
    TRY(check_options(o));
    if (o.text == "-") note_typed_input();
    TextLines file = TRY(TextLines::open(
        {.files = {o.text}, .field = o.field, .format = text_format(o.format), .longest = o.longest_line}));
    Embedder e;
    e.file = o.text;
    const SentenceConfig sentences = TRY(sentence_config(o.model.model));
    const int longest = o.seq_len ? o.seq_len : sentences.longest;
    ModelOptions states = o.model;
    states.head = HeadUse::none;
    TRY(load_model(e.m, states, o.device, false, [&](const Config& c, bool gpu) {
        const int S = sequence_length(o.model, c, longest);
        return Capacity{std::max(1, saturating_rows(gpu) / S), S, c.mask_kind != MaskKind::causal};
    }));
    const Config& c = e.m.model->c;
    TRY(check_length(o.model, c, o.seq_len, false));
    TRY(check_tokenizer(e.m));
    if (size_t(e.m.model->plan.S) <= e.tokens_around())
        return fail(Exit::usage,
                    "--seq-len %d: expected more than the %zu tokens that the tokenizer puts around a text", o.seq_len,
                    e.tokens_around());
    e.options = {.pooling = sentences.pooling.value_or(usual_pooling(c.mask_kind)),
                 .layers = sentences.layers,
                 .dims = o.dims,
                 .normalize = o.normalize};
    if (const std::vector<DenseLayer>& layers = sentences.layers; !layers.empty() && layers[0].in != c.C)
        return fail(Exit::input, "%s: the Dense layer has %d in_features, the model's states have %d numbers",
                    o.model.model.c_str(), layers[0].in, c.C);
    if (const int whole = e.options.width(c.C); o.dims > whole)
        return fail(Exit::usage, "--dims %d: expected at most the %d numbers of this model's vectors", o.dims, whole);
    if (o.pooling != "auto")
        e.options.pooling = Pooling(std::find(POOLINGS.begin(), POOLINGS.end(), o.pooling) - POOLINGS.begin());
    TRY(o.search.empty() ? write_vectors(o, e, file) : search(o, e, file));
    if (e.cut)
        e.progress.note(formatted("note: %s cut to %s (%s)",
                                  (counted(e.cut, "text") + (e.cut == 1 ? " was" : " were")).c_str(),
                                  counted(e.m.model->plan.S, "token").c_str(),
                                  o.seq_len ? "--seq-len"
                                  : longest ? "the model's max_seq_length"
                                            : "--seq-len allows more"));
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
          {"--text", &o->text,
           "a file with a text on each line, JSON lines, CSV or Parquet; blank lines are left out; -: standard input"},
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
          {"--seq-len", &o->seq_len,
           "tokens of a text at most, longer ones are cut; 0: the model's max_seq_length, else its context, at most "
           "2048",
           0, 1 << 20},
          {"--tokenizer", &o->model.tokenizer, "gpt2 or a tokenizer's file, where the MODEL holds none"}}},
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
    c.given = &o->given;
    c.run = [o] { return run(*o); };
    return c;
}
