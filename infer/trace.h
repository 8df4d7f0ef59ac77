// trace.h - --trace FILE: a line of text for each array that an operation writes, to find the first
// operation whose results differ between two types, devices or implementations.
#pragma once
#include <map>
#include <memory>

#include "base/command.h"
#include "model/model.h"

// An operation table (Table, layers/ops.h) whose operations call those of `real` and write lines
// about the outputs. It captures no CUDA graphs. Operations take no context, so only the Trace that
// was made last writes.
class Trace {
  public:
    Table table;    // to build a Model with; the Trace must outlive it
    // Opens the file at `path`. Exit 2: no file can have this name; 4: the file cannot be written.
    static Result<std::unique_ptr<Trace>> open(const std::string& path, const Table& real);
    ~Trace();
    Trace(const Trace&) = delete;

    // Writes lines from here on, with the names of this model's arrays. The model must be
    // allocated.
    void start(const Model& model);
    void stop() { model = nullptr; }

  private:
    struct Outputs;
    const Table real;
    const std::string path;
    FILE* const file;
    const Model* model = nullptr;                                // null: no line is written
    std::map<std::pair<int, const void*>, std::string> names;    // by layer (-1: outside of blocks) and address

    Trace(const Table& observed, std::string name, FILE* stream);
    template <class X> void write(const char* operation, const char* argument, X* p, int64_t rows, int64_t cols = -1);
    template <class G>
    void write(const char* operation, const char* argument, GradTarget<G> to, int64_t rows, int64_t cols) {
        write(operation, argument, to.p, rows, cols);
    }
};
// Opens a Trace at `path` and replaces the model, which must not be allocated yet, by one that uses
// Trace::table. An empty path changes nothing.
Status open_trace(const std::string& path, std::unique_ptr<Model>& model, std::unique_ptr<Trace>& trace);
// Returns the option --trace. `passes` says in its help which passes are written.
Flag trace_flag(std::string& path, const std::string& passes, const std::vector<std::string>& excludes = {});
