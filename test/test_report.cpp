// test_report.cpp - the page of runs: down-sampling, its JSON, hostile texts, its size, and the
// page in a browser.
#include "base/console.h"
#include "files/json.h"
#include "toy_run.h"
#include "train/report/page.h"

#include <sstream>
#include <unistd.h>

using nlohmann::json;

namespace {
// The page's JSON, which a browser would read.
json data_of(const std::string& html) {
    const std::string open = "<script type=\"application/json\" id=\"data\">";
    const size_t from = html.find(open), end = html.find("</script>", from);
    REQUIRE(from != std::string::npos);
    const Result<json> j = json_parse(html.substr(from + open.size(), end - from - open.size()), "page", 32);
    REQUIRE_MESSAGE(j.ok(), j.status.message);
    return j.value;
}
json page_of(std::vector<std::string> args, const std::string& file) {
    args.insert(args.begin(), "plot");
    must(with(args, {"--html", file}));
    return data_of(read_file(file));
}
int count_of(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) n++;
    return n;
}
// Rows as a run of this many steps writes them, with a validation every `validations` steps.
void write_run(const std::string& dir, int steps, int validations, const std::string& more = "") {
    fs::create_directories(dir);
    std::string rows;
    for (int i = 1; i <= steps; i++) {
        rows += formatted(
            R"({"step":%d,"loss":%.17g,"lr":%.17g,"grad_norm":%.17g,"ms":250.5,"tokens_per_second":%.17g,)"
            R"("mfu":%.17g,"memory":1234567890,"time":1790000000.5,"tokens":%d)",
            i, 3 + 5 / std::sqrt(double(i)) + 0.1 * std::sin(i * 12.9898), 1e-3 / i, 0.5 + 0.1 * std::sin(i * 78.233),
            1e6 + 1e3 * std::sin(i * 3.7), 0.4 + 0.01 * std::sin(i * 9.1), i * 1000);
        if (i % validations == 0) rows += formatted(R"(,"val_loss":%.17g)", 3.1 + 1.0 / i);
        rows += more + "}\n";
    }
    write_file(dir + "/metrics.jsonl", rows);
}
// A reader's actions, and the page's texts after them, as JSON in the title.
const char* const READER = R"JS((() => {
        const q = s => document.querySelector(s), all = s => [...document.querySelectorAll(s)];
        const key = (e, k) => e.dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true, cancelable: true}));
        const chart = q("figure[data-metric=loss]"), canvas = chart.querySelector("canvas");
        const painted = () => { const d = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                                let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; };
        const readout = () => chart.querySelector(".readout").textContent;
        const out = {charts: all("#charts figure").map(f => f.dataset.metric), painted: painted(),
            heads: all("main > section:not([hidden]) h2").map(h => h.textContent), bold: all("main b").length,
            settings: all("#settings td").map(t => t.textContent), pre: q("#samples pre").textContent,
            summary: all("#summary tbody tr").map(r => r.cells[0].textContent + "|" + r.cells[2].textContent),
            heat: all(".heat td").map(t => t.textContent), norms: all("#norms tbody td").map(t => t.textContent),
            drawn: Number(document.documentElement.dataset.drawn)};
        const box = canvas.getBoundingClientRect();
        const mouse = (type, x) => canvas.dispatchEvent(new PointerEvent(type,
            {clientX: box.left + x, clientY: box.top + 50, pointerId: 1, bubbles: true}));
        const finger = (type, x, id = 2) => canvas.dispatchEvent(new PointerEvent(type, {clientX: box.left + x,
            clientY: box.top + 50, pointerId: id, pointerType: "touch", bubbles: true}));
        const lifted = (x, id) => { finger("pointerup", x, id); finger("pointerleave", x, id); };
        key(canvas, "End"); out.end = readout();
        key(canvas, "ArrowLeft"); out.left = readout();
        key(canvas, "Home"); out.home = readout();
        mouse("pointermove", box.width / 2); out.hover = readout();
        mouse("pointerleave", 0); out.left_canvas = readout();
        finger("pointerdown", 300); finger("pointermove", 400); lifted(400); out.tap = readout();
        out.tapped = location.hash;
        finger("pointerdown", 200); finger("pointerdown", 400, 3); lifted(400, 3); lifted(200);
        out.pinched = location.hash; key(canvas, "Escape");
        all("#legend button")[1].click(); key(canvas, "End"); out.one = readout();
        all("#legend button")[1].click();
        q("#axis").value = "tokens"; q("#axis").dispatchEvent(new Event("change"));
        key(canvas, "End"); out.tokens = readout();
        q("#smooth").value = 0.9; q("#smooth").dispatchEvent(new Event("input")); out.smooth = readout();
        key(canvas, "+"); out.hash = location.hash; key(canvas, "Escape"); out.reset = location.hash;
        chart.querySelector("input").click(); out.log = location.hash;
        document.title = JSON.stringify(out);
    })();)JS";
std::string browser() {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
        for (const char* dir : {"/usr/bin/", "/usr/local/bin/", "/snap/bin/"})
            if (access((std::string(dir) + name).c_str(), X_OK) == 0) return std::string(dir) + name;
    return "";
}
// Opens the page with a script at its end; returns the document afterwards, and on stderr the
// console.
ProcessResult opened(const std::string& html, const std::string& script, const std::string& dir,
                     const std::vector<std::string>& more = {}) {
    std::string page = html;
    page.insert(page.rfind("</body>"), "<script>" + script + "</script>");
    write_file(dir + "/opened.html", page);
    std::vector<std::string> args = {browser(),
                                     "--headless=new",
                                     "--no-sandbox",
                                     "--disable-gpu",
                                     "--window-size=1200,900",
                                     "--user-data-dir=" + dir + "/chromium",
                                     "--enable-logging=stderr",
                                     "--virtual-time-budget=2000",
                                     "--dump-dom"};
    args.insert(args.end(), more.begin(), more.end());
    args.push_back("file://" + dir + "/opened.html");
    return run_process(args);
}
}    // namespace

TEST_CASE("report: down-sampling keeps sums, bounds and single values") {
    // waves: else the values fall, so that the first of two buckets has the largest.
    for (const auto& [n, waves] :
         {std::pair{1, true}, {99, true}, {200, true}, {201, true}, {100000, true}, {100000, false}}) {
        INFO(n);
        Series s(100);
        double sum = 0, low = INFINITY, high = -INFINITY;
        for (int i = 0; i < n; i++) {
            const double x = waves ? std::sin(i * 12.9898) : -i;
            sum += x;
            low = std::min(low, x);
            high = std::max(high, x);
            s.add({double(i), 10.0 * i, 0.5 * i}, x);
            s.add({double(i), 0, 0}, NAN);    // ignored
        }
        CHECK(s.buckets().size() <= 200);
        CHECK((n < 400 || s.buckets().size() >= 100));
        CHECK(s.exact() == (n <= 200));
        double all = 0, least = INFINITY, most = -INFINITY, before = -1;
        int64_t count = 0;
        for (const Series::Bucket& b : s.buckets()) {
            all += b.value_sum;
            count += b.count;
            least = std::min(least, b.min);
            most = std::max(most, b.max);
            CHECK(b.min <= b.value_sum / double(b.count) + 1e-12);
            const double step = b.sum.step / double(b.count);
            CHECK(step > before);
            CHECK(b.sum.tokens == doctest::Approx(10 * b.sum.step));
            CHECK(b.sum.seconds == doctest::Approx(0.5 * b.sum.step));
            before = step;
        }
        CHECK(count == n);
        CHECK(all == doctest::Approx(sum));
        CHECK((least == low && most == high));
    }
}

TEST_CASE("report: a page has the runs' metrics, settings and samples, whatever they contain") {
    const std::string dir = temporary_directory(), hostile = "</script><script>alert(1)</script><!-- <b>&amp;";
    const std::string a = dir + "/runs/a", b = dir + "/runs/<img src=x onerror=alert(1)>", file = dir + "/page.html";
    write_run(a, 50, 10,
              R"(,"samples":[{"prompt":"p<","text":)" + json(hostile).dump() +
                  R"(}],"own metric":2,"eval":{"piqa":{"acc":0.5,"acc_stderr":0.1,"items":4,"shots":0}})");
    write_run(b, 30, 10);
    write_file(b + "/metrics.jsonl", read_file(b + "/metrics.jsonl") + "{\"step\":31,\"loss\":null,\"val_loss\":9}\n");
    write_file(a + "/run.toml", "lr = 0.001\nsteps = 100\nmodel = \"d2\"\n");
    write_file(b + "/run.toml", "lr = 0.002\nsteps = 30\nmodel = \"d2\"\nnote = " + json(hostile).dump() + "\n");
    const json page = page_of({a, b}, file);
    const std::string html = read_file(file);
    CHECK(count_of(html, "<script") == 2);    // the data and the program
    CHECK(count_of(html, "</script>") == 2);
    CHECK(count_of(html, "<img") == 0);
    CHECK(count_of(html, "<!--") == 0);
    CHECK(count_of(html, "http://") + count_of(html, "https://") == 0);    // no page loads anything
    REQUIRE(page["runs"].size() == 2);
    const json &one = page["runs"][0], &two = page["runs"][1];
    CHECK(one["name"] == "a");
    CHECK(two["name"] == "<img src=x onerror=alert(1)>");
    CHECK(one["state"] == "stopped");    // 50 of 100 steps, and nothing runs
    CHECK(two["state"] == "finished");
    CHECK(two["settings"]["note"] == hostile);
    CHECK(two["summary"]["best_val_step"] == 30);
    CHECK(one["samples"][0] == json({{"step", 1}, {"prompt", "p<"}, {"text", hostile}}));
    CHECK(one["samples"].size() == 50);
    CHECK(one["metrics"]["own metric"]["mean"].size() == 50);
    CHECK(one["metrics"]["eval/piqa/acc"]["mean"].size() == 50);
    CHECK(!one["metrics"].contains("eval/piqa/acc_stderr"));
    CHECK(!one["metrics"].contains("eval/piqa/items"));
    const json& val = one["metrics"]["val_loss"];
    CHECK(one["axes"][val["axis"].get<size_t>()]["step"] == json({10, 20, 30, 40, 50}));
    CHECK(one["axes"][val["axis"].get<size_t>()]["tokens"][4] == 50000);
    CHECK(val["mean"] == json({3.2, 3.15, 3.1333, 3.125, 3.12}));
    CHECK(val["min"].is_null());    // exact
    CHECK(one["metrics"]["loss"]["axis"] == one["metrics"]["lr"]["axis"]);
    CHECK(one["summary"]["best_val_loss"] == 3.12);
    CHECK(one["summary"]["best_val_step"] == 50);
    CHECK(one["summary"]["steps"] == 100);
    CHECK(one["axes"][0]["time"][49] == 12.525);    // 50 times 250.5 ms
}

TEST_CASE("report: sections are pictures and tables; bad files, names and lines are errors") {
    const std::string dir = temporary_directory(), run = dir + "/run", file = dir + "/page.html";
    write_run(run, 5, 2);
    write_file(dir + "/m.svg", "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>");
    write_file(dir + "/one.json", R"({"what":"x","rows":[{"op":"norm","us":1.5},{"op":"<b>","more":[1]}]})");
    write_file(dir + "/lines.json", "{\"op\":\"norm\",\"us\":1.5}\n\n{\"op\":\"qkv\",\"us\":2}\n");
    const json page = page_of(
        {run, "--section", dir + "/m.svg", "--section", dir + "/one.json", "--section", dir + "/lines.json"}, file);
    const json& s = page["sections"];
    REQUIRE(s.size() == 3);
    CHECK(s[0]["title"] == "m.svg");
    CHECK(s[0]["image"].get<std::string>().starts_with("data:image/svg+xml;base64,PHN2Zy"));
    CHECK(s[1]["tables"][0] == json::parse(R"({"title":"","head":["what"],"rows":[["x"]]})"));
    CHECK(s[1]["tables"][1]["head"] == json({"op", "us", "more"}));
    CHECK(s[1]["tables"][1]["rows"] == json::parse(R"([["norm",1.5,null],["<b>",null,"[1]"]])"));
    CHECK(s[2]["tables"][0]["rows"] == json::parse(R"([["norm",1.5],["qkv",2]])"));
    CHECK(count_of(read_file(file), "<script") == 2);

    auto plot = [&](const std::vector<std::string>& more, int code, const std::string& says) {
        must(with({"plot", run, "--html", file}, more), code, says);
    };
    write_file(dir + "/no.json", "[1, 2]");
    write_file(dir + "/no.svg", "hello");
    write_file(dir + "/cut.json", "{\"a\":1}\n{\"b\"");
    plot({"--section", dir + "/no.json"}, 3, "expected JSON objects");
    plot({"--section", dir + "/no.svg"}, 3, "found no SVG");
    plot({"--section", dir + "/cut.json"}, 3, "cut.json:2");
    plot({"--section", dir + "/none.svg"}, 3, "none.svg");
    plot({"--section", dir + "/a.txt"}, 2, "ends in .svg, .png or .json");
    plot({"--csv"}, 2, "--csv");
    must({"plot", run, "--section", dir + "/m.svg"}, 2, "--html");
    must({"plot", run, "--html", dir}, 2, "--html");
    must({"plot", run, "--html", "/nonexistent/a.html"}, 4, "--html");
    must({"plot", run, "--png", "a.svg"}, 2, "ends in .png");
    must({"plot", run, "--svg", "a.png"}, 2, "ends in .svg");
    for (const char* line :
         {"[]", "{\"step\":1", "{\"step\":-1}", "{\"loss\":1}", "{\"step\":\"x\"}", "{\"step\":1e99}",
          "{\"step\":1,\"norms\":[1]}", "{\"step\":1,\"norms\":{\"a\":[1,2]}}", "{\"step\":1,\"a\":[[[[[1]]]]]}"}) {
        INFO(line);
        write_file(run + "/metrics.jsonl",
                   "{\"step\":0,\"loss\":1}\n" + std::string(line) + "\n{\"step\":3,\"loss\":2}\n");
        plot({}, 3, "metrics.jsonl:2");
    }
    std::string many = "{\"step\":1";
    for (int i = 0; i < 300; i++) many += ",\"m" + std::to_string(i) + "\":1";
    write_file(run + "/metrics.jsonl", many + "}\n");
    plot({}, 3, "at most 200 metrics");
    write_file(run + "/metrics.jsonl",
               R"({"step":1,"loss":1e300,"val_loss":"x","expert_load":"y","samples":[1],"sample":2})"
               "\n"
               R"({"step":2,"loss":-1e300,"expert_load":[[0.5],["z"]],"a":{"b":{"c":1}}})");
    CHECK(page_of({run}, file)["runs"][0]["experts"].is_null());
    write_file(run + "/metrics.jsonl", "");
    plot({}, 3, "no rows");
}

TEST_CASE("report: the page of 100,000 steps is under 2 MB, its validations exact") {
    const std::string dir = temporary_directory(), file = dir + "/page.html";
    write_run(dir + "/long", 100000, 25);
    const json page = page_of({dir + "/long"}, file);
    MESSAGE(fs::file_size(file) << " bytes");
    CHECK(fs::file_size(file) < 2'000'000);
    const json& metrics = page["runs"][0]["metrics"];
    CHECK(metrics["val_loss"]["mean"].size() == 4000);
    CHECK(metrics["val_loss"]["min"].is_null());
    CHECK(metrics["loss"]["mean"].size() >= 800);
    CHECK(metrics["loss"]["mean"].size() <= 1600);
    double low = INFINITY, high = -INFINITY;
    for (const json& x : metrics["grad_norm"]["min"]) low = std::min(low, x.get<double>());
    for (const json& x : metrics["grad_norm"]["max"]) high = std::max(high, x.get<double>());
    CHECK(low == doctest::Approx(0.4).epsilon(1e-3));
    CHECK(high == doctest::Approx(0.6).epsilon(1e-3));
}

TEST_CASE("report: with many metrics the later ones have fewer values") {
    const std::string dir = temporary_directory();
    std::string more;
    for (int i = 0; i < 100; i++) more += formatted(R"(,"m%02d":%d)", i, i);
    write_run(dir + "/run", 3000, 100, more);
    const json page = page_of({dir + "/run"}, dir + "/page.html");
    const json& metrics = page["runs"][0]["metrics"];
    CHECK(metrics["m00"]["mean"].size() == 1500);
    CHECK(metrics["m99"]["mean"].size() >= 100);
    CHECK(metrics["m99"]["mean"].size() <= 200);
    CHECK(metrics["val_loss"]["mean"].size() == 30);
    CHECK(!metrics.contains("tokens"));
    CHECK(!metrics.contains("time"));
}

TEST_CASE("report: a browser draws the page, and shows values by pointer and keys") {
    if (browser().empty()) SKIP("no Chromium is installed here");
    const std::string dir = temporary_directory(), file = dir + "/page.html";
    write_run(dir + "/long", 100000, 5000, R"(,"toString":1,"norms":{"wte":[3,0.2,0.001],"0.qkvw":[2,0.1,0.002]})");
    write_run(dir + "/<i>b", 1000, 100, R"(,"sample":"</script><b>bold</b>","expert_load":[[0.25,0.75]])");
    write_file(dir + "/long/run.toml", "lr = 0.001\n");
    write_file(dir + "/<i>b/run.toml", "lr = 0.002\n");
    page_of({dir + "/long", dir + "/<i>b"}, file);
    CHECK(fs::file_size(file) < 2'000'000);
    const ProcessResult r = opened(read_file(file), READER, dir);
    std::string console;    // Chromium also complains about the machine
    std::istringstream lines(r.err);
    for (std::string line; std::getline(lines, line);)
        if (contains(line, ":CONSOLE")) console += line + "\n";
    CHECK(console == "");
    REQUIRE(r.exit_code == 0);
    for (const char* bad : {"Uncaught", "Refused to", "SEVERE", "TypeError"}) CHECK(!contains(r.err, bad));
    const size_t from = r.out.find("<title>") + 7;
    std::string title = r.out.substr(from, r.out.find("</title>") - from);
    for (const auto& [name, c] : {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}})
        for (size_t at = 0; (at = title.find(name, at)) != std::string::npos;) title.replace(at, strlen(name), c);
    const Result<json> parsed = json_parse(title, "title", 8);
    REQUIRE_MESSAGE(parsed.ok(), title);
    const json& out = parsed.value;
    CHECK(out["charts"] == json({"loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory", "ms", "toString"}));
    CHECK(out["painted"] > 500);
    CHECK(out["heads"] == json({"Runs", "Metrics", "Norms of tensors", "Load of experts", "Samples", "Settings"}));
    CHECK(out["settings"] == json({"lr", "0.001", "0.002"}));
    CHECK(out["pre"] == "</script><b>bold</b>");
    CHECK(out["summary"] == json({"long|100000", "<i>b|1000"}));
    CHECK(out["heat"] == json({"25.0 %", "75.0 %"}));
    CHECK(out["norms"] == json({"0.qkvw", "2", "0.1", "0.002", "0.001", "wte", "3", "0.2", "0.001", "3.33e-4"}));
    auto text = [&](const char* key) { return out[key].get<std::string>(); };
    for (const char* key : {"end", "left", "home", "hover", "tap", "one", "tokens"}) {
        INFO(key << ": " << text(key));
        CHECK(contains(text(key), std::string(key) == "home" ? "long loss 4." : "long loss 3."));
        CHECK(contains(text(key), "long val_loss 3.1"));
        CHECK(contains(text(key), "<i>b val_loss 3.1") == (std::string(key) != "one"));
    }
    CHECK(text("end") != text("left"));
    CHECK(text("left_canvas") == "");
    CHECK(!contains(text("tapped"), "from="));
    CHECK(contains(text("pinched"), "from="));
    CHECK(contains(text("tokens"), "tokens 9"));
    CHECK(contains(text("hash"), "x=tokens"));
    CHECK(contains(text("hash"), "smooth=0.9"));
    CHECK(contains(text("hash"), "from="));
    CHECK(!contains(text("reset"), "from="));
    CHECK(contains(text("log"), "log=loss"));
    MESSAGE("drawn in " << out["drawn"] << " ms");
    CHECK(out["drawn"] > 0);
    CHECK(out["drawn"] < 5000);    // 300 ms where nothing else runs
}
