// grammar.h - constrained decoding: a context-free grammar over bytes, and its tokens.
//
// Grammars are written in GBNF, as in llama.cpp: name ::= alternatives, which consist of literals
// "a\n", classes [a-z^"\u00e9], . for any character, names, groups ( ), * + ? {m} {m,} {m,n}, and
// comments after #. Every text derives from `root`. Characters become their UTF-8 bytes, so that a
// token may end within a character.
#pragma once
#include <bitset>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"

struct Grammar {
    enum class Kind : uint8_t { end, bytes, rule };
    struct Element {
        Kind kind;
        int value = 0;    // index into `sets` or `rules`
    };
    std::vector<Element> elements;          // alternatives one after the other, each closed by `end`
    std::vector<std::vector<int>> rules;    // by rule: first elements of its alternatives
    std::vector<std::bitset<256>> sets;     // classes of bytes
    int root = 0;

    // Parses untrusted text; size and depth are bounded. Exit 3: line, expected and found text, or
    // the name of a left-recursive rule.
    static Result<std::shared_ptr<const Grammar>> parse(std::string_view text, const std::string& name);
};

// Pushdown automaton. A state is the set of all stacks that can continue the text so far. States
// are built when first needed and cached, because texts reach equal states again.
class GrammarMachine {
  public:
    static constexpr int DEAD = -1, MOST_STEPS = 1 << 16;    // DEAD: no state; MOST_STEPS: limit on building one
    GrammarMachine() = default;
    explicit GrammarMachine(std::shared_ptr<const Grammar> grammar);
    int start() const { return first; }
    int step(int state, unsigned char byte);    // DEAD: no continuation, or over MOST_STEPS stacks
    bool may_end(int state) const { return state != DEAD && states[size_t(state)].stacks[0] == 0; }
    bool must_end(int state) const { return state == DEAD || (may_end(state) && stacks(state) == 1); }
    int stacks(int state) const { return int(states[size_t(state)].stacks.size()); }
    size_t size() const { return states.size() + nodes.size() / 256; }
    int forget_all_but(int state);    // empties the cache; returns the state's new number

  private:
    struct Node {
        int at, parent;
    };    // stack: elements[at] is next, then `parent`; 0: empty
    struct State {
        std::vector<int> stacks;       // nodes at the stacks' tops, sorted
        std::vector<int> next = {};    // by byte; UNKNOWN: not yet computed
    };
    int node(int at, int parent);
    int state(std::vector<Node> open);
    int keep(std::vector<int> stacks);

    std::shared_ptr<const Grammar> g;
    std::vector<Node> nodes = {{0, 0}};
    std::unordered_map<uint64_t, int> node_of;
    std::vector<State> states;
    std::unordered_map<std::string, int> state_of;    // key: bytes of `stacks`
    int first = DEAD;
};

// Position of a text in a grammar. Const functions fill caches: not thread-safe.
class GrammarMatcher {
  public:
    GrammarMatcher() = default;
    // V: number of tokens; ends: tokens that are allowed where the text may end.
    GrammarMatcher(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer, int V,
                   const std::vector<int>& ends);
    bool allows(int id) const;
    const std::vector<bool>& allowed() const;    // (V); valid until the next call
    void accept(int id);
    bool done() const { return machine.must_end(state); }    // the text must end here
    bool broken() const { return is_broken; }                // a token that is not allowed was accepted
    int end() const { return words->end; }                   // a token that ends texts; -1: none

  private:
    struct Words {
        Tokenizer tokenizer;
        std::vector<int> order, common;    // ids sorted by bytes; bytes shared with the previous token
        std::vector<char> is_end, is_word;
        int end = -1;
    };
    int after(int id) const;    // state after this token
    void walk(std::vector<bool>& mask) const;

    std::shared_ptr<const Words> words;
    mutable GrammarMachine machine;
    mutable std::unordered_map<int, std::vector<bool>> masks;    // by state
    int state = GrammarMachine::DEAD;
    bool is_broken = false;
};
