// test_needle.cpp - `flatgpt eval --by-position` and `--needle`.
#include "infer/eval/position_loss.h"
#include "infer/eval/needle.h"

#include <set>

#include <dlfcn.h>

#include "files/json.h"
#include "speaker.h"
#include "toy_run.h"

using Strings = std::vector<std::string>;

TEST_CASE("eval: bins of positions hold each position once, and the mean over their targets") {
    constexpr int S = 300;
    std::vector<float> losses(2 * S);
    std::vector<int> targets(2 * S, 1);
    for (int n = 0; n < 2 * S; n++) losses[size_t(n)] = float(n % S) + (n < S ? 0.f : 1.f);
    targets[5] = -1;    // position 6: the second row's target alone
    targets[0] = targets[S] = -1;
    LossByPosition positions(S);
    positions.add(2, losses.data(), targets.data());
    const std::vector<PositionBin> bins = positions.bins();
    int next = 1;
    for (auto& bin : bins) {
        CHECK(bin.first == next);
        CHECK(bin.last - bin.first <= std::max(0, bin.first / 8 - 1));
        next = bin.last + 1;
        if (bin.first > 6) CHECK(bin.loss == doctest::Approx((bin.first + bin.last) / 2.0 - 1 + 0.5));
    }
    CHECK(next == S + 1);
    CHECK(bins.size() < 50);
    CHECK((bins[5].targets == 1 && bins[5].loss == 6));
    CHECK((bins[0].targets == 0 && std::isnan(bins[0].loss)));
    CHECK(positions_json(bins).text().starts_with("[{\"first\":1,\"last\":1,\"loss\":null,\"tokens\":0},{\"first\":2"));
}

TEST_CASE("eval: positions whose loss is no number are left out of the curve, and told") {
    const std::vector<float> losses = {1, NAN, 3, INFINITY};
    const std::vector<int> targets = {1, 1, 1, 1};
    LossByPosition positions(4), none(4);
    positions.add(1, losses.data(), targets.data());
    none.add(1, std::vector<float>(4, -NAN).data(), targets.data());
    const std::string csv = temporary_directory() + "/a.csv", svg = temporary_directory() + "/a.svg";
    REQUIRE(write_positions_csv(csv, positions.bins()).ok());
    CHECK(read_file(csv) == "first,last,tokens,loss\n1,1,1,1.000000\n2,2,1,nan\n3,3,1,3.000000\n4,4,1,inf\n");
    REQUIRE(write_positions_csv(csv, none.bins()).ok());
    CHECK(contains(read_file(csv), "\n1,1,1,nan\n"));
    // A model whose position 8, counted from 1, overflows, so that the loss there is NaN.
    const Toy toy;
    must(toy.args("run", {"--steps", "1"}));
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(toy.newest("run")).value, {RunMode::infer, 1, 1}).ok());
    REQUIRE(checkpoint_weights(toy.newest("run"), g).ok());
    std::fill_n(typed<float>(g, g.w.wpe) + 7 * 32, 32, 3e38f);    // infinite in their sum
    const std::string broken = write_model(g, checkpoint_tokenizer(toy.newest("run")).value);
    const ProcessResult r =
        must({"eval", broken, "--data", toy.dir + "/val.bin", "--by-position", "--csv", csv}, 6, "the loss is");
    const std::string legend = r.out.substr(r.out.find("loss by position"));
    CHECK_MESSAGE(legend.starts_with("loss by position: first "), legend);
    CHECK_FALSE(contains(legend, "nan"));
    CHECK(contains(read_file(csv), "\n8,8,62,nan\n"));
    std::fill_n(typed<float>(g, g.w.wpe), 32, 3e38f);
    const std::string all = write_model(g, checkpoint_tokenizer(toy.newest("run")).value);
    must({"eval", all, "--data", toy.dir + "/val.bin", "--by-position"}, 6, "loss by position: not a number at any");
    for (auto& each : {positions, none}) {
        REQUIRE(write_positions_picture(svg, each.bins()).ok());
        CHECK(contains(read_file(svg), "<svg "));
        CHECK_FALSE(contains(read_file(svg), "nan"));
    }
}

TEST_CASE("eval: --by-position is the same loss, divided among positions") {
    const Toy toy;
    must(toy.args("run", {"--steps", "2"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", csv = toy.dir + "/a.csv";
    const ProcessResult plain = must({"eval", run, "--data", val, "--json"});
    const ProcessResult r = must({"eval", run, "--data", val, "--json", "--by-position", "--csv", csv});
    const nlohmann::json found = nlohmann::json::parse(r.out);
    CHECK(found["loss"] == nlohmann::json::parse(plain.out)["loss"]);
    double sum = 0;
    int64_t tokens = 0;
    std::string expected = "first,last,tokens,loss\n";
    for (auto& bin : found["by_position"]) {
        const double loss = bin["loss"];
        sum += loss * bin["tokens"].get<double>(), tokens += bin["tokens"].get<int64_t>();
        expected += formatted("%d,%d,%lld,%.6f\n", bin["first"].get<int>(), bin["last"].get<int>(),
                              (long long)bin["tokens"].get<int64_t>(), loss);
    }
    CHECK(tokens == found["tokens"]);
    CHECK(sum / double(tokens) == doctest::Approx(found["loss"].get<double>()));
    CHECK(read_file(csv) == expected);
    CHECK(contains(must({"eval", run, "--data", val, "--by-position"}).out, "loss by position: first "));

    const std::string svg = toy.dir + "/a.svg";
    must({"eval", run, "--data", val, "--by-position", "--picture", svg});
    CHECK(contains(read_file(svg), "<svg "));
    must({"eval", run, "--data", val, "--by-position", "--picture", "/nonexistent/a.svg"}, 4);
}

namespace {
NeedleOptions needle_options(int longest) {
    NeedleOptions o{.longest = longest, .depths = 3, .lengths = 2, .trials = 1, .batch = 2, .begin = {256}};
    for (int id = 0; id < 94; id++) o.choices.push_back(id);
    return o;
}
}    // namespace

TEST_CASE("needle: a sequence holds the needle at its depth, and ends with it") {
    NeedleOptions o = needle_options(64);
    for (bool text : {false, true}) {
        if (text) o.haystack = {100, 101, 102};
        for (double depth : {0.0, 0.5, 1.0}) {
            const std::vector<int> s = needle_sequence(o, 64, depth, 3);
            REQUIRE(s.size() == 64);
            CHECK(s[0] == 256);
            const int fill = 64 - 1 - 4 * NEEDLE_TOKENS, at = 1 + int(std::lround(depth * fill));
            const std::vector<int> needle(s.end() - 2 * NEEDLE_TOKENS, s.end());
            CHECK(std::equal(needle.begin(), needle.end(), s.begin() + at));
            CHECK(std::set<int>(needle.begin(), needle.end()).size() == 2 * NEEDLE_TOKENS);
            for (int i = 1; i < 64 - 2 * NEEDLE_TOKENS && text; i++)
                CHECK((s[size_t(i)] >= 100) == (i < at || i >= at + 2 * NEEDLE_TOKENS));
            CHECK(needle_sequence(o, 64, depth, 3) == s);
            CHECK(needle_sequence(o, 64, depth, 4) != s);
        }
    }
}

TEST_CASE("needle: who says the value finds it; the log-probabilities are the loss's") {
    const int T = 48;
    const NeedleOptions o = needle_options(T);
    const std::vector<int> script = needle_sequence(o, T, 0, 0);    // equal ends at all depths
    Actor actor(script, T);
    int64_t seen = 0, all = 0;
    const Result<std::vector<NeedleCell>> cells = find_needles(actor.g, o, [&](int64_t done, int64_t of) {
        CHECK(done > seen);
        seen = done, all = of;
    });
    REQUIRE(cells.ok());
    CHECK(seen == all);
    REQUIRE(cells.value.size() == 6);
    for (auto& cell : cells.value) {
        CAPTURE(cell.length);
        CHECK(cell.trials == 1);
        CHECK(cell.found == (cell.length == T));
        const std::vector<int> s = needle_sequence(o, cell.length, cell.depth, 0);
        double logprob = 0;
        Model g(cpu_ops<float>());
        REQUIRE(g.allocate(actor.g.c, {RunMode::infer, 1, T}).ok());
        const std::vector<float> w = flat_part(actor.g, StateKind::weights);
        g.write(StateKind::weights, 0, int64_t(w.size()), w.data());
        std::vector<float> losses(s.size() - 1);
        losses_of(g, {s.begin(), s.end() - 1}, {s.begin() + 1, s.end()}, 1, int(s.size()) - 1, losses.data());
        for (int i = 0; i < NEEDLE_TOKENS; i++) logprob -= double(losses[losses.size() - 1 - size_t(i)]);
        CHECK(cell.logprob == doctest::Approx(logprob / NEEDLE_TOKENS).epsilon(1e-4));
    }
    NeedleOptions wrong = o;
    wrong.longest = 17;
    CHECK(find_needles(actor.g, wrong, {}).status.code == Exit::usage);
    wrong = o, wrong.choices.resize(7);
    CHECK(find_needles(actor.g, wrong, {}).status.code == Exit::usage);
}

TEST_CASE("eval: --needle prints, writes and refuses") {
    const Toy toy;
    must(toy.args("run", {"--steps", "2", "--position", "rope"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin", csv = toy.dir + "/a.csv";
    write_file(toy.dir + "/t.txt", "a line\nanother line\n");
    const Strings small = {"eval", run, "--needle", "--depths", "3", "--lengths", "2", "--trials", "2"};
    auto with = [&](const Strings& more) {
        Strings a = small;
        return a.insert(a.end(), more.begin(), more.end()), a;
    };
    const ProcessResult r = must(with({"--csv", csv}));
    CHECK(contains(r.out, "needles found, %: rows are depths, columns lengths in tokens\n      32\n0 %      0\n"));
    CHECK(contains(r.out, "found 0 of 6 "));
    CHECK(read_file(csv).starts_with("length,depth,trials,found,logprob\n32,0,2,0,-"));
    CHECK(must(small).out == r.out);
    const nlohmann::json longer = nlohmann::json::parse(must(with({"--context", "128", "--json"})).out);
    CHECK(longer["needle"].size() == 6);
    CHECK(longer["needle"][5]["length"] == 128);
    for (const Strings& text : {Strings{"--data", val}, Strings{"--text", toy.dir + "/t.txt"}})
        CHECK(must(with(text)).out != r.out);
    const struct {
        Strings args;
        const char* says;
    } rows[] = {{with({"--by-position", "--data", val}), "--by-position and --needle exclude each other"},
                {with({"--documents", "--data", val}), "--documents and --needle exclude each other"},
                {{"eval", run, "--data", val, "--by-position", "--documents"}, "--by-position and --documents exclude"},
                {with({"--data", val, "--text", val}), "--data and --text exclude each other"},
                {with({"--field", "a"}), "--field needs --text"},
                {with({"--raw-u16"}), "--raw-u16 needs --data"},
                {with({"--seq-len", "12"}), "a needle and its question take 18 tokens, a sequence has 12"},
                {with({"--seq-len", "64"}), "--seq-len 64: the model's context has 32 positions"},
                {{"eval", run, "--data", val, "--trials", "2"}, "--trials needs --needle"},
                {{"eval", run, "--data", val, "--csv", csv}, "--csv needs --by-position or --needle"},
                {{"eval", run, "--text", val, "--by-position"}, "--by-position needs --data"},
                {with({"--picture", "a"}), "--picture a: expected a file's name that ends in .png or .svg"}};
    for (auto& row : rows) must(row.args, 2, row.says);
    must(with({"--csv", "/nonexistent/a.csv"}), 4, "--csv: /nonexistent/a.csv cannot be written");
    must(toy.args("masked", {"--steps", "1", "--objective", "mlm"}));
    must({"eval", toy.dir + "/masked", "--needle"}, 2, "it cannot write a text from its beginning to its end");
    must(with({"--text", "/nonexistent"}), 3);
    if (!dlopen("librsvg-2.so.2", RTLD_NOW)) SKIP("no librsvg-2.so.2");
    must(with({"--picture", toy.dir + "/a.png"}));
    CHECK(read_file(toy.dir + "/a.png").starts_with("\x89PNG\r\n"));
}

TEST_CASE("needle: cells are as wide as the terminal allows, and texts stand where they fit") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1", "--position", "rope"}));
    auto printed = [&](const char* columns, const char* lengths) {
        ProcessOptions options;
        options.environment = {std::string("COLUMNS=") + columns};
        const ProcessResult r = run_flatgpt({"eval", toy.dir + "/run", "--needle", "--context", "256", "--trials", "1",
                                             "--depths", "2", "--lengths", lengths},
                                            options);
        REQUIRE(r.exit_code == 0);
        size_t longest = 0, begin = r.out.find('\n') + 1;    // behind the title's line
        for (size_t end; begin < r.out.find("found"); begin = end + 1)
            end = r.out.find('\n', begin), longest = std::max(longest, end - begin);
        return std::pair(r.out, longest);
    };
    CHECK(contains(printed("80", "8").first, "\n0 %      0      0"));
    CHECK(printed("80", "8").second <= 79);
    const auto [narrow, longest] = printed("60", "40");
    CHECK(longest <= 59);
    CHECK(contains(narrow, "\nshades:"));
    CHECK(contains(narrow, "\n0 %\n"));

    auto texts = [&](int lengths) {
        std::vector<NeedleCell> cells;
        for (int i = 1; i <= lengths; i++) cells.push_back({i, 0.5, 1, 1});
        const std::string svg = toy.dir + "/a.svg";
        REQUIRE(write_needle_picture(svg, cells).ok());
        const std::string text = read_file(svg);
        int n = 0;
        for (size_t at = 0; (at = text.find("<text ", at)) != text.npos; at++) n++;
        return n;
    };
    CHECK(texts(8) - texts(7) == 2);    // "100" in a cell and its length below
    CHECK(texts(200) < 200);            // cells of 2 pixels hold no texts
}
