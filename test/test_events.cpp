// test_events.cpp - TensorBoard's event files: bytes, and what runs write, also when they are
// killed.
#include "files/crc.h"
#include "files/event_file.h"
#include "files/json.h"
#include "toy_ranks.h"

namespace {
std::string hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) text += formatted("%02x", unsigned(static_cast<unsigned char>(c)));
    return text;
}
// Reads protocol buffers: calls field(number, value or length, bytes).
template <class F> void each_field(const std::string& message, F field) {
    size_t at = 0;
    auto varint = [&] {
        uint64_t x = 0;
        for (int shift = 0;; shift += 7) {
            REQUIRE(at < message.size());
            const auto byte = static_cast<unsigned char>(message[at++]);
            x |= uint64_t(byte & 0x7F) << shift;
            if (byte < 0x80) return x;
        }
    };
    while (at < message.size()) {
        const uint64_t key = varint();
        uint64_t number = 0;
        std::string bytes;
        if (key % 8 == 0) number = varint();
        else {
            const size_t n = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : size_t(varint());
            REQUIRE(at + n <= message.size());
            bytes = message.substr(at, n);
            at += n;
        }
        field(int(key / 8), number, bytes);
    }
}
uint32_t masked(const std::string& bytes) {
    const uint32_t crc = crc32c(0, bytes.data(), int64_t(bytes.size()));
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}
template <class N> N number_at(const std::string& bytes, size_t at) {
    N x;
    REQUIRE(at + sizeof x <= bytes.size());
    memcpy(&x, &bytes[at], sizeof x);
    return x;
}
struct Events {
    std::map<int64_t, std::map<std::string, double>> scalars;    // by step and tag
    std::map<int64_t, std::map<std::string, std::string>> texts;
    std::vector<int64_t> steps;    // steps of the summaries, in their order
    int restarts = 0;
    double first_time = 0, last_time = 0;
};
Events events_of(const std::string& run) {
    Events all;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(run + "/tensorboard")) files.push_back(entry.path());
    REQUIRE(files.size() == 1);
    CHECK(contains(files[0].filename(), "events.out.tfevents."));
    const std::string text = read_file(files[0]);
    for (size_t at = 0; at < text.size();) {
        const auto n = number_at<uint64_t>(text, at);
        REQUIRE(at + 16 + n <= text.size());
        CHECK(number_at<uint32_t>(text, at + 8) == masked(text.substr(at, 8)));
        const std::string event = text.substr(at + 12, n);
        CHECK(number_at<uint32_t>(text, at + 12 + n) == masked(event));
        at += 16 + n;
        int64_t step = 0;
        each_field(event, [&](int field, uint64_t x, const std::string& bytes) {
            if (field == 1) all.last_time = number_at<double>(bytes, 0);
            if (field == 2) step = int64_t(x);
            if (field == 3) CHECK(bytes == "brain.Event:2");
            if (field == 7) all.restarts++;
            if (field != 5) return;
            if (all.steps.empty()) all.first_time = all.last_time;
            all.steps.push_back(step);
            each_field(bytes, [&](int, uint64_t, const std::string& value) {
                std::string tag;
                each_field(value, [&](int part, uint64_t, const std::string& of) {
                    if (part == 1) tag = of;
                    if (part == 2) all.scalars[step][tag] = double(number_at<float>(of, 0));
                    if (part == 8)
                        each_field(of, [&](int f, uint64_t, const std::string& s) {
                            if (f == 8) all.texts[step][tag] = s;
                        });
                });
            });
        });
    }
    return all;
}
std::vector<int64_t> up_to(int64_t n) {
    std::vector<int64_t> all;
    for (int64_t i = 1; i <= n; i++) all.push_back(i);
    return all;
}
}    // namespace

// The bytes are those of tensorboard 2.21's RecordWriter for equal messages
// (dev/check_tensorboard.py).
TEST_CASE("events: records have the bytes that TensorBoard's own writer gives them") {
    CHECK(hex(event_file_version(1.5)) ==
          "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
    CHECK(hex(event_restart(1.5, 300)) == "100000000000000095fbfe1809000000000000f83f10ac023a020801713b788a");
    CHECK(hex(event_summary(1790000000.125, 7, {{"loss", 2.25f}, {"lr", 0.001f}}, {{"sample", "a\u00e4\n"}})) ==
          "4700000000000000bac3fb9b09000008e04eacda4110072a3a0a0b0a046c6f737315000010400a090a026c72156f12833a0a200a0673"
          "616d706c65420a08071200420461c3a40a4a0a0a060a04746578742002f6ac5d08");
}

TEST_CASE("events: a run's file has each step once, whatever ended the run before") {
    Toy toy;
    const std::string prompts = toy.dir + "/prompts.txt";
    write_file(prompts, "abc\n\nde\n");
    std::vector<std::string> command =
        toy.args("whole", {"--steps", "30", "--save-every", "4", "--eval-every", "8", "--sample-prompts", prompts,
                           "--sample-tokens", "4", "--norms-every", "10"});
    command.push_back("--tensorboard");
    must(command);
    auto check = [&](const std::string& run) {
        const Events e = events_of(toy.dir + "/" + run);
        CHECK(e.steps == up_to(30));
        CHECK(e.restarts == 1);
        CHECK(e.first_time > 1.7e9);
        CHECK(e.last_time >= e.first_time);
        std::istringstream lines(read_file(toy.dir + "/" + run + "/metrics.jsonl"));
        for (std::string line; std::getline(lines, line);) {
            const nlohmann::json row = json_parse(line, "row", 4).value;
            const int64_t step = row["step"];
            const auto& scalars = e.scalars.at(step);
            for (const char* key : {"loss", "lr", "grad_norm", "ms", "tokens_per_second", "memory", "tokens"})
                CHECK(scalars.at(key) == doctest::Approx(row[key].get<double>()).epsilon(1e-6));
            CHECK(scalars.count("val_loss") == (step % 8 == 0 || step == 30));
            CHECK(scalars.count("update_norm/0.qkvw") == (step % 10 == 0));
            CHECK(scalars.count("time") + scalars.count("step") == 0);
            REQUIRE(row.contains("samples") == (step % 8 == 0 || step == 30));
            if (!row.contains("samples")) continue;
            REQUIRE(row["samples"].size() == 2);
            CHECK(row["samples"][1]["prompt"] == "de");
            CHECK(e.texts.at(step).at("sample/2") == "de" + row["samples"][1]["text"].get<std::string>());
            CHECK(e.texts.at(step).at("sample/1").starts_with("abc"));
        }
    };
    check("whole");
    killed_and_resumed(toy, command, {3, 13, 22}, check);
    // Files that a crash has left between the renaming and the removal, and of another program.
    const std::string dir = toy.dir + "/whole/tensorboard/";
    write_file(dir + "events.out.tfevents.0000000001.host.1.flatgpt", "old");
    write_file(dir + "events.out.tfevents.9999999998.host.1.flatgpt", "later");
    write_file(dir + "events.out.tfevents.9223372036854775807.host.1.flatgpt", "last");
    must(with(toy.args("whole", {"--steps", "32", "--resume", "auto"}), {"--tensorboard"}));
    CHECK(events_of(toy.dir + "/whole").steps == up_to(32));
}

TEST_CASE("events: a report that cannot be written is a warning, and the run goes on") {
    Toy toy;
    fs::create_directories(toy.dir + "/run/report.html");
    write_file(toy.dir + "/run/tensorboard", "a file");
    const ProcessResult r =
        must(with(toy.args("run", {"--steps", "4", "--eval-every", "1"}), {"--tensorboard", "--report"}));
    for (const char* flag : {"warning: --report: ", "warning: --tensorboard: "}) {
        const size_t at = r.err.find(flag);
        CHECK(at != std::string::npos);
        CHECK(r.err.find(flag, at + 1) == std::string::npos);    // once
    }
    CHECK(toy.metrics("run").size() > 100);
}
