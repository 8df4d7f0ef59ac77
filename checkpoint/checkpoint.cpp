// checkpoint.cpp - checkpoints of a run: verify, find, prune. writer.cpp writes them.
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
#include "disk.h"
#include "foreign.h"
#include "gguf.h"
#include "manifest.h"
#include "nanochat.h"
#include "base/console.h"
#include "base/memory.h"
#include "files/json_write.h"

namespace fs = std::filesystem;

// ---- verify and find ----------------------------------------------------------------------------

static Status verify(const ModelSource& m, bool weights, Cores cores = Cores::all) {
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
        TRY(checksum_verify(dir + "/" + s.name, s, whole, cores));
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

// ---- prune --------------------------------------------------------------------------------------

// Whether a checkpoint is whole. Of those in `known`, whose bytes were written or checked before,
// only the files' sizes are compared. With `known`, training goes on beside this.
static bool is_whole(const std::string& dir, std::set<std::string>* known) {
    if (!known) return checkpoint_verify(dir).ok();
    if (!known->contains(dir)) return verify(dir, true, Cores::one).ok() && known->insert(dir).second;
    const Result<std::vector<FileChecksum>> manifest = manifest_read(dir);
    return manifest.ok() && std::ranges::all_of(manifest.value, [&](const FileChecksum& s) {
               return checksum_verify(dir + "/" + s.name, s, false).ok();
           });
}

Status checkpoint_prune(const std::string& run, int keep, const Disk& disk, std::set<std::string>* known) {
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
        } else if (is_whole(*dir, known) && whole++ == 0) {
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
