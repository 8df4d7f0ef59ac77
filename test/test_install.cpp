// test_install.cpp - manual page and completion from the flag rows; `make install`, `make dist`.
#include "base/command.h"

#include <filesystem>

#include "test.h"
#include "tools/commands.h"

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

namespace {
bool there(const std::string& program) {
    return run_process({"sh", "-c", "command -v \"$0\"", program}).exit_code == 0;
}
Strings files_under(const std::string& dir) {
    Strings all;
    for (auto& entry : fs::recursive_directory_iterator(dir))
        if (!entry.is_directory()) all.push_back(fs::relative(entry.path(), dir));
    std::sort(all.begin(), all.end());
    return all;
}
// A PATH that begins with the tested binary, because completion scripts call `flatgpt`.
ProcessOptions with_binary() {
    const std::string dir = temporary_directory();
    fs::create_symlink(fs::absolute(flatgpt_binary()), dir + "/flatgpt");
    ProcessOptions o;
    o.environment = {"PATH=" + dir + ":" + getenv("PATH")};
    return o;
}
// The completions after these words in a bash that has sourced the file.
std::string bash_offers(const std::string& file, const std::string& words) {
    const char* script =
        "source \"$0\" || exit 9; COMP_WORDS=($1 ''); [ \"${1: -1}\" = ' ' ] || COMP_WORDS=($1); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _flatgpt \"$COMP_WORDS\"; echo \" ${COMPREPLY[*]} \"; "
        "complete -p flatgpt";
    const ProcessResult r = run_process({"bash", "-c", script, file, words}, with_binary());
    CHECK(r.exit_code == 0);
    CHECK(r.err == "");
    CHECK(contains(r.out, "-F _flatgpt flatgpt"));
    return r.out.substr(0, r.out.find('\n'));
}
void check_bash(const std::string& file) {
    CHECK(contains(bash_offers(file, "flatgpt tr"), " train train-tokenizer "));
    CHECK(contains(bash_offers(file, "flatgpt help "), " sample "));
    CHECK(contains(bash_offers(file, "flatgpt train --st"), " --steps --stride --state-dtype --stochastic-rounding "));
    CHECK(bash_offers(file, "flatgpt train --device ") == " auto cpu cuda ");
    CHECK(contains(bash_offers(file, "flatgpt sample --no"), " --no-echo "));
}
}    // namespace

TEST_CASE("install: binary, manual page and completion, which works; uninstall leaves nothing") {
    const std::string root = temporary_directory(), prefix = root + "/with space/usr";
    const ProcessResult r = run_process({"dev/install.sh", flatgpt_binary(), prefix});
    CHECK(r.err == "");
    REQUIRE(r.exit_code == 0);
    const Strings expected = {"bin/flatgpt",
                              "share/bash-completion/completions/flatgpt",
                              "share/doc/flatgpt/LICENSE",
                              "share/fish/vendor_completions.d/flatgpt.fish",
                              "share/man/man1/flatgpt.1",
                              "share/zsh/site-functions/_flatgpt"};
    CHECK(files_under(prefix) == expected);
    for (auto& file : expected) CHECK(contains(r.out, "installed " + prefix + "/" + file + "\n"));
    CHECK(contains(read_file(prefix + "/share/doc/flatgpt/LICENSE"), "MIT License"));

    // The binary runs from another directory and finds its libraries.
    ProcessOptions elsewhere;
    elsewhere.directory = "/";
    const ProcessResult version = run_process({prefix + "/bin/flatgpt", "--version"}, elsewhere);
    CHECK(version.exit_code == 0);
    CHECK(version.out.rfind("flatgpt ", 0) == 0);
    CHECK_FALSE(contains(run_process({"ldd", prefix + "/bin/flatgpt"}).out, "not found"));

    check_bash(prefix + "/share/bash-completion/completions/flatgpt");
    const fs::perms mode = fs::status(prefix + "/share/man/man1/flatgpt.1").permissions();
    CHECK((mode & fs::perms::all) == fs::perms(0644));
    CHECK(read_file(prefix + "/share/man/man1/flatgpt.1") == run_flatgpt({"man"}).out);

    const ProcessResult gone = run_process({"dev/install.sh", "--remove", prefix});
    CHECK(gone.exit_code == 0);
    CHECK(files_under(root).empty());
    CHECK(run_process({"dev/install.sh", "--remove", prefix}).exit_code == 0);    // a second removal does no harm
    CHECK(run_process({"dev/install.sh", root + "/none", prefix}).exit_code != 0);
}

TEST_CASE("install: zsh takes the completion from $fpath, fish from its folder") {
    const std::string dir = temporary_directory();
    write_file(dir + "/_flatgpt", run_flatgpt({"completion", "zsh"}).out);
    write_file(dir + "/flatgpt.fish", run_flatgpt({"completion", "fish"}).out);
    bool any = false;
    if (there("zsh")) {
        any = true;
        const char* script =
            "fpath=($0 $fpath); autoload -Uz compinit && compinit -u -d $0/dump; "
            "print -r -- $_comps[flatgpt]; autoload +X _flatgpt && whence -w _flatgpt";
        ProcessResult r = run_process({"zsh", "-f", "-c", script, dir});
        CHECK(r.out == "_flatgpt\n_flatgpt: function\n");
        CHECK(r.err == "");
        const char* asked =
            "_files() { print files }; _describe() { print -rl -- ${(P)2} }; compdef() { }; source $0/_flatgpt; "
            "words=(flatgpt train --de); CURRENT=3; _flatgpt; words=(flatgpt train --device ''); CURRENT=4; _flatgpt; "
            "words=(flatgpt train --data ''); _flatgpt";
        r = run_process({"zsh", "-f", "-c", asked, dir}, with_binary());
        CHECK(contains(r.out, "--device:"));
        CHECK(contains(r.out, "\nauto\ncpu\ncuda\nfiles\n"));
        CHECK(r.err == "");
    }
    if (there("fish")) {
        any = true;
        const ProcessResult r = run_process({"fish", "--no-config", "-c",
                                             "source " + dir +
                                                 "/flatgpt.fish; complete "
                                                 "-C 'flatgpt sample --no-'; complete -C 'flatgpt train --device c'"},
                                            with_binary());
        CHECK(contains(r.out, "--no-echo\t"));
        CHECK(contains(r.out, "\ncpu"));
        CHECK(contains(r.out, "\ncuda"));
        CHECK(r.err == "");
    }
    if (!any) SKIP("neither zsh nor fish");
}

TEST_CASE("man: the page has every command, group and option, and no formatter complains") {
    const ProcessResult r = run_flatgpt({"man"});
    REQUIRE(r.exit_code == 0);
    const std::string path = temporary_directory() + "/flatgpt.1";
    write_file(path, r.out);
    for (const Command& c : commands()) {
        std::string roff;
        for (char letter : c.name) roff += (letter == '-' ? "\\" : "") + std::string(1, letter);
        const size_t at = r.out.find(".SH \"flatgpt " + roff + "\"");
        REQUIRE(at != std::string::npos);
        const std::string page = r.out.substr(at, r.out.find("\n.SH ", at) - at);
        for (auto& f : c.flags) {
            std::string name;
            for (char letter : f.name) name += (letter == '-' ? "\\" : "") + std::string(1, letter);
            CHECK(contains(page, ".TP\n\\f" + std::string(f.name[0] == '-' ? "B" : "I") + name));
            std::string group;
            for (char letter : f.group) group += (letter == '-' ? "\\" : "") + std::string(1, letter);
            if (!group.empty()) CHECK(contains(page, ".SS \"" + group + "\"\n"));
        }
    }
    CHECK(r.out.rfind(".TH FLATGPT 1 \"20", 0) == 0);
    for (const char* variable : {"FLATGPT_ISA", "FLATGPT_AMX", "FLATGPT_ATTENTION", "FLATGPT_SAMPLER", "FLATGPT_TOKEN"})
        CHECK(contains(r.out, std::string(".TP\n\\fB") + variable + "\\fR"));
    bool any = false;
    const std::vector<Strings> checkers = {{"mandoc", "-Tlint", "-Wwarning"}, {"groff", "-man", "-Tutf8", "-ww", "-z"}};
    for (const Strings& checker : checkers) {
        if (!there(checker[0])) continue;
        any = true;
        Strings args = checker;
        args.push_back(path);
        const ProcessResult said = run_process(args);
        CHECK(said.out == "");
        CHECK(said.err == "");
        CHECK(said.exit_code == 0);
    }
    if (!any) SKIP("neither mandoc nor groff");
}

TEST_CASE("dist: an archive of the last commit that knows its version without git") {
    if (run_process({"git", "rev-parse", "--verify", "HEAD"}).exit_code != 0 || !fs::exists(".git"))
        SKIP("no git, or not its checkout");
    const std::string dir = temporary_directory();
    ProcessOptions outer;
    outer.environment = {"MAKEFLAGS", "MAKELEVEL", "BUILD"};    // set by the make that runs the tests
    const ProcessResult r =
        run_process({"make", "-s", "NO_DEPS=1", "NVCC=", "BUILD=" + dir + "/build", "dist", "DIST=" + dir}, outer);
    REQUIRE(r.exit_code == 0);
    std::string name;
    for (auto& entry : fs::directory_iterator(dir))
        if (entry.path().extension() == ".gz") name = entry.path().filename();
    const std::string suffix = ".tar.gz", stem = name.substr(0, name.size() - suffix.size());
    REQUIRE(name.rfind("flatgpt-", 0) == 0);
    REQUIRE(run_process({"tar", "-xzf", dir + "/" + name, "-C", dir}).exit_code == 0);
    const std::string tree = dir + "/" + stem, version = stem.substr(strlen("flatgpt-"));
    for (const char* file : {"VERSION", "Makefile", "main.cpp", "data/gpt2_merges.bin"})
        CHECK(fs::exists(tree + "/" + file));
    CHECK(read_file(tree + "/VERSION").rfind(version + " 20", 0) == 0);
    ProcessOptions inner = outer;
    inner.directory = tree;
    const ProcessResult plan = run_process({"make", "-n", "V=1", "NO_DEPS=1", "NVCC=", "build/main.cpp.o"}, inner);
    CHECK(contains(plan.out, "-DVERSION='\"" + version + "\"'"));
    const ProcessResult install =
        run_process({"make", "-n", "NO_DEPS=1", "NVCC=", "install", "PREFIX=/opt/x", "DESTDIR=/a b"}, inner);
    CHECK(contains(install.out, "dev/install.sh build/flatgpt '/a b/opt/x'"));

    // In an unpacked archive, which has no git, `make dist` is refused.
    const ProcessResult again = run_process({"make", "-s", "NO_DEPS=1", "NVCC=", "dist"}, inner);
    CHECK(again.exit_code != 0);
    CHECK(contains(again.err, "make dist: expected a git checkout with a commit, found none in " + tree));
    CHECK_FALSE(contains(again.err, "fatal:"));

    // `clean` and a build in one call of make, whose steps run in order; CXX=true compiles nothing.
    write_file(tree + "/build/old", "");
    const ProcessResult both = run_process(
        {"make", "-j4", "NO_DEPS=1", "NVCC=", "CXX=true", "clean", "build/main.cpp.o", "build/comm/mpi.cpp.o"}, inner);
    CHECK_MESSAGE(both.exit_code == 0, both.err);
    CHECK_FALSE(fs::exists(tree + "/build/old"));
    CHECK(fs::exists(tree + "/build/version"));
    run_process({"make", "NO_DEPS=1", "NVCC=", "clean"}, inner);
    CHECK_FALSE(fs::exists(tree + "/build"));
}
