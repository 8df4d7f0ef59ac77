// parser.cpp - parses tokens into a tree. Precedence, loosest first: if-else, or, and, not,
// comparisons, + -, ~, * / // %, **, sign, postfix (. [] ()), filters and tests.
#include <charconv>
#include <cstring>

#include "infer/jinja/syntax.h"

namespace jinja {
namespace {
typedef std::unique_ptr<Node> NodePtr;
constexpr int DEEPEST = 200;    // nested nodes; interpreter and destructors recurse

template <class... K> std::vector<NodePtr> kids(K... kid) {
    std::vector<NodePtr> all;
    (all.push_back(std::move(kid)), ...);
    return all;
}

class Parser {
  public:
    explicit Parser(const std::string& text) : all(tokens(text)) {}
    NodePtr run() { return statements({}); }

  private:
    const std::vector<Token> all;
    size_t at = 0;
    int depth = 0;    // nested calls of the parser
    int loops = 0;    // loops around the current tag

    // ---- tokens ----
    const Token& now() const { return all[at]; }
    [[noreturn]] void expected(const std::string& what) const {
        throw Error{"expected " + what + ", found " + now().text.substr(0, 40), now().line};
    }
    // Whether the token `ahead` places after the next one is this operator or name. No operator is
    // spelled like a name.
    bool sees(const char* text, size_t ahead = 0) const {
        const Token& t = all[at + ahead];
        return (t.type == Token::op || t.type == Token::name) && t.text == text;
    }
    bool take(const char* text) { return sees(text) ? (at++, true) : false; }
    void expect(const char* text) {
        if (!take(text)) expected(std::string("'") + text + "'");
    }
    std::string name() {
        if (now().type != Token::name) expected("a name");
        return all[at++].text;
    }
    void block_end() {
        if (now().type != Token::block_end) expected("%}");
        at++;
    }

    // ---- nodes ----
    NodePtr node(Op op, std::vector<NodePtr> kids = {}, std::string text = {}) {
        auto n = std::make_unique<Node>();
        n->op = op;
        n->line = now().line;
        n->text = std::move(text);
        for (auto& kid : kids) add(*n, std::move(kid));
        return n;
    }
    static void add(Node& n, NodePtr kid) {
        if (kid) n.depth = std::max(n.depth, kid->depth + 1), n.line = std::min(n.line, kid->line);
        if (n.depth > DEEPEST) throw Error{"nested too deep", n.line};
        n.kids.push_back(std::move(kid));
    }
    // Puts a body into the empty capture node at the bottom of the filter chain `n`.
    static NodePtr filtered(NodePtr n, NodePtr body) {
        if (n->op == Op::capture) return add(*n, std::move(body)), std::move(n);
        n->kids[0] = filtered(std::move(n->kids[0]), std::move(body));
        n->depth = std::max(n->depth, n->kids[0]->depth + 1);
        if (n->depth > DEEPEST) throw Error{"nested too deep", n->line};
        return n;
    }
    NodePtr constant(Value v) {
        NodePtr n = node(Op::constant);
        n->value = std::move(v);
        return n;
    }
    struct Deeper {
        Parser& p;
        explicit Deeper(Parser& parser) : p(parser) {
            if (++p.depth > DEEPEST) throw Error{"nested too deep", p.now().line};
        }
        ~Deeper() { p.depth--; }
    };

    // ---- statements ----
    // Parses up to a tag with one of these names and leaves that tag unread; without names up to
    // the end.
    NodePtr statements(std::initializer_list<const char*> ends) {
        Deeper deeper(*this);
        std::vector<NodePtr> list;
        for (;;) {
            const Token& t = now();
            if (t.type == Token::end) {
                if (ends.size()) expected("{% " + std::string(std::data(ends)[ends.size() - 1]) + " %}");
                return node(Op::block, std::move(list));
            }
            at++;
            if (t.type == Token::data) list.push_back(node(Op::data, {}, t.text));
            else if (t.type == Token::print_begin) {
                list.push_back(node(Op::print, kids(tuple())));
                if (now().type != Token::print_end) expected("}}");
                at++;
            } else {
                for (const char* end : ends)
                    if (sees(end)) return node(Op::block, std::move(list));
                list.push_back(statement());
            }
        }
    }
    NodePtr body(const char* end) {    // from a tag's %} past its end tag
        block_end();
        NodePtr b = statements({end});
        at++;
        return b;
    }
    NodePtr statement() {
        const Token& tag = now();
        const std::string word = name();
        NodePtr n;
        if (word == "if") n = branch();
        else if (word == "for") n = loop();
        else if (word == "set") n = set();
        else if (word == "macro") n = macro();
        else if (word == "filter") {
            NodePtr first = node(Op::filter, kids(node(Op::capture)), name());
            arguments(*first);
            NodePtr filters = filter_chain(std::move(first));
            n = node(Op::print, kids(filtered(std::move(filters), body("endfilter"))));
        } else if (word == "generation") {
            n = node(Op::generation, kids(node(Op::capture, kids(body("endgeneration")))));
        } else if (word == "break" || word == "continue") {
            if (loops == 0) throw Error{"'" + word + "' outside of a loop", tag.line};
            n = node(word == "break" ? Op::leave : Op::next);
        } else {
            const bool file = word == "include" || word == "import" || word == "from" || word == "extends";
            throw Error{"tag '" + word.substr(0, 40) + (file ? "': a chat template may read no files" : "' is unknown"),
                        tag.line};
        }
        n->line = tag.line;
        block_end();
        return n;
    }
    NodePtr branch() {
        std::vector<NodePtr> parts;
        do {
            parts.push_back(tuple(false));
            block_end();
            parts.push_back(statements({"elif", "else", "endif"}));
        } while (take("elif"));
        if (take("else")) {
            block_end();
            parts.push_back(statements({"endif"}));
        }
        at++;
        return node(Op::branch, std::move(parts));
    }
    NodePtr loop() {
        NodePtr over = target(), test, other;
        expect("in");
        NodePtr items = tuple(false);
        if (take("if")) test = expression();
        if (sees("recursive")) expected("%} (recursive loops are not supported)");
        block_end();
        loops++;
        NodePtr each = statements({"else", "endfor"});
        loops--;
        if (take("else")) {
            block_end();
            other = statements({"endfor"});
        }
        at++;
        return node(Op::loop,
                    kids(std::move(over), std::move(items), std::move(test), std::move(each), std::move(other)));
    }
    NodePtr set() {
        NodePtr to = target();
        if (take("=")) return node(Op::set, kids(std::move(to), tuple()));
        NodePtr filters = filter_chain(node(Op::capture));
        return node(Op::set, kids(std::move(to), filtered(std::move(filters), body("endset"))));
    }
    NodePtr macro() {
        NodePtr n = node(Op::macro, {}, name());
        expect("(");
        while (!take(")")) {
            if (!n->names.empty()) expect(",");
            n->names.push_back(name());
            if (take("=")) add(*n, expression());
            else if (!n->kids.empty()) expected("a default, as the parameter before it has one");
        }
        const int outer_loops = std::exchange(loops, 0);
        add(*n, body("endmacro"));
        loops = outer_loops;
        NodePtr target = node(Op::name, {}, n->text);
        return node(Op::set, kids(std::move(target), std::move(n)));
    }
    // Parses an assignment target: a name, a namespace's attribute, or a tuple of them.
    NodePtr target() {
        auto one = [&]() -> NodePtr {
            Deeper deeper(*this);
            if (take("(")) {
                NodePtr inner = target();
                expect(")");
                return inner;
            }
            NodePtr n = node(Op::name, {}, name());
            for (const char* word : {"true", "false", "none", "True", "False", "None"})
                if (n->text == word) at--, expected("a name to assign to");
            return take(".") ? node(Op::attribute, kids(std::move(n)), name()) : std::move(n);
        };
        NodePtr first = one();
        if (!sees(",")) return first;
        std::vector<NodePtr> parts = kids(std::move(first));
        while (take(",") && (now().type == Token::name || sees("(")) && !sees("in")) parts.push_back(one());
        return node(Op::tuple, std::move(parts));
    }

    // ---- expressions ----
    // Parses one expression, or a tuple: several expressions with commas.
    NodePtr tuple(bool conditions = true, bool parentheses = false) {
        auto ends = [&] { return now().type == Token::print_end || now().type == Token::block_end || sees(")"); };
        std::vector<NodePtr> parts;
        bool commas = false;
        while (!ends()) {
            parts.push_back(conditions ? expression() : logical_or());
            if (!take(",")) break;
            commas = true;
        }
        if (parts.empty() && !parentheses) expected("an expression");
        return parts.size() == 1 && !commas ? std::move(parts[0]) : node(Op::tuple, std::move(parts));
    }
    NodePtr expression() {
        Deeper deeper(*this);
        NodePtr value = logical_or();
        while (take("if")) {
            NodePtr test = logical_or(), other;
            if (take("else")) other = expression();
            value = node(Op::condition, kids(std::move(value), std::move(test), std::move(other)));
        }
        return value;
    }
    NodePtr logical_or() {
        NodePtr n = logical_and();
        while (take("or")) n = node(Op::logical_or, kids(std::move(n), logical_and()));
        return n;
    }
    NodePtr logical_and() {
        NodePtr n = logical_not();
        while (take("and")) n = node(Op::logical_and, kids(std::move(n), logical_not()));
        return n;
    }
    NodePtr logical_not() {
        if (!sees("not")) return compare();
        Deeper deeper(*this);
        at++;
        return node(Op::logical_not, kids(logical_not()));
    }
    NodePtr compare() {
        std::vector<NodePtr> parts = kids(binary(0));
        std::vector<std::string> ops;
        for (;;) {
            const Token& t = now();
            const bool op = t.type == Token::op && (t.text == "==" || t.text == "!=" || t.text == "<" ||
                                                    t.text == "<=" || t.text == ">" || t.text == ">=");
            if (op || sees("in")) ops.push_back(t.text), at++;
            else if (sees("not") && sees("in", 1)) ops.push_back("not in"), at += 2;
            else break;
            parts.push_back(binary(0));
        }
        if (ops.empty()) return std::move(parts[0]);
        NodePtr n = node(Op::compare, std::move(parts));
        n->names = std::move(ops);
        return n;
    }
    NodePtr binary(int level) {
        static const std::vector<std::string> LEVELS[] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
        if (level == 4) return unary(true);
        NodePtr n = binary(level + 1);
        for (;;) {
            std::string op;
            for (auto& one : LEVELS[level])
                if (sees(one.c_str())) op = one;
            if (op.empty()) return n;
            at++;
            NodePtr right = binary(level + 1);
            if (op == "~" && n->op == Op::concatenate) add(*n, std::move(right));
            else n = node(op == "~" ? Op::concatenate : Op::arithmetic, kids(std::move(n), std::move(right)), op);
        }
    }
    NodePtr unary(bool filters) {
        Deeper deeper(*this);
        NodePtr n;
        if (take("-")) n = node(Op::sign, kids(unary(false)), "-");
        else if (take("+")) n = node(Op::sign, kids(unary(false)), "+");
        else n = primary();
        n = postfix(std::move(n));
        return filters ? filter_chain(std::move(n)) : std::move(n);
    }
    NodePtr primary() {
        const Token& t = now();
        at++;
        switch (t.type) {
            case Token::name: return named(t.text);
            case Token::string: {
                std::string text = t.text;
                while (now().type == Token::string) text += all[at++].text;
                return constant(text);
            }
            case Token::integer: {
                int64_t value = 0;
                if (std::from_chars(t.text.data(), t.text.data() + t.text.size(), value).ec != std::errc())
                    throw Error{"an integer beyond 64 bits", t.line};
                return constant(value);
            }
            case Token::real: return constant(strtod(t.text.c_str(), nullptr));
            default: break;
        }
        at--;
        if (take("(")) {
            NodePtr n = tuple(true, true);
            expect(")");
            return n;
        }
        if (take("[")) return sequence("]", Op::list);
        if (take("{")) return sequence("}", Op::dict);
        expected("an expression");
    }
    NodePtr named(const std::string& word) {
        if (word == "true" || word == "True") return constant(true);
        if (word == "false" || word == "False") return constant(false);
        if (word == "none" || word == "None") return constant(Value(Kind::none));
        return node(Op::name, {}, word);
    }
    NodePtr sequence(const char* end, Op op) {
        std::vector<NodePtr> parts;
        while (!take(end)) {
            if (!parts.empty()) expect(",");
            if (take(end)) break;
            parts.push_back(expression());
            if (op != Op::dict) continue;
            expect(":");
            parts.push_back(expression());
        }
        return node(op, std::move(parts));
    }
    NodePtr postfix(NodePtr n) {
        for (;;) {
            if (take(".")) {
                if (now().type == Token::integer) n = node(Op::subscript, kids(std::move(n), primary()));
                else n = node(Op::attribute, kids(std::move(n)), name());
            } else if (take("[")) n = subscript(std::move(n));
            else if (sees("(")) n = call(std::move(n));
            else return n;
        }
    }
    NodePtr subscript(NodePtr n) {
        NodePtr parts[3];
        int colons = 0;
        while (!take("]")) {
            if (colons < 2 && take(":")) colons++;
            else if (parts[colons]) expected("]");
            else parts[colons] = expression();
        }
        if (colons)
            return node(Op::slice, kids(std::move(n), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])));
        if (!parts[0]) at--, expected("an index");
        return node(Op::subscript, kids(std::move(n), std::move(parts[0])));
    }
    NodePtr call(NodePtr callee) {
        NodePtr n = node(Op::call, kids(std::move(callee)));
        arguments(*n);
        return n;
    }
    void arguments(Node& n) {
        if (!take("(")) return;
        for (bool first = true; !take(")"); first = false) {
            if (!first) expect(",");
            if (take(")")) return;
            if (sees("*") || sees("**")) expected("an argument (* and ** are not supported)");
            const bool named = now().type == Token::name && sees("=", 1);
            if (named) n.names.push_back(name()), at++;
            else if (!n.names.empty()) expected("a named argument");
            add(n, expression());
        }
    }
    NodePtr filter_chain(NodePtr n) {
        for (;;) {
            if (take("|")) {
                n = node(Op::filter, kids(std::move(n)), name());
                arguments(*n);
            } else if (take("is")) n = test(std::move(n));
            else if (sees("(")) n = call(std::move(n));
            else return n;
        }
    }
    NodePtr test(NodePtr n) {
        const bool negated = take("not");
        n = node(Op::test, kids(std::move(n)), name());
        const Token& t = now();
        const bool literal = t.type == Token::string || t.type == Token::integer || t.type == Token::real ||
                             (t.type == Token::name && t.text != "else" && t.text != "or" && t.text != "and");
        if (sees("(")) arguments(*n);
        else if (literal || sees("[") || sees("{")) {
            if (sees("is")) expected("no second 'is'");
            add(*n, postfix(primary()));
        }
        return negated ? node(Op::logical_not, kids(std::move(n))) : std::move(n);
    }
};
}    // namespace

std::unique_ptr<Node> parse(const std::string& text) { return Parser(text).run(); }
}    // namespace jinja
