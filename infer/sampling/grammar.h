// grammar.h - what a generated text may be: a context-free grammar over bytes, and which tokens may come next.
//
// Grammars are written in GBNF, as llama.cpp reads it: name ::= alternatives, of literals "a\n", classes [a-z^"\u00e9],
// . for any character, names, groups ( ), * + ? {m} {m,} {m,n}, and comments from # on. A text begins with `root`.
// Characters become the byte sequences of their UTF-8, so that a token may end within one.
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
        int value = 0;    // which of `sets`; which rule
    };
    std::vector<Element> elements;          // alternatives one after the other, each with an end
    std::vector<std::vector<int>> rules;    // where the alternatives of each begin
    std::vector<std::bitset<256>> sets;     // bytes, one of which stands here
    int root = 0;

    // Hostile until checked: size and depth are bounded. exit 3: the line, what was expected and found; a rule that
    // begins with itself (left recursion) by its name
    static Result<std::shared_ptr<const Grammar>> parse(std::string_view text, const std::string& name);
};

// The automaton: a state is the set of stacks with which the grammar can go on. States are made when first asked for,
// and kept: a text's states recur.
class GrammarMachine {
  public:
    static constexpr int DEAD = -1, MOST_STEPS = 1 << 16;    // steps: to find a state's stacks
    GrammarMachine() = default;
    explicit GrammarMachine(std::shared_ptr<const Grammar> grammar);
    int start() const { return first; }
    int step(int state, unsigned char byte);    // DEAD: no text goes on so, or more stacks than MOST_STEPS
    bool may_end(int state) const { return state != DEAD && states[size_t(state)].stacks[0] == 0; }
    bool must_end(int state) const { return state == DEAD || (may_end(state) && stacks(state) == 1); }
    int stacks(int state) const { return int(states[size_t(state)].stacks.size()); }
    size_t size() const { return states.size() + nodes.size() / 256; }
    int forget_all_but(int state);    // its new number

  private:
    struct Node {
        int at, parent;
    };    // the stack that stands before elements[at], above another one; 0: empty
    struct State {
        std::vector<int> stacks;       // nodes, in order
        std::vector<int> next = {};    // by byte; UNKNOWN
    };
    int node(int at, int parent);
    int state(std::vector<Node> open);
    int keep(std::vector<int> stacks);

    std::shared_ptr<const Grammar> g;
    std::vector<Node> nodes = {{0, 0}};
    std::unordered_map<uint64_t, int> node_of;
    std::vector<State> states;
    std::unordered_map<std::string, int> state_of;    // by the bytes of its stacks
    int first = DEAD;
};

// A sequence's place in the grammar. Its const functions only fill memos: not for two threads at once.
class GrammarMatcher {
  public:
    GrammarMatcher() = default;
    // V: tokens in all; ends: those that may stand where the grammar may end
    GrammarMatcher(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer, int V,
                   const std::vector<int>& ends);
    bool allows(int id) const;
    const std::vector<bool>& allowed() const;    // (V); until the next call
    void accept(int id);
    bool done() const { return machine.must_end(state); }    // nothing may follow
    bool broken() const { return is_broken; }                // a token was taken that is not allowed
    int end() const { return words->end; }                   // what ends a text; -1: there is none

  private:
    struct Words {
        Tokenizer tokenizer;
        std::vector<int> order, common;    // ids in order of their bytes; how many each shares with the one before
        std::vector<char> is_end, is_word;
        int end = -1;
    };
    int after(int id) const;    // the state
    void walk(std::vector<bool>& mask) const;

    std::shared_ptr<const Words> words;
    mutable GrammarMachine machine;
    mutable std::unordered_map<int, std::vector<bool>> masks;    // by state
    int state = GrammarMachine::DEAD;
    bool is_broken = false;
};
