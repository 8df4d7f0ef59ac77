// checkpoint.cpp - the protocol of checkpoint.h: write, verify, find, prune.
#include "checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include "adapter_files.h"
#include "foreign.h"
#include "gguf.h"
#include "manifest.h"
#include "nanochat.h"
#include "base/console.h"
#include "base/memory.h"
#include "files/json_write.h"

namespace fs = std::filesystem;

// ---- the disk -----------------------------------------------------------------------------------

const Disk& real_disk() {
    static const Disk disk = {
        [](const char* path) {
            int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            return fd < 0 ? -errno : fd;
        },
        [](int fd, const void* data, int64_t bytes) {
            ssize_t n = write(fd, data, size_t(bytes));
            return n < 0 ? -int64_t(errno) : int64_t(n);
        },
        [](int fd) { return fsync(fd) ? -errno : 0; },
        [](int fd) { return close(fd) ? -errno : 0; },
        [](const char* from, const char* to, Overwrite overwrite) {
            if (overwrite == Overwrite::no) return rename_new(from, to) ? -errno : 0;
            if (rename(from, to) == 0) return 0;
            bool exists = errno == ENOTEMPTY || errno == EEXIST;
            if (exists && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return 0;
            return -errno;
        },
        [](const char* path) { return mkdir(path, 0777) ? -errno : 0; },
        [](const char* path) { return remove(path) ? -errno : 0; },
        [](const char* path) {
            int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (fd < 0) return -errno;
            int rc = fsync(fd) ? -errno : 0;
            close(fd);
            return rc;
        },
    };
    return disk;
}

namespace {
using Sink = std::function<Status(const void*, int64_t)>;
constexpr int64_t CHUNK = 1 << 20;    // bytes written or read at a time

template <class Call> int64_t retry_eintr(Call call) {
    int64_t rc;
    do rc = call();
    while (rc == -EINTR);
    return rc;
}
Status disk_status(const std::string& path, const char* call, int64_t rc) {
    return rc < 0 ? fail(Exit::io, "%s: %s: %s", path.c_str(), call, strerror(int(-rc))) : Status{};
}

// Sorted names of the files directly in a directory; none if the directory is missing. Exit 4: it
// cannot be read.
Result<std::vector<std::string>> names_in(const std::string& dir) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
        names.push_back(it->path().filename().string());
    if (error == std::errc::not_enough_memory) out_of_memory();
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
        return fail(Exit::io, "%s: its files cannot be listed: %s", dir.c_str(), error.message().c_str());
    std::sort(names.begin(), names.end());
    return names;
}
std::string step_directory(const std::string& run, int64_t step) {
    return run + formatted("/step_%08lld", (long long)step);
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
bool is_directory(const std::string& path) {
    struct stat s;
    return stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

Status remove_directory(const std::string& dir, const Disk& disk) {
    if (!exists(dir)) return {};
    for (const std::string& name : TRY(names_in(dir))) {
        std::string path = dir + "/" + name;
        TRY(disk_status(path, "remove", retry_eintr([&] { return disk.remove(path.c_str()); })));
    }
    return disk_status(dir, "remove", retry_eintr([&] { return disk.remove(dir.c_str()); }));
}
}    // namespace

// ---- write --------------------------------------------------------------------------------------

std::string checkpoint_file(const std::string& stem, int rank, int ranks) {
    return stem + (ranks > 1 ? formatted("-%05d-of-%05d", rank + 1, ranks) : "") + ".safetensors";
}

std::string checkpoint_index(const Model& g, const std::string& stem, const std::vector<SavedState>& states) {
    const std::vector<int> owners = config_owners(g.c, g.plan.ranks);
    Json files = Json::object();
    int64_t bytes = 0;
    for (const SavedState& state : states)
        for (const Tensor& t : state.tensors) {
            for (const Piece& p : t.pieces)
                files.set(state.prefix + p.name, checkpoint_file(stem, owners[size_t(t.bucket)], g.plan.ranks));
            bytes += t.file_rows * t.cols * int64_t(sizeof(float));
        }
    return Json::object("metadata", Json::object("total_size", bytes), "weight_map", std::move(files)).text(1) + "\n";
}

namespace {
// Creates a file, lets `produce` write it, and flushes it to disk. A failed fsync is final: a
// second one may succeed although data is lost.
Status write_file(const Disk& disk, const std::string& dir, const std::string& name, std::vector<FileChecksum>* sums,
                  const std::function<Status(const Sink&)>& produce) {
    std::string path = dir + "/" + name, waiting;
    FileChecksum sum{name};
    int fd = int(retry_eintr([&] { return disk.open_write(path.c_str()); }));
    TRY(disk_status(path, "open", fd));
    auto flush = [&]() -> Status {
        for (int64_t done = 0, bytes = int64_t(waiting.size()); done < bytes;) {
            int64_t piece = std::min(CHUNK, bytes - done);
            int64_t n = retry_eintr([&] { return disk.write(fd, waiting.data() + done, piece); });
            if (n == 0) n = -ENOSPC;
            TRY(disk_status(path, "write", n));
            count_progress();
            done += n;
        }
        waiting.clear();
        return {};
    };
    auto put = [&](const void* data, int64_t bytes) -> Status {
        sum.crc = crc32c(sum.crc, data, bytes);
        sum.bytes += bytes;
        waiting.append(static_cast<const char*>(data), size_t(bytes));
        return int64_t(waiting.size()) >= CHUNK ? flush() : Status{};
    };
    Status s = produce(put);
    if (s.ok()) s = flush();
    if (s.ok()) s = disk_status(path, "fsync", retry_eintr([&] { return disk.sync(fd); }));
    int closed = disk.close(fd);    // close releases fd even if it returns EINTR
    if (s.ok() && closed != -EINTR) s = disk_status(path, "close", closed);
    sums->push_back(sum);
    return s;
}

// Writes this rank's part of the weights and of the optimizer's states.
Status write_tensors(const Disk& disk, const std::string& dir, const Model& g, std::vector<FileChecksum>* sums) {
    auto write = [&](const std::string& name, const std::vector<TensorSource>& sources) {
        if (sources.empty()) return Status{};    // a rank may have no bucket
        return write_file(disk, dir, name, sums, [&](const Sink& sink) { return safetensors_write(sources, sink); });
    };
    const int rank = g.plan.rank, ranks = g.plan.ranks;
    if (!g.c.adapter.any())
        TRY(write(checkpoint_file("model", rank, ranks), checkpoint_tensors(g, {weights_state(g)})));
    else if (rank == 0) TRY(write("adapter_model.safetensors", adapter_sources(g)));
    return write(checkpoint_file("optimizer", rank, ranks), checkpoint_tensors(g, optimizer_states(g)));
}

Status write_text(const Disk& disk, const std::string& dir, const char* name, const std::string& text,
                  std::vector<FileChecksum>& sums) {
    return write_file(disk, dir, name, &sums,
                      [&](const Sink& sink) { return sink(text.data(), int64_t(text.size())); });
}

// Writes the files that describe the weights: config.json, the tokenizer, generation_config.json.
Status write_texts(const Disk& disk, const std::string& dir, const Config& c, const Tokenizer& tokenizer,
                   const GenerationConfig& generation, std::vector<FileChecksum>& sums) {
    const Vocabulary& v = tokenizer.vocabulary();
    std::vector<int> ends = v.ends;
    if (v.eos >= 0) ends.insert(ends.begin(), v.eos);
    else if (ends.empty() && tokenizer.end_of_text() >= 0) ends = {tokenizer.end_of_text()};
    TRY(write_text(disk, dir, "config.json", config_json(c, ends, v.bos), sums));
    if (c.adapter.any()) TRY(write_text(disk, dir, "adapter_config.json", adapter_config_json(c), sums));
    if (const std::string text = generation_config_json(generation, v, ends); !text.empty())
        TRY(write_text(disk, dir, "generation_config.json", text, sums));
    if (tokenizer.vocab_size() == 0) return {};
    TRY(write_text(disk, dir, "tokenizer.json", tokenizer.to_json(), sums));
    return write_text(disk, dir, "tokenizer_config.json", tokenizer.config_json(), sums);
}

// Rank 0 calls this when all ranks have written their tensors. Writes the rest, MANIFEST last.
Status write_rest(const Disk& disk, const std::string& dir, const Model& g, const Tokenizer& tokenizer,
                  const GenerationConfig& generation, const TrainState& state, std::vector<FileChecksum>& sums) {
    auto text = [&](const char* name, const std::string& bytes) { return write_text(disk, dir, name, bytes, sums); };
    if (g.plan.ranks > 1) {
        if (!g.c.adapter.any())
            TRY(text("model.safetensors.index.json", checkpoint_index(g, "model", {weights_state(g)})));
        TRY(text("optimizer.safetensors.index.json", checkpoint_index(g, "optimizer", optimizer_states(g))));
    }
    TRY(write_texts(disk, dir, g.c, tokenizer, generation, sums));
    TRY(text("state.json", state_json(state)));
    TRY(text("MANIFEST", manifest_text(sums)));
    return disk_status(dir, "fsync", retry_eintr([&] { return disk.sync_dir(dir.c_str()); }));
}

Status rename_directory(const Disk& disk, const std::string& from, const std::string& to, Overwrite overwrite) {
    const int64_t rc = retry_eintr([&] { return disk.rename(from.c_str(), to.c_str(), overwrite); });
    if (rc != -EEXIST || overwrite == Overwrite::yes) return disk_status(to, "rename", rc);
    return fail(Exit::usage, "%s: expected a new directory, it is there by now; give another name", to.c_str());
}

// Collects the checksums of all ranks' files on rank 0.
void gather_sums(std::vector<FileChecksum>* sums, Coordinator& coordinator) {
    std::string mine;
    for (const FileChecksum& s : *sums) mine += checksum_line(s);
    std::vector<FileChecksum> all;
    for (const std::string& text : coordinator.gather(mine))
        for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
            if (FileChecksum s; checksum_parse(text.substr(at, end - at), &s)) all.push_back(s);
    *sums = all;
}
}    // namespace

Status checkpoint_write(const std::string& run, const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                        const Disk& disk, Coordinator* coordinator, const GenerationConfig& generation) {
    CHECK(state.step >= 0 && state.step <= 99999999, "step %lld", (long long)state.step);
    const bool first = g.plan.rank == 0;
    const std::string dir = step_directory(run, state.step), name = first ? temporary_name(dir) : "";
    const std::string temporary = coordinator ? coordinator->broadcast(name) : name;
    auto agree = [&](const Status& s) { return coordinator ? coordinator->agree(s) : s; };
    auto at_first = [&](auto work) { return agree(first ? work() : Status{}); };
    TRY(at_first(
        [&] { return disk_status(temporary, "mkdir", retry_eintr([&] { return disk.mkdir(temporary.c_str()); })); }));
    std::optional<TemporaryLock> lock;
    if (first) lock.emplace(temporary);
    std::vector<FileChecksum> sums;
    Status s = agree(write_tensors(disk, temporary, g, &sums));
    if (s.ok() && coordinator) gather_sums(&sums, *coordinator);
    if (s.ok())
        s = at_first([&] {
            TRY(write_rest(disk, temporary, g, tokenizer, generation, state, sums));
            TRY(rename_directory(disk, temporary, dir, Overwrite::yes));
            lock->renamed(dir);
            return Status{};
        });
    if (!s.ok()) {
        if (first) (void)remove_directory(temporary, disk);    // the first error is reported
        return s;
    }
    return at_first([&] {
        TRY(disk_status(run, "fsync", retry_eintr([&] { return disk.sync_dir(run.c_str()); })));
        return remove_directory(temporary, disk);    // older checkpoint of this step, exchanged before
    });
}

Status checkpoint_prune(const std::string& run, int keep, const Disk& disk) {
    auto remove = [&](const std::string& left) { return remove_directory(left, disk); };
    TRY(remove_leftovers(run + "/step_", Paths::with_prefix, remove));
    if (keep == 0) return {};
    std::vector<std::string> dirs = checkpoint_list(run), unwanted;
    std::string best;    // best_step's directory, by the newest whole checkpoint
    int whole = 0;
    for (auto dir = dirs.rbegin(); dir != dirs.rend(); ++dir) {
        if (!exists(*dir + "/MANIFEST")) continue;    // without MANIFEST: not written by flatgpt
        if (whole == keep) {
            if (*dir != best) unwanted.push_back(*dir);
        } else if (checkpoint_verify(*dir).ok() && whole++ == 0) {
            Result<TrainState> state = checkpoint_state(*dir);
            if (state.ok() && state.value.best_step >= 0) best = step_directory(run, state.value.best_step);
        }
    }
    if (unwanted.empty()) return {};
    // All are renamed and RUN is flushed before any is removed, so that a crash leaves no partial
    // checkpoint under a checkpoint's name.
    for (const std::string& dir : unwanted) {
        const std::string away = temporary_name(dir);
        TRY(rename_directory(disk, dir, away, Overwrite::no));
    }
    TRY(disk_status(run, "fsync", retry_eintr([&] { return disk.sync_dir(run.c_str()); })));
    return remove_leftovers(run + "/step_", Paths::with_prefix, remove);
}

Status check_export(const std::string& dir, Overwrite overwrite) {
    struct stat s;
    if (lstat(dir.c_str(), &s) != 0) return check_writable(dir, "OUT");
    if (overwrite == Overwrite::no)
        return fail(Exit::usage, "%s: expected a new directory, it is already there; give another name, or --overwrite",
                    dir.c_str());
    if (!S_ISDIR(s.st_mode))
        return fail(Exit::usage, "%s: expected a new directory or one to overwrite, found a %s; give another name",
                    dir.c_str(), S_ISLNK(s.st_mode) ? "link" : "file");
    for (const std::string& name : TRY(names_in(dir)))
        if (name != "model.safetensors" && name != "config.json" && name != "generation_config.json" &&
            name != "tokenizer.json" && name != "tokenizer_config.json" && name != "README.md" &&
            name != TemporaryLock::FILE_NAME)
            return fail(Exit::usage,
                        "--overwrite: %s/%s is no file that is written here, and would be lost; give "
                        "another name",
                        dir.c_str(), name.c_str());
    return {};
}

Status checkpoint_export(const std::string& dir, const WeightsReader& weights, const Tokenizer& tokenizer,
                         const GenerationConfig& generation, const std::string& readme, Overwrite overwrite,
                         const Disk& disk) {
    TRY(check_export(dir, overwrite));
    const std::string temporary = temporary_name(dir);
    auto remove = [&](const std::string& left) { return remove_directory(left, disk); };
    TRY(remove_leftovers(dir, Paths::one, remove));
    TRY(disk_status(temporary, "mkdir", retry_eintr([&] { return disk.mkdir(temporary.c_str()); })));
    const TemporaryLock lock(temporary);
    std::vector<FileChecksum> sums;
    const std::vector<TensorSource> tensors = checkpoint_tensors(weights);
    auto write = [&]() -> Status {
        TRY(write_file(disk, temporary, "model.safetensors", &sums,
                       [&](const Sink& sink) { return safetensors_write(tensors, sink); }));
        TRY(write_texts(disk, temporary, weights.c, tokenizer, generation, sums));
        if (!readme.empty()) TRY(write_text(disk, temporary, "README.md", readme, sums));
        TRY(disk_status(temporary, "fsync", retry_eintr([&] { return disk.sync_dir(temporary.c_str()); })));
        TRY(check_export(dir, overwrite));    // again, because writing takes minutes
        TRY(rename_directory(disk, temporary, dir, overwrite));
        lock.renamed(dir);
        return Status{};
    };
    const Status s = write();
    if (!s.ok() || overwrite == Overwrite::yes) (void)remove(temporary);    // the first error is reported
    return s;
}

// ---- verify and find ----------------------------------------------------------------------------

static Status verify(const ModelSource& m, bool weights) {
    TRY(m.opened);
    if (m.gguf) return gguf_config(*m.gguf).status;
    const std::string& dir = m.path;
    const bool ours = exists(dir + "/MANIFEST") || exists(dir + "/state.json");
    if (!ours && is_adapter(dir)) return adapter_open(dir).status;
    if (!ours) return checkpoint_weight_headers(m, *TRY(checkpoint_config(m)).family);
    for (const FileChecksum& s : TRY(manifest_read(dir))) {
        const bool tensors = s.name.ends_with(".safetensors");
        if (tensors && !weights && s.name.starts_with("optimizer")) continue;
        const bool whole = weights || !tensors || s.name.starts_with("adapter");    // adapters are small
        TRY(checksum_verify(dir + "/" + s.name, s, whole));
    }
    return {};
}
Status checkpoint_verify(const ModelSource& m) { return verify(m, true); }
Status checkpoint_verify_headers(const ModelSource& m) { return verify(m, false); }

std::vector<std::string> checkpoint_list(const std::string& run, Status* unreadable) {
    std::vector<std::string> dirs;
    const Result<std::vector<std::string>> names = names_in(run);
    if (unreadable) *unreadable = names.status;
    for (const std::string& name : names.value) {
        bool named = name.size() == 13 && name.starts_with("step_") &&
                     name.find_first_not_of("0123456789", 5) == std::string::npos;
        if (named && is_directory(run + "/" + name)) dirs.push_back(run + "/" + name);
    }
    return dirs;
}

// Message for a missing MODEL. A Hugging Face Hub name is no path, and flatgpt downloads nothing.
static Status no_model(const std::string& path) {
    const size_t slash = path.find('/');
    const bool owned = slash != std::string::npos && slash > 0 && slash + 1 < path.size() &&
                       path.find('/', slash + 1) == std::string::npos && path[0] != '.' && path[0] != '~' &&
                       !is_directory(path.substr(0, slash)) && !path.starts_with("runs/");
    const bool bare = path.starts_with("gpt2") || path == "distilgpt2" || path == "openai-gpt";
    if (path.empty() || !(owned || (bare && slash == std::string::npos)))
        return fail(Exit::input, "%s: no such file or directory", path.c_str());
    return fail(Exit::input,
                "%s: no such directory, and flatgpt downloads nothing; to fetch it from the Hub:\n"
                "  hf download %s --local-dir %s",
                path.c_str(), path.c_str(), path.substr(slash + 1).c_str());
}

static Status use_of_run(const std::string& dir, const std::function<Status(const ModelSource& m)>& use) {
    return exists(dir + "/MANIFEST") ? use(dir) : fail(Exit::input, "%s/MANIFEST: it is not there", dir.c_str());
}

// Finds the newest checkpoint of a run that `use` accepts; damaged ones are listed in `damaged`.
static Result<std::string> find_last(const std::string& run, std::vector<std::string>* damaged,
                                     const std::function<Status(const ModelSource& m)>& use) {
    const std::vector<std::string> dirs = checkpoint_list(run);
    for (auto dir = dirs.rbegin(); dir != dirs.rend(); ++dir) {
        Status s = use_of_run(*dir, use);
        if (s.ok()) return *dir;
        if (s.code != Exit::input && s.code != Exit::io) return s;
        if (damaged) damaged->push_back(s.message);
    }
    return fail(Exit::input, "%s: %zu checkpoints, none of them whole", run.c_str(), dirs.size());
}

// Lists a run's checkpoints: "steps 100, 200 and 300".
static std::string steps_text(const std::string& run) {
    const std::vector<std::string> dirs = checkpoint_list(run);
    std::string text = dirs.size() == 1 ? "step" : "steps";
    for (size_t i = 0; i < dirs.size(); i++)
        text += (i == 0 ? " " : i + 1 < dirs.size() ? ", " : " and ") + std::to_string(checkpoint_step(dirs[i]));
    return text;
}

int64_t checkpoint_step(const std::string& dir) {
    const std::string name = fs::path(dir).filename().string();
    return name.starts_with("step_") ? atoll(name.c_str() + 5) : -1;
}

static void note_unknown_keys(const ModelSource& source) {
    std::vector<std::string> unknown;
    std::string names;
    if (!source.gguf || !gguf_config(*source.gguf, &unknown).ok() || unknown.empty()) return;
    for (const std::string& key : unknown) names += (names.empty() ? "" : ", ") + key;
    Progress().note(
        escape_control("note: " + source.path + ": flatgpt does not know these keys and passes over them: " + names));
}

Result<ModelSource> checkpoint_find(const std::string& path, std::vector<std::string>* damaged,
                                    const std::string& which, const std::function<Status(const ModelSource& m)>& use) {
    const bool step = !which.empty() && which.size() <= 8 && which.find_first_not_of("0123456789") == which.npos;
    if (which != "last" && which != "best" && !step)
        return fail(Exit::usage, "--checkpoint: expected best, last or a step such as 300, found \"%s\"",
                    which.c_str());
    struct stat there;
    if (stat(path.c_str(), &there))
        return errno == ENOENT || errno == ENOTDIR ? no_model(path)
                                                   : fail(Exit::input, "%s: %s", path.c_str(), strerror(errno));
    if (!S_ISDIR(there.st_mode) || exists(path + "/config.json") || exists(path + "/MANIFEST") || is_adapter(path) ||
        !nanochat_weights(path).empty()) {
        if (which != "last")
            return fail(Exit::usage, "%s is itself a checkpoint: --checkpoint %s needs the run's directory",
                        path.c_str(), which.c_str());
        const ModelSource source = path;
        TRY(use(source));
        note_unknown_keys(source);
        return source;
    }
    if (checkpoint_list(path).empty()) {
        TRY(check_foreign(path));
        return fail(Exit::input, "%s: expected a run (with step_NNNNNNNN) or a directory with config.json",
                    path.c_str());
    }
    if (which == "last") return ModelSource(TRY(find_last(path, damaged, use)));
    int64_t wanted = atoll(which.c_str());
    if (which == "best") {
        const std::string last = TRY(find_last(path, damaged, checkpoint_verify_headers));
        wanted = TRY(checkpoint_state(last)).best_step;
        if (wanted < 0)
            return fail(Exit::usage,
                        "--checkpoint best: no validation is recorded in %s, which holds %s; a run with "
                        "--val records them",
                        path.c_str(), steps_text(path).c_str());
    }
    const std::string dir = step_directory(path, wanted);
    if (!is_directory(dir))
        return fail(step ? Exit::usage : Exit::input, "%s: step %lld%s is not there; the run holds %s", path.c_str(),
                    (long long)wanted, step ? "" : ", the best by validation,", steps_text(path).c_str());
    TRY(use_of_run(dir, use));
    return ModelSource(dir);
}
