// test_chat_command.cpp - `flatgpt chat` in a pipe and at a terminal; the files that configure it.
#include "files/json.h"
#include "infer/model_defaults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>

#include "speaker.h"

using Strings = std::vector<std::string>;

TEST_CASE("generation_config.json and lists of ends go out as they came in: converted, trained, resumed") {
    using nlohmann::json;
    const std::string dir = polite_model();
    const json ends = {258, 257},
               own = {{"temperature", 0.6},        {"top_p", 0.95},     {"top_k", 20},         {"min_p", 0.1},
                      {"repetition_penalty", 1.1}, {"do_sample", true}, {"max_new_tokens", 9}, {"stop_strings", {"x"}},
                      {"eos_token_id", ends}};
    json config = json::parse(read_file(dir + "/config.json"));
    config["eos_token_id"] = ends;
    write_file(dir + "/config.json", config.dump());
    write_file(dir + "/generation_config.json", own.dump());
    auto run = [](const Strings& args) {
        const ProcessResult r = run_flatgpt(args);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
    };
    auto same = [&](const std::string& out) {
        CHECK(json::parse(read_file(out + "/generation_config.json")) == own);
        CHECK(json::parse(read_file(out + "/config.json"))["eos_token_id"] == ends);
    };
    const std::string out = temporary_directory();
    run({"convert", dir, out + "/converted"});
    same(out + "/converted");
    write_file(out + "/text", std::string(2000, 'a'));
    run({"tokenize", "--tokenizer", dir, "--out", out + "/tokens", out + "/text"});
    Strings train = {"train",   "--from",  dir,       "--data", out + "/tokens*.bin",
                     "--steps", "1",       "--batch", "2",      "--seq-len",
                     "16",      "--dtype", "fp32",    "--out",  out + "/run"};
    run(train);
    same(out + "/run/step_00000001");
    std::filesystem::remove_all(dir);    // resuming may read only the checkpoint
    train[6] = "2";
    train.insert(train.end(), {"--resume", "auto"});
    run(train);
    same(out + "/run/step_00000002");
}

TEST_CASE("chat: what a conversation is written with, and what ends an answer") {
    Vocabulary v = chat_tokenizer().vocabulary();
    const int end_of_text = chat_tokenizer().end_of_text();
    const std::string dir = temporary_directory();
    auto read = [&](const std::string& named = "") { return chat_format(dir, named, Tokenizer(v)); };
    CHECK(read().status.code == Exit::usage);
    CHECK(contains(read().status.message, "--template chatml"));
    CHECK(read("chatml").value.ends == std::vector<int>{end_of_text, END_OF_TURN});
    CHECK(read("chatml").value.stop.empty());
    CHECK(read(dir + "/none").status.code == Exit::input);
    v.chat_template = "<|im_end|><|eot_id|>", v.bos = 65, v.eos = START_OF_TURN, v.ends = {66, 67};
    const ChatFormat format = read().value;
    CHECK(format.bos == v.tokens[65]);
    CHECK(format.eos == "<|im_start|>");
    CHECK(format.ends == std::vector<int>{66, 67, end_of_text, START_OF_TURN, END_OF_TURN});
    CHECK(format.stop == Strings{"<|eot_id|>"});    // no token of this vocabulary
    CHECK(contains(format.name, dir));
    write_file(dir + "/other", "other");
    CHECK(read(dir + "/other").value.chat_template == "other");
    CHECK(read(dir + "/other").value.stop.empty());
}

TEST_CASE("chat: in a pipe, answers go to standard output and all else to standard error") {
    const std::string dir = polite_model();
    auto said = [&](const std::string& typed, Strings more = {}) {
        more.insert(more.begin(), {"chat", dir, "--temperature", "0"});
        return run_flatgpt(more, {.stdin_text = typed});
    };
    const ProcessResult two = said("u\n/params top-k 3\nu");
    INFO(two.err);
    CHECK(two.exit_code == 0);
    CHECK(two.out == "hello\nhello\n");
    CHECK(two.err == "");
    CHECK(said("u\n/exit\nu\n").out == "hello\n");
    CHECK(said("").out == "");
    CHECK(said("\"\"\"u\n").out == "hello\n");
    CHECK(said("u\nu\n", {"--json"}).out ==
          "{\"role\":\"assistant\",\"content\":\"hello\"}\n{\"role\":\"assistant\",\"content\":\"hello\"}\n");
    const ProcessResult verbose = said("u\n", {"--verbose", "--tokens", "2"});
    CHECK(verbose.out == "he\n");
    CHECK(contains(verbose.err, "20 of 20 tokens new"));
    CHECK(contains(verbose.err, "the answer ends after 2 tokens"));
    const ProcessResult bad = said("u\n/load /nowhere\nu\n");
    CHECK(bad.exit_code == 3);
    CHECK(bad.out == "hello\n");
    CHECK(contains(bad.err, "/nowhere"));
    CHECK(said("/params x\n").exit_code == 2);
    CHECK(said("u\n", {"--context", "257"}).exit_code == 2);
    CHECK(said("u\n", {"--template", "/nowhere"}).exit_code == 3);
    CHECK(said("u\n", {"--stop", "llo"}).out == "he\n");

    write_file(dir + "/generation_config.json", R"({"max_new_tokens": 3, "stop_strings": ["l"]})");
    const ProcessResult own = said("u\n");
    CHECK(own.out == "he\n");
    CHECK(contains(own.err, "generation_config.json sets --tokens 3"));
    CHECK(said("u\n", {"--tokens", "1"}).out == "h\n");
    const std::string prompt = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n";
    auto sampled = [&](Strings more = {}) {
        more.insert(more.begin(), {"sample", dir, "--temperature", "0", "--no-echo", "--prompt", prompt});
        return run_flatgpt(more).out;
    };
    CHECK(sampled() == "he\n");
    CHECK(sampled({"--tokens", "5", "--ignore-end"}) == "hello\n");
    write_file(dir + "/generation_config.json", R"({"temperature": "hot"})");
    CHECK(said("u\n").exit_code == 3);
    CHECK(sampled() == "");
    // eval does not read generation_config.json: its error is the missing data.
    CHECK(contains(run_flatgpt({"eval", dir, "--data", dir + "/no.bin"}).err, "no.bin"));
    std::filesystem::remove(dir + "/generation_config.json");
    write_file(dir + "/chat_template.jinja", "\n{% if %}");
    const ProcessResult broken = said("u\n");
    CHECK(broken.exit_code == 3);
    CHECK_MESSAGE(contains(broken.err, ": chat template: line 2"), broken.err);
    std::filesystem::remove(dir + "/chat_template.jinja");
    CHECK(said("u\n").exit_code == 2);
    CHECK(said("u\n", {"--template", "chatml"}).out == "hello\n");
}

TEST_CASE("chat: drafts by another model or by what was said, and models that cannot draft") {
    const std::string dir = polite_model();
    auto said = [&](Strings more) {
        more.insert(more.begin(), {"chat", dir, "--temperature", "0", "--verbose"});
        return run_flatgpt(more, {.stdin_text = "u\nu\n"});
    };
    for (const Strings& how : {Strings{"--draft", dir}, {"--draft", dir, "--draft-tokens", "2"}, {"--lookup", "4"}}) {
        const ProcessResult r = said(how);
        CHECK(r.out == "hello\nhello\n");
        CHECK_MESSAGE(contains(r.err, " accepted ("), r.err);
        if (how[0] == "--draft") CHECK_FALSE(contains(r.err, "drafted 0 tokens"));
    }
    CHECK_FALSE(contains(said({}).err, "drafted"));
    auto refused = [&](int code, const std::string& why, Strings how) {
        const ProcessResult r = said(how);
        CHECK(r.exit_code == code);
        CHECK(r.out == "");
        CHECK_MESSAGE(contains(r.err, why), r.err);
    };
    refused(2, "--lookup and --draft exclude each other", {"--draft", dir, "--lookup", "4"});
    refused(2, "--draft-tokens needs --draft", {"--draft-tokens", "4"});
    refused(2, "--lookup", {"--lookup", "257"});
    refused(3, "/nowhere: no such file", {"--draft", dir + "/nowhere"});
    SmallSpeaker other(64);
    const Tokenizer merges = Tokenizer::from_merges({{1, 2}}, Pattern::gpt2, {"<|x|>"});
    refused(3, "(258 tokens) is not the one of", {"--draft", write_model(other.g, merges)});
}

TEST_CASE("chat: an added token without an embedding is none, and the tokenizer is still the whole one") {
    Vocabulary v = chat_tokenizer().vocabulary();
    v.tokens.push_back("<image_soft_token>");
    v.added.push_back({.id = CHAT_TOKENS, .special = true});
    v.pad = CHAT_TOKENS, v.bos = 5, v.eos = END_OF_TURN, v.ends = {3, CHAT_TOKENS};
    const Tokenizer whole(v), less = whole.of_model(CHAT_TOKENS);
    CHECK(less.vocab_size() == CHAT_TOKENS);
    CHECK(less.fingerprint() == whole.fingerprint());
    CHECK(less.vocabulary().pad == -1);
    CHECK(less.vocabulary().bos == 5);
    CHECK(less.vocabulary().eos == END_OF_TURN);
    CHECK(less.vocabulary().ends == std::vector<int>{3});
    CHECK(less.vocabulary().added.size() == 3);
    CHECK(whole.encode("a<image_soft_token>", true).back() == CHAT_TOKENS);
    CHECK(less.encode("a<image_soft_token>", true) == less.encode("a<image_soft_token>", false));
    CHECK(less.encode("<|im_end|>", true) == std::vector<int>{END_OF_TURN});
    CHECK(whole.of_model(CHAT_TOKENS + 1).vocab_size() == CHAT_TOKENS + 1);
    CHECK(whole.of_model(255).vocab_size() == CHAT_TOKENS + 1);    // ids from 255 on include a byte's
    const Tokenizer merged = Tokenizer::from_merges({{1, 2}, {3, 4}}, Pattern::gpt2, {"<|x|>"});
    CHECK(merged.of_model(258).vocab_size() == 258);
    CHECK(merged.of_model(257).vocab_size() == 259);

    const std::string dir = polite_model(), larger = temporary_directory();
    write_file(dir + "/tokenizer.json", whole.to_json());
    const ProcessResult said = run_flatgpt({"chat", dir, "--temperature", "0"}, {.stdin_text = "u\nu\n"});
    CHECK_MESSAGE(said.out == "hello\nhello\n", said.err);
    const ProcessResult sampled = run_flatgpt({"sample", dir, "--prompt", "<image_soft_token>", "--tokens", "1"});
    CHECK_MESSAGE(sampled.exit_code == 0, sampled.err);
    write_file(larger + "/text", std::string(300, 'a'));
    REQUIRE(run_flatgpt({"tokenize", "--tokenizer", dir, "--out", larger + "/t", larger + "/text"}).exit_code == 0);
    const ProcessResult measured = run_flatgpt({"eval", dir, "--data", larger + "/t*.bin"});    // shards of `whole`
    CHECK_MESSAGE(measured.exit_code == 0, measured.err);
    // The model has an embedding for <image_soft_token>, the draft model has none.
    Model g(cpu_ops<float>());
    toy_model(g, {.V = CHAT_TOKENS + 1, .T = 64, .L = 1, .NH = 2, .C = 16, .F = 32}, {RunMode::infer, 1, 8});
    const std::string main = write_model(g, whole);
    auto drafted = [](const std::string& model, const std::string& by) {
        return run_flatgpt({"sample", model, "--draft", by, "--tokens", "8", "--prompt", "a"});
    };
    const ProcessResult by_less = drafted(main, dir);
    CHECK(by_less.exit_code == 3);
    CHECK_MESSAGE(contains(by_less.err, "no embeddings for the last 1 tokens of"), by_less.err);
    const ProcessResult by_more = drafted(dir, main);
    CHECK(by_more.exit_code == 0);
    CHECK_MESSAGE(contains(by_more.err, "the draft model's context has 64 tokens"), by_more.err);
}

// ---- at a terminal ------------------------------------------------------------------------------

namespace {
// `flatgpt chat` at a pseudo-terminal at which the test types.
struct Typist {
    int master = -1;
    pid_t child = -1;
    std::string all;    // output that until() has not returned yet
    explicit Typist(Strings args, const std::string& term = "xterm") {
        args.insert(args.begin(), {"env", "TERM=" + term, flatgpt_binary(), "chat"});
        std::vector<char*> argv;
        for (auto& a : args) argv.push_back(a.data());
        argv.push_back(nullptr);
        winsize size{24, 80, 0, 0};
        child = forkpty(&master, nullptr, nullptr, &size);
        if (child == 0) {
            execvp(argv[0], argv.data());
            _exit(127);
        }
        REQUIRE(child > 0);
    }
    ~Typist() {
        if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
        close(master);
    }
    // Waits until the process sleeps (S) in its read of a key: an earlier Ctrl-C would be seen only
    // with the next key. For a process that ended (Z), until()
    // shows the output.
    void type(const std::string& text) {
        for (int asleep = 0; asleep < 3; usleep(5000)) {
            const std::string stat = read_file("/proc/" + std::to_string(child) + "/stat");
            if (stat.empty() || contains(stat, ") S ") || contains(stat, ") Z ")) asleep++;
        }
        send(text);
    }
    void send(const std::string& text) { CHECK(write(master, text.data(), text.size()) == ssize_t(text.size())); }
    // Waits for `part` in the output; returns everything up to its end.
    std::string until(const std::string& part) {
        char piece[4096];
        pollfd ready = {master, POLLIN, 0};
        while (!contains(all, part) && poll(&ready, 1, 20000) > 0) {
            const ssize_t n = read(master, piece, sizeof piece);
            if (n <= 0) break;
            all.append(piece, size_t(n));
        }
        const size_t at = all.find(part);
        REQUIRE_MESSAGE(at != std::string::npos, "expected ", part, ", found ", all);
        const std::string seen = all.substr(0, at + part.size());
        all.erase(0, seen.size());
        return seen;
    }
    int exit_code() {
        char piece[4096];
        while (read(master, piece, sizeof piece) > 0) {}
        int status = 0;
        waitpid(std::exchange(child, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
};
}    // namespace

TEST_CASE("chat: at a terminal lines are edited and remembered; Ctrl-C discards one, Ctrl-D ends") {
    if (!dlopen("libedit.so.2", RTLD_NOW)) SKIP("no libedit.so.2");
    const std::string dir = polite_model();
    {
        Typist typist({dir, "--temperature", "0"});
        CHECK(contains(typist.until("> "), "/help for help"));
        typist.type("x\x7fu\r");    // backspace
        CHECK(contains(typist.until("hello\r\n"), "u\r\n"));
        typist.until("> ");
        typist.type("half a l\u00efn");
        typist.until("\u00efn");    // Ctrl-C also discards unread input
        typist.type("\x03");
        CHECK_FALSE(contains(typist.until("> "), "Ctrl-C again"));
        typist.type("\x03");
        CHECK(contains(typist.until("> "), "Ctrl-C again, or Ctrl-D, ends"));
        typist.type("\x1b[A\r");    // arrow up
        typist.until("u\r\n");
        typist.until("hello\r\n");
        typist.until("> ");
        typist.type("\x03");
        typist.until("> ");
        typist.type("\x03");
        CHECK(typist.exit_code() == 0);
    }
    Typist typist({dir});
    typist.until("> ");
    typist.type("/params stop \x1b[D\r");
    CHECK(contains(typist.until("\n> "), "a value is missing"));    // the prompt again, after the error
    typist.type("\"\"\"\r");
    typist.until("... ");
    typist.type("\x03");
    typist.until("\n> ");
    typist.type("\x04");
    CHECK(typist.exit_code() == 0);
}

TEST_CASE("chat: a terminal that cannot move its cursor edits lines itself") {
    Typist typist({polite_model(), "--temperature", "0"}, "dumb");
    typist.until("> ");
    typist.type("x\x7fu\r");
    typist.until("hello\r\n> ");
    typist.type("\x03");
    typist.until("Ctrl-C again, or Ctrl-D, ends\r\n> ");
    typist.type("u\r");
    typist.until("hello\r\n> ");
    typist.type("\x03");
    typist.until("> ");
    typist.type("\x03");
    CHECK(typist.exit_code() == 0);
}

namespace {
std::string endless_model() {    // answers "yyyy..."
    const Tokenizer tokenizer = chat_tokenizer();
    std::string script = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n" + std::string(60000, 'y');
    Actor actor(tokenizer.encode(script, true), 60000);
    const std::string dir = write_model(actor.g, tokenizer);
    write_file(dir + "/chat_template.jinja", CHATML);
    return dir;
}
}    // namespace

TEST_CASE("chat: at a terminal keys typed during an answer do not break into it and wait for the prompt") {
    Typist typist({endless_model(), "--temperature", "0", "--context", "60000", "--tokens", "1000"});
    typist.until("> ");
    typist.type("u\r");
    typist.until("yyyyyyyy");
    typist.send("/exi");
    CHECK_FALSE(contains(typist.until("\r\n> "), "/exi"));
    typist.until("/exi");
    typist.type("t\r");
    CHECK(typist.exit_code() == 0);
}

TEST_CASE("chat: at a terminal Ctrl-C stops the answer, and the conversation goes on") {
    const std::string dir = endless_model();
    Typist typist({dir, "--temperature", "0", "--context", "60000"});
    typist.until("> ");
    typist.type("u\r");
    typist.until("yyyyyyyy");
    typist.send("\x03");
    const std::string rest = typist.until("\r\n> ");
    CHECK(rest.size() < 50000);
    const std::string file = dir + "/saved";
    typist.type("/save " + file + "\r");
    CHECK(contains(typist.until("\r\n> "), "2 messages written"));
    CHECK(contains(read_file(file), "yyyyyyyy"));
    typist.type("/exit\r");
    CHECK(typist.exit_code() == 0);
}

TEST_CASE("chat: at a terminal the signal that ends an answer leaves the terminal as it was") {
    const std::string dir = endless_model();
    for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) {
        Typist typist({dir, "--temperature", "0", "--context", "60000"});
        const int held = open(ptsname(typist.master), O_RDWR | O_NOCTTY);    // keeps the terminal after the process
        auto mode = [&] {
            termios now = {};
            REQUIRE(tcgetattr(held, &now) == 0);
            return now.c_lflag & (ECHO | ICANON | ISIG);
        };
        const tcflag_t before = mode();
        typist.until("> ");
        typist.type("u\r");
        typist.until("yyyyyyyy");
        CHECK((mode() & ECHO) == 0);
        REQUIRE(kill(typist.child, signal) == 0);
        int status = 0;
        REQUIRE(waitpid(std::exchange(typist.child, -1), &status, 0) > 0);
        CHECK((WIFSIGNALED(status) && WTERMSIG(status) == signal));
        CHECK(mode() == before);
        close(held);
    }
}
