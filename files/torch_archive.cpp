// torch_archive.cpp - see torch_archive.h.
//
// A pickle is a program for a machine with a stack and a memo. Only instructions that build plain
// values are executed. Calls of PyTorch's constructors of state dictionaries return their value;
// any other call returns an opaque value. Values lie in one array and refer to each other by index,
// so that nested values need no recursion.
#include "torch_archive.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace {
constexpr size_t MAX_VALUES = 1 << 18, MAX_RANK = 8;
constexpr char OLD[] = "\x80\x02\x8a\x0a";    // files of PyTorch before 1.6: no zip
struct Span {
    uint64_t at, bytes;
};

Status inside(const File& file, uint64_t at, uint64_t bytes) {
    if (at <= uint64_t(file.bytes()) && bytes <= uint64_t(file.bytes()) - at) return {};
    return fail(Exit::input,
                "%s: a zip, as torch.save writes them, but %llu bytes at %llu lie outside: it is damaged "
                "or cut short",
                file.path().c_str(), (unsigned long long)bytes, (unsigned long long)at);
}
Result<std::string> piece(const File& file, uint64_t at, uint64_t bytes) {
    TRY(inside(file, at, bytes));
    std::string text(size_t(bytes), '\0');
    TRY(file.read(int64_t(at), text.data(), int64_t(bytes)));
    return text;
}
// Reads little-endian numbers and texts in sequence. A read beyond the end, and every later one,
// returns 0 or an empty text.
struct Bytes {
    std::string_view data;
    size_t at = 0;
    bool ok = true;
    std::string_view take(uint64_t n) {
        ok &= at <= data.size() && n <= data.size() - at;
        return ok ? data.substr((at += size_t(n)) - size_t(n), size_t(n)) : std::string_view();
    }
    uint64_t number(size_t n) {
        uint64_t x = 0;
        const std::string_view raw = take(n);
        if (!raw.empty()) memcpy(&x, raw.data(), raw.size());
        return x;
    }
    std::string line() {
        const std::string text(take(std::min(data.find('\n', at), data.size()) - at));
        return take(1), text;
    }
};

// Returns each entry's byte range by name. The file's last bytes locate the zip's directory.
Result<std::map<std::string, Span>> zip_entries(const File& file) {
    const uint64_t size = uint64_t(file.bytes()), tail = std::min<uint64_t>(size, 65557);
    const std::string end = TRY(piece(file, size - tail, tail));
    const size_t found = std::min(end.rfind("PK\5\6"), end.size());
    Bytes last{end, found + 10};
    uint64_t count = last.number(2), bytes = last.number(4), start = last.number(4);
    if (start == UINT32_MAX && found >= 20) {    // zip64
        const std::string wide = TRY(piece(file, Bytes{end, found - 12}.number(8), 56));
        Bytes b{wide, 32};
        count = b.number(8), bytes = b.number(8), start = b.number(8);
    }
    const std::string directory = TRY(piece(file, start, bytes));
    std::map<std::string, Span> entries;
    Bytes b{directory};
    for (uint64_t i = 0; i < count && b.ok; i++) {
        b.take(10);
        const bool packed = b.number(2) != 0;
        b.take(12);
        uint64_t length = b.number(4);
        const uint64_t name_bytes = b.number(2), extra_bytes = b.number(2), comment_bytes = b.number(2);
        b.take(8);
        uint64_t at = b.number(4);
        const std::string name(b.take(name_bytes));
        Bytes extra{b.take(extra_bytes)};
        b.take(comment_bytes);
        while (extra.at + 4 <= extra.data.size() && extra.ok) {
            const uint64_t id = extra.number(2);
            Bytes wide{extra.take(extra.number(2))};
            if (id != 1) continue;    // zip64: lengths and offset that need 64 bits
            if (length == UINT32_MAX) length = wide.number(8), wide.take(8);
            if (at == UINT32_MAX) at = wide.number(8);
        }
        if (packed) return fail(Exit::input, "%s: a zip with compressed entries", file.path().c_str());
        const std::string local = TRY(piece(file, at, 30));
        Bytes sizes{local, 26};
        const uint64_t begin = at + 30 + sizes.number(2) + sizes.number(2);
        TRY(inside(file, begin, length));
        entries[name] = {begin, length};
    }
    if (b.ok && !entries.empty()) return entries;
    return fail(Exit::input, "%s: a zip without a directory: it is damaged or cut short", file.path().c_str());
}

struct Value {
    enum Kind { plain, storage, tensor } kind = plain;
    int64_t number = 0;
    std::string label = {};    // a text, or a global's module and name
    // Indices of other values. A tuple or list has its items; a dictionary has keys and values in
    // turn; a storage has its type and key; a tensor has its storage, offset, shape and strides.
    std::vector<int> items = {};
};
struct Unpickler {
    std::vector<Value> values = {};
    std::vector<int> stack = {};
    std::vector<size_t> marks = {};
    std::map<uint64_t, int> memo = {};
    bool ok = true;

    void push(Value v) {
        stack.push_back(int(values.size()));
        values.push_back(std::move(v));
    }
    const Value& pop() {    // requires a non-empty stack; valid until the next push
        const int top = stack.back();
        return stack.pop_back(), values[size_t(top)];
    }
    std::vector<int> top(size_t n) {    // pops the newest n
        if (n > stack.size()) return ok = false, std::vector<int>();
        const std::vector<int> all(stack.end() - ptrdiff_t(n), stack.end());
        return stack.resize(stack.size() - n), all;
    }
    std::vector<int> since_mark() {
        if (marks.empty() || marks.back() > stack.size()) return ok = false, std::vector<int>();
        const std::vector<int> all = top(stack.size() - marks.back());
        return marks.pop_back(), all;
    }
    void extend(const std::vector<int>& more) {    // extends the list or dictionary on top
        if (stack.empty()) return void(ok = false);
        std::vector<int>& items = values[size_t(stack.back())].items;
        items.insert(items.end(), more.begin(), more.end());
    }
    void call() {
        if (stack.size() < 2) return void(ok = false);
        const std::vector<int>& all = pop().items;
        const Value& maker = pop();
        if (maker.label == "torch._utils _rebuild_tensor_v2" && all.size() >= 4)
            push({.kind = Value::tensor, .items = {all[0], all[1], all[2], all[3]}});
        else if (maker.label == "torch._utils _rebuild_parameter" && !all.empty()) stack.push_back(all[0]);
        else push({});    // OrderedDict: filled by later instructions
    }
    void load_storage() {    // ("storage", type, key, device, element count)
        if (stack.empty() || values[size_t(stack.back())].items.size() < 5) return void(ok = false);
        const std::vector<int>& id = pop().items;
        push({.kind = Value::storage, .items = {id[1], id[2]}});
    }
    bool step(uint8_t code, Bytes& b) {    // protocol 2 (torch.save); false: unsupported instruction
        switch (code) {
            case 0x80: return b.take(1), true;
            case '}':
            case ')':
            case ']':
            case 'N': return push({}), true;
            case '(': return marks.push_back(stack.size()), true;
            case 'G': return b.take(8), push({}), true;    // a float, unused by tensors
            case 0x88:
            case 0x89: return push({.number = code == 0x88}), true;
            case 'J': return push({.number = int32_t(b.number(4))}), true;
            case 'K':
            case 'M': return push({.number = int64_t(b.number(code == 'K' ? 1 : 2))}), true;
            case 0x8A: {
                const std::string_view raw = b.take(b.number(1));
                int64_t x = !raw.empty() && int8_t(raw.back()) < 0 ? -1 : 0;
                if (!raw.empty()) memcpy(&x, raw.data(), std::min<size_t>(raw.size(), 8));
                return push({.number = x}), true;
            }
            case 'X': return push({.label = std::string(b.take(b.number(4)))}), true;
            case 'c': {
                const std::string module = b.line(), name = b.line();
                return push({.label = module + " " + name}), true;
            }
            case 't': return push({.items = since_mark()}), true;
            case 0x85:
            case 0x86:
            case 0x87: return push({.items = top(code - 0x84u)}), true;
            case 'q':
            case 'r': return !stack.empty() && (memo[b.number(code == 'q' ? 1 : 4)] = stack.back(), true);
            case 'h':
            case 'j': {
                const auto found = memo.find(b.number(code == 'h' ? 1 : 4));
                return found != memo.end() && (stack.push_back(found->second), true);
            }
            case 'a': return extend(top(1)), true;
            case 's': return extend(top(2)), true;
            case 'e':
            case 'u': return extend(since_mark()), true;
            case 'R': return call(), true;
            case 'b': return top(1), true;    // drops an object's attributes
            case 'Q': return load_storage(), true;
            default: return false;
        }
    }
    bool run(Bytes& b) {    // leaves the built value on top
        for (;;) {
            const std::string_view code = b.take(1);
            const size_t most = std::max({values.size(), stack.size(), marks.size(), memo.size()});
            if (!b.ok || !ok || most > MAX_VALUES) return false;
            if (code[0] == '.') return !stack.empty();
            if (!step(uint8_t(code[0]), b)) return false;
        }
    }
};

struct Reader {
    const File& file;
    const std::map<std::string, Span>& entries;
    const std::vector<Value>& values;
    const std::string folder;    // folder inside the zip: "NAME/"

    const Value& at(int index) const { return values[size_t(index)]; }
    Status add(const std::string& name, const Value& t, std::vector<TensorEntry>* all) const {
        auto bad = [&](const char* what) {
            return fail(Exit::input, "%s: tensor \"%s\": %s", file.path().c_str(), name.c_str(), what);
        };
        if (at(t.items[0]).kind != Value::storage) return bad("expected numbers in a storage");
        TensorEntry e = {.name = name, .type = TensorType::f32, .shape = {}, .begin = 0, .end = 0};
        const std::string& type = at(at(t.items[0]).items[0]).label;
        if (type == "torch BFloat16Storage") e.type = TensorType::bf16;
        else if (type == "torch HalfStorage") e.type = TensorType::f16;
        else if (type != "torch FloatStorage") return {};
        const std::vector<int>&sizes = at(t.items[2]).items, &strides = at(t.items[3]).items;
        if (sizes.size() > MAX_RANK || sizes.size() != strides.size()) return bad("expected a stride for each size");
        int64_t numbers = 1;
        for (size_t i = sizes.size(); i-- > 0;) {
            const int64_t size = at(sizes[i]).number;
            if (size != 1 && at(strides[i]).number != numbers) return bad("its numbers do not follow one another");
            if (size < 0 || !mul_checked(numbers, size, &numbers)) return bad("expected sizes from 0 on");
            e.shape.insert(e.shape.begin(), size);
        }
        const auto data = entries.find(folder + "data/" + at(at(t.items[0]).items[1]).label);
        const int64_t element = SafetensorsFile::element_bytes(e.type), first = at(t.items[1]).number;
        const int64_t held = data == entries.end() ? -1 : int64_t(data->second.bytes) / element;
        if (first < 0 || first > held || numbers > held - first) return bad("its storage is missing or too short");
        e.begin = int64_t(data->second.at) + first * element, e.end = e.begin + numbers * element;
        return all->push_back(std::move(e)), Status{};
    }
};
}    // namespace

bool is_torch_archive(const File& file) {
    char magic[4];
    return file.bytes() > 30 && file.read(0, magic, 4).ok() && (!memcmp(magic, "PK\3\4", 4) || !memcmp(magic, OLD, 4));
}

Result<std::vector<TensorEntry>> torch_entries(const File& file) {
    if (TRY(piece(file, 0, 4)) == OLD)
        return fail(Exit::input,
                    "%s: PyTorch before 1.6 wrote this file; write it again:\n  python3 -c \"import "
                    "torch; p = '%s'; torch.save(torch.load(p, map_location='cpu', weights_only=True), p)\"",
                    file.path().c_str(), file.path().c_str());
    const std::map<std::string, Span> entries = TRY(zip_entries(file));
    auto pickle = std::find_if(entries.begin(), entries.end(), [](auto& e) { return e.first.ends_with("/data.pkl"); });
    if (pickle == entries.end()) return fail(Exit::input, "%s: a zip without data.pkl", file.path().c_str());
    const std::string prefix = pickle->first.substr(0, pickle->first.size() - 8);
    if (const auto order = entries.find(prefix + "byteorder"); order != entries.end())
        if (const std::string found = TRY(piece(file, order->second.at, order->second.bytes)); found != "little")
            return fail(Exit::input, "%s: byteorder: expected little, found %s", file.path().c_str(), found.c_str());
    const std::string text = TRY(piece(file, pickle->second.at, pickle->second.bytes));
    Bytes b{text};
    Unpickler machine;
    if (!machine.run(b))
        return fail(Exit::input,
                    "%s: data.pkl, byte %zu: expected a dictionary of tensors, found something that only "
                    "PyTorch reads",
                    file.path().c_str(), b.at);
    const Reader reader = {file, entries, machine.values, prefix};
    const std::vector<int> items = machine.pop().items;
    std::vector<TensorEntry> all;
    std::set<std::string> names;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
        const Value &key = reader.at(items[i]), &value = reader.at(items[i + 1]);
        if (value.kind != Value::tensor) continue;
        if (!names.insert(key.label).second)
            return fail(Exit::input, "%s: a tensor's name occurs twice", file.path().c_str());
        TRY(reader.add(key.label, value, &all));
    }
    if (!all.empty()) return all;
    return fail(Exit::input, "%s: expected a dictionary of tensors, found none in it", file.path().c_str());
}
