// writer.cpp - see writer.h; also the export of a model alone.
#include "writer.h"

#include <cstring>
#include <sys/stat.h>
#include <system_error>
#include <time.h>

#include "adapter_files.h"
#include "disk.h"
#include "base/console.h"
#include "base/pool.h"
#include "files/json_write.h"

// ---- names and texts ----------------------------------------------------------------------------

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
Status write_text(const Disk& disk, const std::string& dir, const char* name, const std::string& text,
                  std::vector<FileChecksum>& sums) {
    return write_file(disk, dir, name, &sums,
                      [&](const FileSink& sink) { return sink(text.data(), int64_t(text.size())); });
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

double thread_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}
}    // namespace

// ---- the copy -----------------------------------------------------------------------------------

// The files of this rank's part of the weights and of the optimizer's states.
std::vector<CheckpointWriter::TensorFile> CheckpointWriter::tensor_files(const Model& g) {
    std::vector<TensorFile> files;
    auto add = [&](const std::string& name, std::vector<TensorSource> sources) {
        if (!sources.empty()) files.push_back({name, std::move(sources)});    // a rank may have no bucket
    };
    const int rank = g.plan.rank, ranks = g.plan.ranks;
    if (!g.c.adapter.any()) add(checkpoint_file("model", rank, ranks), checkpoint_tensors(g, {weights_state(g)}));
    else if (rank == 0) add("adapter_model.safetensors", adapter_sources(g));
    add(checkpoint_file("optimizer", rank, ranks), checkpoint_tensors(g, optimizer_states(g)));
    return files;
}
int64_t CheckpointWriter::copy_bytes(const Model& g) {
    int64_t bytes = 0;
    for (const TensorFile& file : tensor_files(g)) bytes += safetensors_bytes(file.sources);
    return bytes;
}
void CheckpointWriter::copy_tensors(const Model& g) {
    kept = 0;
    for (size_t i = 0; i < files.size(); i++) {
        TensorFile& file = files[i];
        if (i == copies.size()) copies.emplace_back(g.op);
        file.bytes = safetensors_bytes(file.sources);
        char* copy = copies[i].at_least(file.bytes);
        const Status s = safetensors_copy(file.sources, copy, g.op.on_host());
        CHECK(s.ok(), "%s", s.message.c_str());    // the model's memory can be read
        file.copy = copy;
        file.sources.clear();
        kept += file.bytes;
    }
}

// ---- the phases ---------------------------------------------------------------------------------

Status CheckpointWriter::begin(const Model& g, const Tokenizer& of_run, const TrainState& now,
                               const GenerationConfig& defaults, Copy copy, std::function<Status()> before) {
    CHECK(!active() && now.step >= 0 && now.step <= 99999999, "step %lld", (long long)now.step);
    first = g.plan.rank == 0;
    config = g.c;
    tokenizer = of_run;
    generation = defaults;
    state = now;
    flush = std::move(before);
    sums.clear();
    named = false;
    hurry = false;
    directory = step_directory(run, now.step);
    const std::string name = first ? temporary_name(directory) : "";
    temporary = coordinator ? coordinator->broadcast(name) : name;
    auto make = [&] {
        return disk_status(temporary, "mkdir", retry_eintr([&] { return disk.mkdir(temporary.c_str()); }));
    };
    TRY(agree(first ? make() : Status{}));
    if (first) lock = std::make_unique<TemporaryLock>(temporary);
    files = tensor_files(g);
    indices.clear();
    if (g.plan.ranks > 1 && !g.c.adapter.any())
        indices.push_back({"model.safetensors.index.json", checkpoint_index(g, "model", {weights_state(g)})});
    if (g.plan.ranks > 1)
        indices.push_back({"optimizer.safetensors.index.json", checkpoint_index(g, "optimizer", optimizer_states(g))});
    background = copy == Copy::yes;
    if (background) copy_tensors(g);
    start(coordinator ? Phase::tensors : Phase::all);
    return {};
}

void CheckpointWriter::start(Phase next) {
    phase = next;
    auto run_phase = [this, next] {
        result = work(next);
        finished.store(next, std::memory_order_release);
    };
    const bool idle = !first && next != Phase::tensors;
    if (background && !idle) try {
            thread = std::thread(run_phase);
            return;
        } catch (const std::system_error&) {    // no threads left: the caller works
            background = false;
        }
    run_phase();
}

Status CheckpointWriter::work(Phase which) {
    switch (which) {
        case Phase::tensors: return write_tensors();
        case Phase::rest: return first ? write_rest() : Status{};
        case Phase::prune: return first && keep >= 0 ? checkpoint_prune(run, keep, disk, &whole) : Status{};
        default: return work_all();
    }
}
Status CheckpointWriter::work_all() {
    TRY(work(Phase::tensors));
    TRY(work(Phase::rest));
    whole.insert(directory);
    return work(Phase::prune);
}

Status CheckpointWriter::write_tensors() {
    const double began = now_seconds(), used = thread_seconds();
    constexpr int64_t CHUNK = 1 << 20;
    for (const TensorFile& file : files) {
        auto from_copy = [&](const FileSink& sink) -> Status {
            for (int64_t at = 0; at < file.bytes; at += CHUNK) {
                TRY(sink(file.copy + at, std::min(CHUNK, file.bytes - at)));
                if (background && !rest_until(began + (thread_seconds() - used) / share)) continue;
                count_progress();    // for those who wait; beside training it would hide a stalled step
            }
            return {};
        };
        auto from_model = [&](const FileSink& sink) { return safetensors_write(file.sources, sink); };
        if (file.copy) TRY(write_file(disk, temporary, file.name, &sums, from_copy));
        else TRY(write_file(disk, temporary, file.name, &sums, from_model));
    }
    return {};
}
// Sleeps until `time`, or until the caller waits for the thread: returns whether it does.
bool CheckpointWriter::rest_until(double time) {
    std::unique_lock<std::mutex> held(mutex);
    return hurried.wait_for(held, std::chrono::duration<double>(time - now_seconds()), [&] { return hurry; });
}

Status CheckpointWriter::write_rest() {
    auto text = [&](const std::string& name, const std::string& bytes) {
        return write_text(disk, temporary, name.c_str(), bytes, sums);
    };
    if (flush) TRY(flush());
    for (const auto& [name, bytes] : indices) TRY(text(name, bytes));
    TRY(write_texts(disk, temporary, config, tokenizer, generation, sums));
    TRY(text("state.json", state_json(state)));
    TRY(text("MANIFEST", manifest_text(sums)));
    auto flush_directory = [&](const std::string& path) {
        return disk_status(path, "fsync", retry_eintr([&] { return disk.sync_dir(path.c_str()); }));
    };
    TRY(flush_directory(temporary));
    TRY(rename_directory(disk, temporary, directory, Overwrite::yes));
    named = true;
    lock->renamed(directory);
    TRY(flush_directory(run));
    return remove_directory(temporary, disk);    // older checkpoint of this step, exchanged before
}

Status CheckpointWriter::advance() {
    CHECK(active(), "no checkpoint is being written");
    if (thread.joinable()) thread.join();
    const Status s = agree(result);
    if (phase == Phase::tensors && s.ok()) {
        files.clear();
        gather_sums(&sums, *coordinator);
        start(Phase::rest);
        return {};
    }
    if (phase == Phase::rest && coordinator) named = coordinator->broadcast(named ? "named" : "") == "named";
    if (phase == Phase::rest && s.ok()) {
        whole.insert(directory);
        start(Phase::prune);
        return {};
    }
    return end(s);
}

// Ends a checkpoint, and removes what one without a name has left. After the rename, the temporary
// name may hold an older checkpoint of the step, which pruning removes.
Status CheckpointWriter::end(const Status& s) {
    if (!named && first) (void)remove_directory(temporary, disk);    // the first error is reported
    lock.reset();
    files.clear();
    phase = Phase::none;
    finished = Phase::none;
    return s;
}

void CheckpointWriter::full_speed() {
    const std::lock_guard<std::mutex> held(mutex);
    hurry = true;
    hurried.notify_all();
}
Status CheckpointWriter::finish() {
    full_speed();
    Status s;
    while (active() && s.ok()) s = advance();
    return s;
}
CheckpointWriter::~CheckpointWriter() {
    full_speed();
    if (thread.joinable()) thread.join();
    if (active()) (void)end({});
}

Status checkpoint_write(const std::string& run, const Model& g, const Tokenizer& tokenizer, const TrainState& state,
                        const Disk& disk, Coordinator* coordinator, const GenerationConfig& generation) {
    CheckpointWriter writer(run, -1, coordinator, disk);
    TRY(writer.begin(g, tokenizer, state, generation, CheckpointWriter::Copy::no));
    return writer.finish();
}

// ---- a model alone ------------------------------------------------------------------------------

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
                       [&](const FileSink& sink) { return safetensors_write(tensors, sink); }));
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
