// test_new_file.cpp - writers never touch files of others; remains of killed processes are removed.
#include <cerrno>
#include <filesystem>
#include <fcntl.h>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "data/loader.h"
#include "toy_checkpoint.h"

#include "test.h"

namespace fs = std::filesystem;

namespace {
const std::string MARKED = ".flatgpt-0123456789abcdef.tmp";

std::set<std::string> names_in(const std::string& dir) {
    std::set<std::string> names;
    for (auto& e : fs::directory_iterator(dir)) names.insert(e.path().filename());
    return names;
}
}    // namespace

TEST_CASE("new file: names that end with .tmp are others', for every writer") {
    const std::string dir = temporary_directory(), mine = dir + "/mine";
    write_file(mine, "mine");
    for (const char* name : {"a.json", "a.bin", "model", "step_00000001"})
        fs::create_symlink(mine, dir + "/" + name + ".tmp");
    fs::create_directory(dir + "/q.tmp");
    write_file(dir + "/q.tmp/notes", "mine");
    std::set<std::string> before = names_in(dir);

    REQUIRE(replace_file(dir + "/a.json", "{}").ok());
    REQUIRE(check_writable(dir + "/b.json", "--out").ok());
    ShardWriter shard;
    REQUIRE(shard.open(dir + "/a.bin", 300).ok());
    REQUIRE(shard.commit().ok());
    const ToyCheckpoint toy(1);
    for (const char* name : {"/model", "/q"})
        REQUIRE(checkpoint_export(dir + name, weights_reader(toy.g), Tokenizer(), {}).ok());
    write_toy(dir, 1, 1);
    write_toy(dir, 1, 2);    // replaces the first
    REQUIRE(checkpoint_prune(dir, 1).ok());

    before.insert({"a.json", "a.bin", "model", "q", "step_00000001"});
    CHECK(names_in(dir) == before);
    CHECK(read_file(mine) == "mine");
    CHECK(read_file(dir + "/q.tmp/notes") == "mine");
    CHECK(fs::is_symlink(dir + "/a.json.tmp"));
    // A writer that fails, or is destroyed before it commits, leaves the old file as it was.
    CHECK_FALSE(replace_file(dir + "/a.json", [](const FileSink& sink) -> Status {
                    TRY(sink("[", 1));
                    return fail(Exit::run, "stop");
                }).ok());
    {
        ShardWriter unfinished;
        REQUIRE(unfinished.open(dir + "/a.bin", 300).ok());
    }
    CHECK(read_file(dir + "/a.json") == "{}");
    CHECK(names_in(dir) == before);
}

TEST_CASE("new file: of what is left only that with our mark goes, and only if no process holds it") {
    const std::string dir = temporary_directory(), mine = dir + "/mine";
    write_file(mine, "mine");
    std::set<std::string> stay = {"mine", "a" + MARKED};
    write_file(dir + "/a" + MARKED, "another process writes this");
    const int held = open((dir + "/a" + MARKED).c_str(), O_RDONLY);
    REQUIRE(flock(held, LOCK_EX) == 0);
    for (const char* name : {"a.flatgpt-0123456789abcde.tmp", "a.flatgpt-0123456789ABCDEF.tmp", "a.tmp", "xa.tmp",
                             "a.flatgpt-0123456789abcdef.tmp~", "a.other-00123456789abcdef.tmp", "ba",
                             "a.flatgpt-0123456789abcdeg.tmp", "b.flatgpt-0123456789abcdef.tmp"}) {
        write_file(dir + "/" + name, "mine");
        stay.insert(name);
    }
    fs::create_symlink(mine, dir + "/a.flatgpt-000000000000000f.tmp");
    stay.insert("a.flatgpt-000000000000000f.tmp");
    write_file(dir + "/a.flatgpt-fedcba9876543210.tmp", "left by a killed process");
    REQUIRE(replace_file(dir + "/a", "new").ok());
    stay.insert("a");
    CHECK(names_in(dir) == stay);
    CHECK(read_file(mine) == "mine");
    close(held);
    REQUIRE(check_writable(dir + "/a", "--out").ok());
    stay.erase("a" + MARKED);
    CHECK(names_in(dir) == stay);

    // Directories of two exports: one was killed, the other still runs and holds its lock.
    for (const char* digits : {"0000000000000000", "1111111111111111"}) {
        fs::create_directory(dir + "/model.flatgpt-" + digits + ".tmp");
        write_file(dir + "/model.flatgpt-" + digits + ".tmp/config.json", "{}");
    }
    const TemporaryLock goes_on(dir + "/model.flatgpt-1111111111111111.tmp");
    const ToyCheckpoint toy(1);
    REQUIRE(checkpoint_export(dir + "/model", weights_reader(toy.g), Tokenizer(), {}).ok());
    stay.insert({"model", "model.flatgpt-1111111111111111.tmp"});
    CHECK(names_in(dir) == stay);
}

TEST_CASE("new file: where directories cannot be locked a file in them is, until they have their names") {
    struct Nfs {    // on NFS flock works for files only
        Nfs() {
            lock_call = [](int f, int how) {
                struct stat s;
                if (fstat(f, &s) == 0 && S_ISREG(s.st_mode)) return flock(f, how);
                errno = EBADF;
                return -1;
            };
        }
        ~Nfs() { lock_call = flock; }
    } const nfs;
    const std::string dir = temporary_directory(), goes_on = dir + "/model" + MARKED, step = dir + "/step_00000001";
    for (const std::string& left : {goes_on, step + MARKED, dir + "/model.flatgpt-0000000000000000.tmp"}) {
        fs::create_directory(left);
        write_file(left + "/config.json", "{}");
    }
    // A killed process leaves its lock file behind, unlocked.
    write_file(dir + "/model.flatgpt-0000000000000000.tmp/" + TemporaryLock::FILE_NAME, "");
    const ToyCheckpoint toy(1);
    auto write = [&] {
        REQUIRE(checkpoint_export(dir + "/model", weights_reader(toy.g), Tokenizer(), {}, "card", Overwrite::yes).ok());
        write_toy(dir, 1, 1);
        REQUIRE(checkpoint_prune(dir, 1).ok());
    };
    {
        const TemporaryLock one(goes_on), other(step + MARKED);
        write();
        CHECK(names_in(dir) ==
              std::set<std::string>{"model", "model" + MARKED, "step_00000001", "step_00000001" + MARKED});
    }
    write();
    CHECK(names_in(dir) == std::set<std::string>{"model", "step_00000001"});
    CHECK(names_in(dir + "/model") == std::set<std::string>{"README.md", "config.json", "model.safetensors"});
    CHECK_FALSE(names_in(step).contains(TemporaryLock::FILE_NAME));
}

TEST_CASE("new file: a checkpoint is locked while it is written") {
    const std::string dir = temporary_directory();
    static bool locked;
    locked = false;
    Disk disk = real_disk();
    disk.open_write = [](const char* path) {
        const std::string written = fs::path(path).parent_path();
        const int f = open(written.c_str(), O_RDONLY | O_DIRECTORY);
        locked = flock(f, LOCK_EX | LOCK_NB) != 0;
        close(f);
        return real_disk().open_write(path);
    };
    const ToyCheckpoint toy(1);
    REQUIRE(checkpoint_write(dir, toy.g, Tokenizer(), toy_state(1, 1), disk).ok());
    CHECK(locked);
}

TEST_CASE("new file: what comes to be while an export is written stays; the card is there with the name") {
    const std::string dir = temporary_directory(), model = dir + "/model";
    static std::string taken;
    taken = model;
    Disk disk = real_disk();
    disk.rename = [](const char* from, const char* to, Overwrite overwrite) {
        CHECK(read_file(std::string(from) + "/README.md") == "card");
        if (to == taken) fs::create_directory(to);
        return real_disk().rename(from, to, overwrite);
    };
    const ToyCheckpoint toy(1);
    auto save = [&](const std::string& to, Overwrite overwrite) {
        return checkpoint_export(to, weights_reader(toy.g), Tokenizer(), {}, "card", overwrite, disk);
    };
    CHECK(save(model, Overwrite::no).code == Exit::usage);
    CHECK(fs::is_empty(model));
    CHECK(names_in(dir) == std::set<std::string>{"model"});
    CHECK(save(model, Overwrite::yes).ok());
    CHECK(save(dir + "/other", Overwrite::no).ok());
    CHECK(read_file(dir + "/other/README.md") == "card");
    // A file that appears while ours is written is not overwritten either.
    auto late = [&](const FileSink& sink) {
        write_file(dir + "/a.gguf", "mine");
        return sink("theirs", 6);
    };
    CHECK(replace_file(dir + "/a.gguf", late, Overwrite::no).code == Exit::usage);
    CHECK(read_file(dir + "/a.gguf") == "mine");
    CHECK(replace_file(dir + "/a.gguf", late).ok());
    CHECK(read_file(dir + "/a.gguf") == "theirs");
    CHECK(replace_file(dir + "/b.gguf", "new", Overwrite::no).ok());
}

TEST_CASE("new file: the longest names, links and odd places") {
    const std::string dir = temporary_directory(), longest = dir + "/" + std::string(255, 'n');
    REQUIRE(replace_file(longest, "a").ok());
    REQUIRE(replace_file(longest, "b").ok());
    CHECK(read_file(longest) == "b");
    CHECK(names_in(dir).size() == 1);
    // A link is replaced, its target stays.
    fs::create_symlink(longest, dir + "/link");
    REQUIRE(replace_file(dir + "/link", "c").ok());
    CHECK(read_file(longest) == "b");
    CHECK(replace_file(dir, "c").code == Exit::usage);
    CHECK(replace_file("/dev/null", "c").code == Exit::usage);
    CHECK(replace_file(dir + "/none/a", "c").code == Exit::io);
    CHECK(real_disk().open_write((dir + "/link").c_str()) == -EEXIST);
}

TEST_CASE("new file: a killed convert leaves a file that the next one removes") {
    const std::string dir = temporary_directory(), out = dir + "/a.gguf";
    std::string left;
    {    // the child dies with the lock held
        const pid_t pid = fork();
        if (pid == 0) {
            Result<NewFile> file = NewFile::create(out);
            _exit(file.ok() && file.value.write(0, "half", 4).ok() ? 7 : 1);
        }
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        REQUIRE(WEXITSTATUS(status) == 7);
    }
    REQUIRE(names_in(dir).size() == 1);
    const ProcessResult r = run_flatgpt({"convert", "test/golden/gguf/tiny_llama.gguf", out});
    REQUIRE_MESSAGE(r.exit_code == 0, r.err);
    CHECK(names_in(dir) == std::set<std::string>{"a.gguf"});
}

TEST_CASE("new file: train takes no directory in which a file of another's has the name of one of a run") {
    const std::string dir = temporary_directory();
    write_file(dir + "/mine", "mine");
    std::vector<int> tokens(400, 5);
    ShardWriter shard;
    REQUIRE(shard.open(dir + "/a.bin", 300).ok());
    REQUIRE(shard.append(tokens.data(), 400).ok());
    REQUIRE(shard.commit().ok());
    auto train = [&](const std::string& out, int exit_code, const std::string& message) {
        const ProcessResult r = run_flatgpt({"train",      "--data",  dir + "/a.bin",
                                             "--vocab",    "300",     "--layers",
                                             "1",          "--heads", "1",
                                             "--channels", "8",       "--seq-len",
                                             "8",          "--batch", "1",
                                             "--steps",    "1",       "--device",
                                             "cpu",        "--out",   out});
        INFO(r.err);
        CHECK(r.exit_code == exit_code);
        CHECK_MESSAGE(r.err.find(message) != r.err.npos, message);
    };
    for (const char* name : {"lock", "metrics.jsonl", "run.toml"}) {
        const std::string out = dir + "/with " + name;
        fs::create_directory(out);
        write_file(out + "/" + name, "mine");
        train(out, 2, "its " + std::string(name) + " was not written by flatgpt train");
        CHECK(read_file(out + "/" + name) == "mine");
    }
    fs::create_directory(dir + "/link");
    fs::create_symlink(dir + "/mine", dir + "/link/lock");
    train(dir + "/link", 4, "lock: cannot be written");
    CHECK(read_file(dir + "/mine") == "mine");
    train(dir + "/run", 0, "");
    fs::remove_all(dir + "/run/step_00000001");
    train(dir + "/run", 0, "");    // a run that has no checkpoint yet
}
