// shots.cpp - task_prefixes of items.h: examples, drawn as lm-evaluation-harness draws them.
//
// The harness's sampler begins with seed 1234 for each task and draws for one item after another.
// If the examples come from the items themselves, the sampler draws one more than needed, and the
// item is left out.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "items.h"
#include "python_random.h"

namespace {
constexpr uint32_t SEED = 1234;

std::string example(const Item& item) {
    return item.shown_prompt() +
           (item.shown_answer().empty() && item.answers.size() == 1 ? "" : " " + item.shown_answer() + "\n\n");
}
bool equal(const Item& a, const Item& b) { return *a.record.json == *b.record.json; }

// Examples of one pool for one item after another.
class Shots {
  public:
    Shots(std::vector<const Item*> items, bool same_file, int shots)
        : pool(std::move(items)), same(same_file), n(shots) {}
    Result<std::vector<const Item*>> first_for(const Item& item) const { return others(pool, item); }
    Result<std::vector<const Item*>> drawn_for(const Item& item) {
        const int drawn = n + same;
        if (drawn > int(pool.size())) return too_few(item);
        std::vector<const Item*> chosen;
        for (int i : random.sample(int(pool.size()), drawn)) chosen.push_back(pool[size_t(i)]);
        Result<std::vector<const Item*>> shots = others(chosen, item);
        if (shots.ok()) return shots;
        std::vector<const Item*> rest;    // an item that the pool has several times was drawn twice
        for (const Item* other : pool)
            if (!equal(*other, item)) rest.push_back(other);
        if (n > int(rest.size())) return too_few(item);
        chosen.clear();
        for (int i : random.sample(int(rest.size()), n)) chosen.push_back(rest[size_t(i)]);
        return chosen;
    }

  private:
    Result<std::vector<const Item*>> others(const std::vector<const Item*>& from, const Item& item) const {
        std::vector<const Item*> some;
        for (const Item* other : from)
            if (int(some.size()) < n && (!same || !equal(*other, item))) some.push_back(other);
        if (int(some.size()) < n) return too_few(item);
        return some;
    }
    Status too_few(const Item& item) const {
        return fail(Exit::usage,
                    "--shots %d: %s has a pool of %zu items to draw examples from; fewer --shots, or "
                    "--shots-file with more",
                    n, item.record.where.c_str(), pool.size() - (same && !pool.empty()));
    }
    std::vector<const Item*> pool;
    bool same;
    int n;
    PythonRandom random{SEED};
};
}    // namespace

Result<std::vector<std::string>> task_prefixes(const EvalTask& task, const std::vector<Item>& items,
                                               const std::vector<Item>& pool, bool same_file, int shots) {
    std::map<std::string, std::vector<const Item*>> pools;
    for (const Item& item : pool) pools[item.pool].push_back(&item);
    std::map<std::string, Shots> draws;
    std::vector<std::string> prefixes;
    for (const Item& item : items) {
        prefixes.push_back(item.description);
        if (shots == 0) continue;
        Shots& draw = draws.try_emplace(item.pool, pools[item.pool], same_file, shots).first->second;
        for (const Item* shot : TRY(task.first_examples ? draw.first_for(item) : draw.drawn_for(item)))
            prefixes.back() += example(*shot);
    }
    return prefixes;
}
