// test_inspect_command.cpp - `flatgpt inspect`: its output against the reference, and its errors.
#include <dlfcn.h>

#include "base/console.h"
#include "files/picture.h"
#include "files/json.h"
#include "layers/reference/reference.h"
#include "toy_run.h"
#include "toy_model.h"

using Strings = std::vector<std::string>;

TEST_CASE("inspect: what is printed and written says the same; pictures are pictures") {
    const Toy toy;
    must(toy.args("run", {"--steps", "2"}));
    const std::string run = toy.dir + "/run", csv = toy.dir + "/maps.csv", text = "a b\n,\"c";
    const Strings text_args = {"inspect", run, "--text", text};

    const ProcessResult json = must(with(text_args, {"--layer", "1", "--head", "0,1", "--json", "--csv", csv}));
    const nlohmann::json found = nlohmann::json::parse(json.out);
    const size_t n = found["tokens"].size();
    REQUIRE(n == text.size());
    REQUIRE(found["heads"].size() == 2);
    CHECK(found["layers"].size() == 1);
    std::string expected = "layer,head,query,key,query_token,key_token,probability\n";
    const Strings names = {"\"a\"", "\"\u00B7\"", "\"b\"", "\"\\n\"", "\",\"", "\"\"\"\"", "\"c\""};
    for (auto& head : found["heads"]) {
        CHECK(head["layer"] == 1);
        for (size_t q = 0; q < n; q++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++) {
                const double p = head["map"][q][k];
                sum += p;
                CHECK((k <= q || p == 0));
                if (k <= q)
                    expected += formatted("1,%d,%zu,%zu,%s,%s,%.6g\n", head["head"].get<int>(), q, k, names[q].c_str(),
                                          names[k].c_str(), p);
            }
            CHECK(sum == doctest::Approx(1));
        }
    }
    CHECK(read_file(csv) == expected);

    const ProcessResult map = must(with(text_args, {"--layer", "1", "--head", "1"}));
    CHECK(contains(map.out, "layer 1, head 1: rows are queries"));
    CHECK(contains(map.out, "\n0 a  @@\n"));    // shades: token 0 attends only to itself
    CHECK_FALSE(contains(map.out, "\x1b"));
    CHECK(contains(map.out, formatted("    1    1  %7.3f", found["heads"][1]["entropy"].get<double>())));
    CHECK(contains(must({"inspect", run}).out, "\n    1 mean "));    // without a text: random tokens
    must(with({"inspect", run, "--data", toy.dir + "/val.bin"}, {"--sequences", "3", "--csv", csv}));
    CHECK(contains(read_file(csv), "layer,head,entropy,relative_entropy,distance,previous,first,induction\n0,0,"));

    const std::string png = toy.dir + "/maps.png", svg = toy.dir + "/head.svg";
    must(with(text_args, {"--layer", "0", "--head", "0", "--picture", svg}));
    CHECK(contains(read_file(svg), "<svg "));
    must({"inspect", run, "--picture", svg});
    must(with(text_args, {"--picture", "/nonexistent/a.svg"}), 4);
    if (!dlopen("librsvg-2.so.2", RTLD_NOW)) SKIP("no librsvg-2.so.2");
    must(with(text_args, {"--picture", png}));
    CHECK(read_file(png).starts_with("\x89PNG\r\n"));
}

namespace {
// Probabilities (n,n) of layer 1, head 3, by the reference from the queries and keys that the
// checkpoint's model computes. Tokens are bytes; the text is printable ASCII without spaces.
std::vector<double> reference_map(const std::string& checkpoint, const std::string& text) {
    const int n = int(text.size());
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(checkpoint).value, {RunMode::infer, 1, n}).ok());
    REQUIRE(checkpoint_weights(checkpoint, g).ok());
    std::vector<int> tokens, visible(text.size());
    for (char c : text) tokens.push_back(c - '!');    // GPT-2's order of bytes
    std::vector<double> p(text.size() * text.size());
    int ran = 0;
    g.after_attention = [&](int l) {
        if (l != 1) return;
        const Heads h = g.c.heads(l);
        const float* qkv_rot = typed<float>(g, g.a[1].qkv_rot);
        const std::vector<double> qkv(qkv_rot, qkv_rot + n * h.qkv_width());
        reference::probabilities(p.data(), visible.data(), qkv.data(), n, h, 3);
        ran++;
    };
    g.batch.upload(tokens.data(), nullptr, 1, n);
    g.forward();
    CHECK(ran == 1);
    return p;
}
// Exports a run's newest checkpoint with change() applied to the weights of the tensor `name`.
template <class Change> std::string changed(const Toy& toy, const std::string& run, const char* name, Change change) {
    const std::string from = toy.newest(run), dir = toy.dir + "/" + run + "-changed";
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(from).value, {RunMode::infer, 1, 1}).ok());
    REQUIRE(checkpoint_weights(from, g).ok());
    for (const Tensor& t : g.tensors) {
        if (t.name != name) continue;
        std::vector<float> x(size_t(t.size()));
        g.read(StateKind::weights, t.offset, t.size(), x.data());
        change(x);
        g.write(StateKind::weights, t.offset, t.size(), x.data());
    }
    REQUIRE(checkpoint_export(dir, weights_reader(g), checkpoint_tokenizer(from).value, {}).ok());
    return dir;
}
nlohmann::json inspected(Strings args) {
    args.insert(args.begin(), "inspect");
    args.push_back("--json");
    return nlohmann::json::parse(must(args).out);
}
}    // namespace

TEST_CASE("inspect: a map is the reference's probabilities of the run's queries and keys, to the printed digits") {
    const Toy toy;
    must(toy.args("run", {"--steps", "20", "--position", "rope", "--heads", "4", "--kv-heads", "2", "--window", "6"}));
    const std::string text = "It-is-a-truth", csv = toy.dir + "/map.csv";
    const size_t n = text.size();
    const std::vector<double> p = reference_map(toy.newest("run"), text);
    const ProcessResult r =
        must({"inspect", toy.dir + "/run", "--text", text, "--layer", "1", "--head", "3", "--csv", csv});
    std::string lines = "layer,head,query,key,query_token,key_token,probability\n", shades;
    int checked = 0;
    for (size_t q = 0; q < n; q++) {
        std::string row = formatted("%2zu %c ", q, text[q]);
        for (size_t k = 0; k < n; k++) {
            const double x = p[q * n + k];
            row += std::string(2, " .:-=+*#%@"[std::min(9, int(std::sqrt(x) * 10))]);
            if (x == 0) continue;
            lines += formatted("1,3,%zu,%zu,\"%c\",\"%c\",%.6g\n", q, k, text[q], text[k], x);
            checked++;
        }
        shades += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
    }
    CHECK(checked == 6 * 13 - 15);    // pairs within the window
    CHECK(read_file(csv) == lines);
    CHECK_MESSAGE(contains(r.out, "\n" + shades + "shades:"), r.out);
}

TEST_CASE("inspect: --importance is what prune measures on the same windows") {
    const Toy toy;
    must(toy.args("run", {"--steps", "5", "--heads", "4"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", csv = toy.dir + "/a.csv";
    const Strings asked = {run, "--data", val, "--sequences", "5", "--seq-len", "16"};
    auto with = [&](const Strings& more) {
        Strings a = asked;
        return a.insert(a.end(), more.begin(), more.end()), a;
    };
    const nlohmann::json plain = inspected(asked), found = inspected(with({"--importance", "--csv", csv}));
    const nlohmann::json pruned = nlohmann::json::parse(
        must({"prune", run, "--data", val, "--dry-run", "--tokens", "80", "--seq-len", "16", "--json"}).out);
    std::string lines = "layer,head,entropy,relative_entropy,distance,previous,first,induction,importance\n";
    REQUIRE(found["heads"].size() == 8);
    for (size_t i = 0; i < 8; i++) {
        nlohmann::json head = found["heads"][i];
        CHECK(head["importance"] == pruned["importance"][i / 4][i % 4]);
        lines += formatted("%zu,%zu", i / 4, i % 4);
        for (const char* name :
             {"entropy", "relative_entropy", "distance", "previous", "first", "induction", "importance"})
            lines += formatted(",%.6g", head[name].get<double>());
        lines += "\n";
        head.erase("importance");
        CHECK(head == plain["heads"][i]);    // as without --importance
    }
    CHECK(read_file(csv) == lines);
    const std::string table = must({"inspect", run, "--data", val, "--importance"}).out;
    CHECK(contains(table, "layer head  entropy  of most  distance  previous  first  induction  importance\n"));
    must({"inspect", run, "--importance"}, 2, "--importance needs --data");
    const std::string broken = changed(toy, "run", "1.projw", [](std::vector<float>& x) {
        std::fill(x.begin(), x.end(), 3e38f);    // overflows the next norm's sum of squares
    });
    must({"inspect", broken, "--data", val, "--importance"}, 1, "importance of layer 0, head 0 in window 1 of 8 is");
    const std::string one = toy.dir + "/one.svg", more = toy.dir + "/more.svg";
    must({"inspect", run, "--data", val, "--picture", one});
    must({"inspect", run, "--data", val, "--picture", more, "--importance"});
    auto maps = [](const std::string& text) {
        int n = 0;
        for (size_t at = 0; (at = text.find("<image", at)) != text.npos; at++) n++;
        return n;
    };
    CHECK(maps(read_file(more)) == maps(read_file(one)) + 1);
    HeatmapPicture wide{.title = "", .across = 600};
    for (int i = 0; i < 600; i++) wide.maps.push_back({{1, 2, {0, 1}}});
    CHECK(write_heatmaps(one, wide).ok());
    if (!dlopen("librsvg-2.so.2", RTLD_NOW)) SKIP("no librsvg-2.so.2");
    const Status png = write_heatmaps(toy.dir + "/one.png", wide);
    CHECK(png.code == Exit::run);
    CHECK_MESSAGE(contains(png.message, " pixels; write an .svg file"), png.message);
    CHECK_MESSAGE(png.message.ends_with("let the picture show less, such as fewer heads or lengths"), png.message);
}

TEST_CASE("inspect: the induction score is the same for every --seq-len; what was not measured is -") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1", "--seq-len", "160"}));
    must(toy.args("short", {"--steps", "1"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", csv = toy.dir + "/a.csv";
    const nlohmann::json alone = inspected({run});
    for (const char* length : {"8", "64", "160"}) {
        const nlohmann::json found = inspected({run, "--data", val, "--seq-len", length, "--sequences", "1"});
        for (size_t i = 0; i < 4; i++) CHECK(found["heads"][i]["induction"] == alone["heads"][i]["induction"]);
    }
    const std::string one = must({"inspect", run, "--text", "a"}).out;    // one token attends only to itself
    CHECK_MESSAGE(contains(one, "\n0 a @@\n"), one);
    CHECK_MESSAGE(contains(one, "\n    0    0    0.000    0.000      0.00         -      -      0."), one);
    // In a context of 2 no tokens fit twice, so that induction is not measured.
    const ProcessResult two = must({"inspect", toy.dir + "/short", "--context", "2", "--data", val, "--csv", csv});
    CHECK(std::count(two.out.begin(), two.out.end(), '-') == 6);
    CHECK_FALSE(contains(two.out, "most: head"));
    CHECK(contains(read_file(csv), ",\n"));
    const nlohmann::json none = inspected({toy.dir + "/short", "--context", "2", "--text", "abc"});
    CHECK(none["heads"][0]["induction"].is_null());
    CHECK(none["layers"][0]["induction_head"].is_null());
    CHECK(none["tokens"].size() == 2);
}

TEST_CASE("inspect: --context is the most that a text or a sequence has, also of learned positions") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1"}));
    must(toy.args("turned", {"--steps", "1", "--position", "rope"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", text(20, 'a');
    must({"inspect", run, "--context", "16", "--text", text}, 0, "note: the first 16 of the text's 20 tokens: the");
    must({"inspect", run, "--context", "16", "--data", val, "--seq-len", "24"}, 2, "--seq-len 24, --context 16");
    auto entropy = [&](const std::string& of, const char* flag, const char* n) {
        return inspected({of, "--data", val, "--sequences", "1", flag, n})["heads"][0]["entropy"].get<double>();
    };
    CHECK(entropy(run, "--context", "16") == entropy(run, "--seq-len", "16"));
    CHECK(entropy(run, "--context", "16") < entropy(run, "--seq-len", "32"));
    CHECK(entropy(toy.dir + "/turned", "--context", "64") > entropy(toy.dir + "/turned", "--seq-len", "32") + 0.3);
}

TEST_CASE("inspect: maps that are not finite are no certainty, and a note says whose they are") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1"}));
    const std::string csv = toy.dir + "/a.csv";
    const std::string broken = changed(toy, "run", "1.qkvw", [](std::vector<float>& x) {
        std::fill_n(x.begin(), 16 * 32, 3e38f);    // the queries of head 0
    });
    const ProcessResult r = must({"inspect", broken, "--text", "ab", "--csv", csv}, 0,
                                 "warning: the maps of layer 1 are not finite: the model has diverged or overflowed");
    CHECK_MESSAGE(contains(r.out, "\n    1    0      nan      nan       nan       nan    nan        nan\n"), r.out);
    CHECK(contains(read_file(csv), "1,0,0,0,\"a\",\"a\",nan\n"));
    CHECK_FALSE(contains(r.out, "\n    0    0      nan"));
}

TEST_CASE("inspect: a GGUF file; a tokenizer with more tokens than the model is refused by every command") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1", "--model", "llama:d1"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", gguf = toy.dir + "/run.gguf";
    must({"convert", run, gguf, "--type", "f32"});
    CHECK(must({"inspect", gguf, "--text", "abc"}).out == must({"inspect", run, "--text", "abc"}).out);

    const std::string bare = toy.dir + "/bare";
    fs::create_directory(bare);
    for (const char* name : {"/config.json", "/model.safetensors"}) fs::copy(toy.newest("run") + name, bare + name);
    must({"inspect", bare});
    const Strings rows[] = {
        {"inspect"}, {"inspect", "--data", val},           {"eval", "--needle"}, {"eval", "--data", val}, {"sample"},
        {"chat"},    {"prune", "--data", val, "--dry-run"}};
    for (Strings args : rows) {
        args.insert(args.begin() + 1, {bare, "--tokenizer", "gpt2"});
        must(args, 3, "the tokenizer has 50257 tokens, the model 257; give --tokenizer the one that the model was");
    }
    must({"sample", bare}, 3, "holds no tokenizer");

    // A tokenizer of its own, whose merged token has no embedding: only commands on text refuse it.
    std::ofstream(bare + "/tokenizer.json") << Tokenizer::from_merges({{1, 2}, {3, 4}}, Pattern::gpt2, {}).to_json();
    for (Strings args : rows) {
        args.insert(args.begin() + 1, bare);
        const bool text = args[0] == "sample" || args[0] == "chat";
        must(args, text ? 3 : 0, text ? "the tokenizer has 258 tokens, the model 257; train --from it with" : "");
    }
}

TEST_CASE("inspect: --json without --layer and --head holds no maps, as it prints none") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1", "--position", "rope"}));
    const std::string text = toy.dir + "/text.txt";
    write_file(text, std::string(1500, 'a'));
    auto peak = [&](const char* more) {
        Strings args = {flatgpt_binary(), "inspect", toy.dir + "/run", "--context", "2048", "--text-file", text};
        if (*more) args.push_back(more);
        Process running(args);
        const double bytes = peak_memory(running);
        CHECK(running.wait().exit_code == 0);
        return bytes;
    };
    const double maps = 4 * 8 * 1500.0 * 1500;      // bytes; two layers have two heads each
    CHECK(peak("--json") < peak("") - maps / 2);    // without --json all four maps are drawn
}

TEST_CASE("inspect: what cannot be is refused") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", empty = toy.dir + "/empty.txt";
    write_file(empty, "");
    const struct {
        Strings args;
        int code;
        const char* says;
    } rows[] = {{{"--text", "a", "--data", val}, 2, "--text and --data exclude each other"},
                {{"--text", "a", "--text-file", val}, 2, "--text and --text-file exclude"},
                {{"--seq-len", "8"}, 2, "--seq-len needs --data"},
                {{"--text", "a", "--raw-u16"}, 2, "--raw-u16 needs --data"},
                {{"--prefix", "2"}, 2, "--prefix needs --text or --text-file"},
                {{"--text", "a", "--prefix", "1"}, 2, "--prefix needs a model with --objective prefix"},
                {{"--text-file", "/dev/null"}, 3, "/dev/null"},
                {{"--layer", "2"}, 2, "--layer '2': expected a number from 0 to 1"},
                {{"--head", "x"}, 2, "--head 'x': expected a number from 0 to 1"},
                {{"--picture", "a.jpg"}, 2, "--picture a.jpg: expected a file's name that ends in .png or .svg"},
                {{"--data", val, "--seq-len", "64"}, 2, "--seq-len 64: the model's context has 32 positions"},
                {{"--data", "/nonexistent"}, 3, "/nonexistent"},
                {{"--text-file", "/nonexistent"}, 3, "/nonexistent"},
                {{"--text", "a", "--csv", "/nonexistent/a.csv"}, 4, "--csv: /nonexistent/a.csv cannot be written"},
                {{"--csv", toy.dir}, 2, "--csv: expected the name of a file, found the directory"},
                {{"--csv", "/dev/null"}, 2, "--csv /dev/null: expected a new name or a regular file"},
                {{"--text", ""}, 2, "--text: expected a text of at least one token, found none"},
                {{"--text", "", "--data", val}, 2, "--text: expected a text of at least one token"},
                {{"--text-file", empty}, 2, "--text-file: expected a text of at least one token, found none"},
                {{"--layer", ""}, 2, "--layer '': expected a number from 0 to 1"},
                {{"--head", "0,"}, 2, "--head '': expected a number from 0 to 1"}};
    for (auto& row : rows) {
        Strings args = {"inspect", run};
        args.insert(args.end(), row.args.begin(), row.args.end());
        must(args, row.code, row.says);
    }
    must({"inspect", "/nonexistent"}, 3, "/nonexistent");

    must(toy.args("mixed", {"--steps", "1", "--linear-attention", "gated", "--softmax-every", "2"}));
    must({"inspect", toy.dir + "/mixed", "--text", "a", "--layer", "0"}, 2, "--layer 0 has no map: it has no softmax");

    // A map of more than 4 GiB; then one that fits once, but not twice.
    must(toy.args("far", {"--steps", "1", "--position", "rope"}));
    const std::string far = toy.dir + "/far", text = toy.dir + "/long.txt";
    write_file(text, std::string(24000, 'a'));
    const std::string says = "a head's map of 24000 tokens takes 4.29 GiB, more than the limit of 4.00 GiB; ";
    must({"inspect", far, "--context", "24000", "--text-file", text}, 2, says + "give a shorter text");
    must({"inspect", far, "--context", "24000", "--seq-len", "24000", "--data", val}, 2,
         says + "choose a shorter --seq-len");
    must({"inspect", far, "--context", "17000", "--text-file", text, "--layer", "0", "--head", "0"}, 2,
         "maps of 17000 tokens, of 1 head, take 2.15 GiB, and one more while it is computed: over the limit of 4.00");
    must({"inspect", far, "--context", "17000", "--text-file", text}, 2, "of 17000 tokens, of 4 heads, take 8.61 GiB");
}
