// grammar.cpp - a grammar's automaton and the tokens that it allows. grammar_parse.cpp parses.
#include "grammar.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace {
constexpr int UNKNOWN = -2;
constexpr size_t MOST_STATES = 4096, MOST_MASKS = 64;    // checked after each token
constexpr int64_t MOST_WORK = 50'000'000;                // stacks visited per mask: a second or two
constexpr size_t MOST_NEW_STATES = 20'000;               // states built per mask
uint64_t pair_key(int a, int b) { return uint64_t(uint32_t(a)) << 32 | uint32_t(b); }
}    // namespace

// ---- states -------------------------------------------------------------------------------------

GrammarMachine::GrammarMachine(std::shared_ptr<const Grammar> grammar) : g(std::move(grammar)) {
    std::vector<Node> open;
    for (int at : g->rules[size_t(g->root)]) open.push_back({at, 0});
    first = state(std::move(open));
}

int GrammarMachine::node(int at, int parent) {
    const auto [found, fresh] = node_of.try_emplace(pair_key(at, parent), int(nodes.size()));
    if (fresh) nodes.push_back({at, parent});
    return found->second;
}

// Returns the state whose stacks are the expansions of `open`. If a stack's next element is a rule,
// a stack for each of the rule's alternatives replaces it. At an alternative's end, the stack goes
// on at its parent, the element after that rule. Expansion ends where bytes come next or the stack
// is empty. `seen` prevents endless expansion of parts that derive the empty text.
int GrammarMachine::state(std::vector<Node> open) {
    std::unordered_set<uint64_t> seen;
    std::vector<int> stacks;
    auto push = [&](int at, int parent) {
        if (seen.insert(pair_key(at, parent)).second) open.push_back({at, parent});
    };
    while (!open.empty()) {
        const Node now = open.back();
        open.pop_back();
        const Grammar::Element e = g->elements[size_t(now.at)];
        if (e.kind == Grammar::Kind::bytes) {
            stacks.push_back(node(now.at, now.parent));
        } else if (e.kind == Grammar::Kind::rule) {
            const bool last = g->elements[size_t(now.at) + 1].kind ==
                              Grammar::Kind::end;    // tail call: no return needed
            const int parent = last ? now.parent : node(now.at + 1, now.parent);
            for (int at : g->rules[size_t(e.value)]) push(at, parent);
        } else if (now.parent == 0) {
            stacks.push_back(0);
        } else {
            const Node above = nodes[size_t(now.parent)];
            push(above.at, above.parent);
        }
        if (seen.size() > size_t(MOST_STEPS)) return DEAD;
    }
    std::sort(stacks.begin(), stacks.end());
    stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
    return keep(std::move(stacks));
}
int GrammarMachine::keep(std::vector<int> stacks) {
    if (stacks.empty()) return DEAD;
    const std::string key(reinterpret_cast<const char*>(stacks.data()), stacks.size() * sizeof(int));
    const auto [found, fresh] = state_of.try_emplace(key, int(states.size()));
    if (fresh) states.push_back({std::move(stacks)});
    return found->second;
}

int GrammarMachine::step(int from, unsigned char byte) {
    if (from == DEAD) return DEAD;
    if (states[size_t(from)].next.empty()) states[size_t(from)].next.assign(256, UNKNOWN);
    if (const int known = states[size_t(from)].next[byte]; known != UNKNOWN) return known;
    std::vector<Node> open;
    for (int n : states[size_t(from)].stacks)
        if (n != 0 && g->sets[size_t(g->elements[size_t(nodes[size_t(n)].at)].value)][byte])
            open.push_back({nodes[size_t(n)].at + 1, nodes[size_t(n)].parent});
    const int to = state(std::move(open));
    return states[size_t(from)].next[byte] = to;
}

int GrammarMachine::forget_all_but(int kept) {
    const GrammarMachine old = std::move(*this);
    *this = GrammarMachine(old.g);
    if (kept == DEAD) return DEAD;
    std::vector<int> stacks;
    for (int top : old.states[size_t(kept)].stacks) {
        std::vector<int> path;    // nodes from the stack's top down
        for (int n = top; n != 0; n = old.nodes[size_t(n)].parent) path.push_back(n);
        int below = 0;
        for (size_t i = path.size(); i-- > 0;) below = node(old.nodes[size_t(path[i])].at, below);
        stacks.push_back(below);
    }
    std::sort(stacks.begin(), stacks.end());
    return keep(std::move(stacks));
}

// ---- tokens -------------------------------------------------------------------------------------

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer, int V,
                               const std::vector<int>& ends)
    : machine(std::move(grammar)) {
    auto w = std::make_shared<Words>();
    w->tokenizer = tokenizer;
    w->is_end.resize(size_t(V));
    w->is_word.resize(size_t(V));
    for (int id : ends)
        if (id >= 0 && id < V) w->is_end[size_t(id)] = true;
    for (int id = 0; id < std::min(V, tokenizer.vocab_size()); id++)
        if (!w->is_end[size_t(id)] && !tokenizer.is_special(id) && !tokenizer.token(id).empty())
            w->is_word[size_t(id)] = true, w->order.push_back(id);
    std::sort(w->order.begin(), w->order.end(), [&](int a, int b) { return tokenizer.token(a) < tokenizer.token(b); });
    for (size_t i = 0; i < w->order.size(); i++) {
        const std::string_view text = tokenizer.token(w->order[i]);
        const std::string_view before = i ? tokenizer.token(w->order[i - 1]) : std::string_view();
        w->common.push_back(
            int(std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first - text.begin()));
    }
    for (size_t i = ends.size(); i-- > 0;)
        if (ends[i] >= 0 && ends[i] < V) w->end = ends[i];
    words = w;
    state = machine.start();
}

int GrammarMatcher::after(int id) const {
    if (id < 0 || id >= int(words->is_word.size()) || !words->is_word[size_t(id)]) return GrammarMachine::DEAD;
    int at = state;
    for (char byte : words->tokenizer.token(id)) at = machine.step(at, static_cast<unsigned char>(byte));
    return at;
}
bool GrammarMatcher::allows(int id) const {
    if (id >= 0 && id < int(words->is_end.size()) && words->is_end[size_t(id)]) return machine.may_end(state);
    return after(id) != GrammarMachine::DEAD;
}
void GrammarMatcher::accept(int id) {
    is_broken = !allows(id);    // DEAD allows nothing, so it stays broken
    state = after(id);
    if (machine.size() < MOST_STATES) return;
    masks.clear();
    state = machine.forget_all_but(state);
}

const std::vector<bool>& GrammarMatcher::allowed() const {
    if (const auto known = masks.find(state); known != masks.end()) return known->second;
    if (masks.size() >= MOST_MASKS) masks.clear();
    std::vector<bool>& mask = masks[state];
    walk(mask);
    return mask;
}

// Computes the mask: visits all tokens sorted by bytes, each from the state after the prefix that
// it shares with the token before. If this takes too much work, no token is allowed.
void GrammarMatcher::walk(std::vector<bool>& mask) const {
    mask.assign(words->is_end.size(), false);
    std::vector<int> path = {state};    // path[i]: state after i bytes
    std::unordered_set<int> met;
    int64_t work = 0;
    size_t dead = SIZE_MAX;    // length of a prefix that nothing continues
    for (size_t i = 0; i < words->order.size(); i++) {
        if (size_t(words->common[i]) >= dead) continue;
        dead = SIZE_MAX;
        const std::string_view text = words->tokenizer.token(words->order[i]);
        path.resize(size_t(words->common[i]) + 1);
        while (path.size() <= text.size()) {
            path.push_back(machine.step(path.back(), static_cast<unsigned char>(text[path.size() - 1])));
            if (path.back() == GrammarMachine::DEAD) break;
            if (work += machine.stacks(path.back()); met.insert(path.back()).second) work += 16;
        }
        if (path.back() == GrammarMachine::DEAD) dead = path.size() - 1;
        else mask[size_t(words->order[i])] = true;
        if (work > MOST_WORK || met.size() > MOST_NEW_STATES) return mask.assign(mask.size(), false);
    }
    for (size_t id = 0; id < mask.size(); id++)
        if (words->is_end[id] && machine.may_end(state)) mask[id] = true;
}
