// core.cpp - see core.h.
#include "core.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "infer/jinja/value.h"
#include "python_random.h"

namespace {
typedef nlohmann::ordered_json Object;

// ---- core.yaml ----------------------------------------------------------------------------------

// A plain or quoted scalar, without a comment behind it. Double quotes have escapes.
Result<std::string> scalar(const std::string& raw, const std::string& where) {
    const std::string text = jinja::strip(raw);
    if (text.empty() || (text[0] != '"' && text[0] != '\'')) return jinja::strip(text.substr(0, text.find(" #")));
    std::string value;
    for (size_t i = 1; i < text.size(); i++) {
        if (text[i] == text[0]) return value;
        if (text[i] != '\\' || text[0] == '\'') {
            value += text[i];
            continue;
        }
        const char escape = ++i < text.size() ? text[i] : '"';
        value += escape == 'n' ? '\n' : escape == 't' ? '\t' : escape;
    }
    return fail(Exit::input, "%s: expected a closing %c, found %s", where.c_str(), text[0], text.substr(0, 80).c_str());
}
Status set_key(CoreTask& task, const std::string& key, const std::string& value, const std::string& where) {
    if (key == "label") task.label = value;
    else if (key == "dataset_uri") task.uri = value;
    else if (key == "continuation_delimiter") task.delimiter = value;
    else if (key == "num_fewshot") {
        const std::string digits = value.starts_with('[') ? jinja::strip(value.substr(1, value.find_first_of(",]") - 1))
                                                          : value;
        if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != digits.npos)
            return fail(Exit::input, "%s: expected num_fewshot: [NUMBER], found %s", where.c_str(), value.c_str());
        task.shots = atoi(digits.c_str());
    } else if (key == "icl_task_type") {
        const std::vector<std::string> kinds = {"multiple_choice", "schema", "language_modeling"};
        const auto found = std::find(kinds.begin(), kinds.end(), value);
        if (found == kinds.end())
            return fail(Exit::input,
                        "%s: expected icl_task_type multiple_choice, schema or language_modeling, found %s",
                        where.c_str(), value.c_str());
        task.kind = CoreTask::Kind(found - kinds.begin());
    }
    return {};
}
}    // namespace

Result<std::vector<CoreTask>> parse_core_yaml(const std::string& text, const std::string& name) {
    std::vector<CoreTask> found;
    bool in_tasks = false, list = false;    // list: num_fewshot's value is on the next line
    int number = 0;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        const std::string where = name + " line " + std::to_string(++number);
        std::string line = text.substr(at, end - at);
        const size_t indent = line.find_first_not_of(" \t\r");
        if (indent == line.npos || line[indent] == '#') continue;
        if (indent == 0 && line[0] != '-') in_tasks = line.starts_with("icl_tasks:");
        if (!in_tasks || line.starts_with("icl_tasks:")) continue;
        line = jinja::strip(line);
        if (list && line.starts_with("- ")) {
            TRY(set_key(found.back(), "num_fewshot", TRY(scalar(line.substr(2), where)), where));
            list = false;
            continue;
        }
        if (line[0] == '-') {
            found.push_back({.line = number});
            line = jinja::strip(line.substr(1));
            if (line.empty()) continue;
        }
        const size_t colon = line.find(':');
        if (colon == line.npos || found.empty())
            return fail(Exit::input, "%s: expected \"key: value\" of a task, found %s", where.c_str(),
                        line.substr(0, 80).c_str());
        const std::string key = jinja::strip(line.substr(0, colon)), value = TRY(scalar(line.substr(colon + 1), where));
        list = key == "num_fewshot" && value.empty();
        if (!list) TRY(set_key(found.back(), key, value, where));
    }
    for (const CoreTask& task : found)
        if (task.label.empty() || task.uri.empty())
            return fail(Exit::input,
                        "%s line %d: expected a task with label and dataset_uri, found none of them or one",
                        name.c_str(), task.line);
    if (found.empty()) return fail(Exit::input, "%s: expected tasks in a list icl_tasks, found none", name.c_str());
    return found;
}

Status parse_baselines(const std::string& csv, const std::string& name, std::vector<CoreTask>* tasks) {
    const std::vector<std::vector<std::string>> rows = TRY(parse_csv_rows(csv, name));
    auto column = [&](const char* title) {
        return rows.empty() ? 0 : size_t(std::find(rows[0].begin(), rows[0].end(), title) - rows[0].begin());
    };
    const size_t label = column("Eval Task"), random = column("Random baseline");
    if (rows.empty() || label == rows[0].size() || random == rows[0].size())
        return fail(Exit::input, "%s line 1: expected columns \"Eval Task\" and \"Random baseline\"", name.c_str());
    for (CoreTask& task : *tasks) {
        const auto row = std::find_if(rows.begin(), rows.end(), [&](const std::vector<std::string>& r) {
            return r.size() > std::max(label, random) && r[label] == task.label;
        });
        if (row == rows.end())
            return fail(Exit::input, "%s: expected a row of task %s, found none", name.c_str(), task.label.c_str());
        const std::string& text = (*row)[random];
        char* rest = nullptr;
        task.random = strtod(text.c_str(), &rest);
        if (text.empty() || *rest || !(task.random >= 0 && task.random < 100))
            return fail(Exit::input, "%s: task %s: expected a random baseline from 0 to 100 percent, found %s",
                        name.c_str(), task.label.c_str(), text.c_str());
    }
    return {};
}

// ---- items --------------------------------------------------------------------------------------

namespace {
typedef CoreTask::Kind Kind;
struct CoreItem {
    std::string where;                                   // Record::where
    std::vector<std::string> before = {}, after = {};    // contexts, continuations: one list has one text
    size_t gold = 0;
    std::string text(size_t i, const std::string& delimiter) const {
        return before[before.size() > 1 ? i : 0] + delimiter + after[after.size() > 1 ? i : 0];
    }
};
Result<std::vector<std::string>> texts_of(const Record& r, const char* key, bool list) {
    const auto found = r.json->find(key);
    auto is_text = [](const Object& x) { return x.is_string(); };
    const bool fits = found != r.json->end() && (list ? found->is_array() && found->size() > 1 &&
                                                            std::all_of(found->begin(), found->end(), is_text)
                                                      : found->is_string());
    if (!fits)
        return fail(Exit::input, "%s: core: expected field \"%s\", %s", r.where.c_str(), key,
                    list ? "a list of at least two texts" : "a text");
    std::vector<std::string> texts;
    if (!list) return std::vector<std::string>{found->get<std::string>()};
    for (const Object& text : *found) texts.push_back(text.get<std::string>());
    return texts;
}
Result<CoreItem> core_item(Kind kind, const Record& r) {
    CoreItem item{.where = r.where};
    if (kind == Kind::multiple_choice) {
        item.before = TRY(texts_of(r, "query", false));
        item.after = TRY(texts_of(r, "choices", true));
    } else {
        item.before = TRY(texts_of(r, kind == Kind::schema ? "context_options" : "context", kind == Kind::schema));
        item.after = TRY(texts_of(r, "continuation", false));
    }
    if (kind == Kind::language_modeling) {
        item.before[0] = jinja::strip(item.before[0]);
        return item;
    }
    const size_t n = std::max(item.before.size(), item.after.size());
    const auto gold = r.json->find("gold");
    if (gold == r.json->end() || !gold->is_number_integer() || gold->get<int64_t>() < 0 ||
        gold->get<int64_t>() >= int64_t(n))
        return fail(Exit::input, "%s: core: expected field \"gold\", a number from 0 to %zu", r.where.c_str(), n - 1);
    item.gold = gold->get<size_t>();
    return item;
}
// Number of equal tokens at the beginning of all, or at the end.
size_t common_of(const std::vector<LikelihoodRequest>& all, bool at_end) {
    const std::vector<int>& first = all[0].tokens;
    size_t most = first.size();
    for (const LikelihoodRequest& r : all) {
        most = std::min(most, r.tokens.size());
        size_t n = 0;
        auto token = [&](const std::vector<int>& t) { return at_end ? t[t.size() - 1 - n] : t[n]; };
        while (n < most && token(first) == token(r.tokens)) n++;
        most = n;
    }
    return most;
}
// An item's requests: whole prompts. The scored part is what differs between the choices, or what
// all contexts end with, or the continuation; a choice that another one begins with has none
// (from = tokens.size()). Exit 3: names the item.
Result<std::vector<LikelihoodRequest>> core_requests(const CoreTask& task, const std::vector<CoreItem>& items,
                                                     size_t index, const Tokenizer& tokenizer, int context) {
    const CoreItem& item = items[index];
    std::string examples;
    if (task.shots >= int(items.size()))
        return fail(Exit::input, "%s: core: %s has %d examples before each item, so it needs more items, found %zu",
                    item.where.c_str(), task.label.c_str(), task.shots, items.size());
    // The drawn numbers count the other items.
    for (int other : PythonRandom(uint32_t(1234 + index)).sample(int(items.size()) - 1, task.shots)) {
        const CoreItem& shot = items[size_t(other) + (size_t(other) >= index)];
        examples += shot.text(shot.gold, task.delimiter) + "\n\n";
    }
    std::vector<LikelihoodRequest> all;
    auto add = [&](const std::string& text) {
        LikelihoodRequest r{.tokens = {prefix_token(tokenizer)}, .group = int64_t(index)};
        for (int id : tokenizer.encode(text)) r.tokens.push_back(id);
        all.push_back(std::move(r));
    };
    for (size_t i = 0; i < std::max(item.before.size(), item.after.size()); i++)
        add(examples + item.text(i, task.delimiter));
    if (task.kind == Kind::language_modeling) {
        add(jinja::strip(examples + item.before[0] + task.delimiter));
        all[0].from = int(common_of(all, false));
        all.pop_back();
    } else {
        const size_t common = common_of(all, task.kind == Kind::schema);
        for (LikelihoodRequest& r : all) r.from = int(task.kind == Kind::schema ? r.tokens.size() - common : common);
    }
    for (LikelihoodRequest& r : all) {
        const int over = std::max(0, int(r.tokens.size()) - context);
        r.tokens.erase(r.tokens.begin(), r.tokens.begin() + over);
        r.from = std::max(1, r.from - over);
        if (r.from < int(r.tokens.size()) || task.kind != Kind::language_modeling) continue;
        return fail(Exit::input, "%s: core: %s: expected a continuation of at least one token, found none",
                    item.where.c_str(), task.label.c_str());
    }
    return all;
}
}    // namespace

Result<std::vector<CoreTask>> read_core(const std::string& directory) {
    const std::string dir = without_slashes(directory), yaml = dir + "/core.yaml", meta = dir + "/eval_meta_data.csv";
    std::vector<CoreTask> list = TRY(parse_core_yaml(TRY(read_file(yaml, 1 << 20)), yaml));
    TRY(parse_baselines(TRY(read_file(meta, 1 << 20)), meta, &list));
    for (const CoreTask& task : list) TRY(File::open(dir + "/eval_data/" + task.uri).status);
    return list;
}

namespace {
Result<PreparedCoreTask> prepare_core_task(const CoreTask& task, std::vector<Record> records,
                                           const Tokenizer& tokenizer, const TaskOptions& o) {
    PreparedCoreTask t{.task = task};
    PythonRandom(1337).shuffle(records);
    if (o.limit > 0 && o.limit < int64_t(records.size())) {
        if (o.limit <= task.shots)
            return fail(Exit::usage,
                        "%s %lld: task %s of core draws %d examples from the other items, so it needs %d items; a "
                        "larger %s, or 0",
                        o.limit_flag, (long long)o.limit, task.label.c_str(), task.shots, task.shots + 1, o.limit_flag);
        records.resize(size_t(o.limit));
    }
    std::vector<CoreItem> items;
    for (const Record& record : records) items.push_back(TRY(core_item(task.kind, record)));
    for (size_t i = 0; i < items.size(); i++) {
        t.choices.emplace_back();
        for (LikelihoodRequest& r : TRY(core_requests(task, items, i, tokenizer, o.context))) {
            const bool scored = r.from < int(r.tokens.size());
            t.choices.back().push_back(scored ? int64_t(t.requests.size()) : -1);
            if (scored) t.requests.push_back(std::move(r));
        }
        t.golds.push_back(items[i].gold);
        t.where.push_back(items[i].where);
    }
    return t;
}
Result<RunResult> run_core_task(Model& model, const PreparedCoreTask& t, const RunOptions& run) {
    const CoreTask& task = t.task;
    const bool greedy = task.kind == Kind::language_modeling;
    const std::vector<Likelihood> found = TRY(likelihoods(model, t.requests, {run.groups, greedy, run.progress}));
    RunResult r;
    std::vector<double> right;
    for (size_t i = 0; i < t.choices.size(); i++) {
        std::vector<double> means;
        bool finite = true;
        for (const int64_t k : t.choices[i]) {
            means.push_back(NAN);
            if (k < 0) continue;
            const LikelihoodRequest& request = t.requests[size_t(k)];
            const double logprob = found[size_t(k)].logprob;
            means.back() = logprob / double(request.tokens.size() - size_t(request.from));
            finite &= std::isfinite(logprob);
            if (!finite && !run.not_finite_is_nan) return not_finite(t.where[i], logprob);
        }
        const bool is_right = greedy ? found[size_t(t.choices[i][0])].greedy : best_of(means) == t.golds[i];
        right.push_back(finite ? double(is_right) : NAN);
        if (run.each)
            r.samples.push_back(Json::object("task", "core/" + task.label, "item", int64_t(i), "where", t.where[i],
                                             "logprobs_by_token", Json::list(means), "acc", right.back()));
    }
    const MetricResult acc = mean_metric("acc", right);
    const double scale = 1 / (1 - 0.01 * task.random);
    r.result = {"core/" + task.label,
                int64_t(t.choices.size()),
                task.shots,
                {acc, {"centred", centred(acc.value, task.random), acc.stderr_of_mean * scale}}};
    return r;
}
}    // namespace

Result<std::vector<PreparedCoreTask>> prepare_core(const Tokenizer& tokenizer, const TaskOptions& o) {
    std::vector<PreparedCoreTask> prepared;
    for (const CoreTask& task : TRY(read_core(o.file))) {
        const std::string path = without_slashes(o.file) + "/eval_data/" + task.uri;
        std::vector<Record> records = TRY(read_records(path, {}));
        if (records.empty()) return fail(Exit::input, "%s: expected items, found none", path.c_str());
        prepared.push_back(TRY(prepare_core_task(task, std::move(records), tokenizer, o)));
    }
    return prepared;
}
Result<std::vector<RunResult>> run_core(Model& model, const std::vector<PreparedCoreTask>& tasks,
                                        const RunOptions& run) {
    std::vector<RunResult> results;
    double sum = 0;
    for (const PreparedCoreTask& task : tasks) {
        results.push_back(TRY(run_core_task(model, task, run)));
        sum += results.back().result.metrics[1].value;
    }
    results.push_back({{CORE_NAME, int64_t(tasks.size()), 0, {{"core", sum / double(tasks.size()), NAN}}}, {}});
    return results;
}
