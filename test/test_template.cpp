// test_template.cpp - chat templates as in jinja2 (dev/golden_templates.py); errors; hostile ones.
#include <nlohmann/json.hpp>

#include "infer/jinja/chat_template.h"
#include "test.h"

#include <zlib.h>

#include <ctime>

namespace {
typedef nlohmann::ordered_json json;
constexpr int64_t NOW = 1700000000;    // 2023-11-14 22:13:20 UTC

std::string folder() {
    const char* other = getenv("FLATGPT_TEMPLATES");
    return other ? other : "test/golden/templates";
}
json golden(const std::string& name) {
    const json j = json::parse(read_file(folder() + "/" + name), nullptr, false);
    REQUIRE_MESSAGE(!j.is_discarded(), folder() << "/" << name);
    return j;
}
Result<std::string> render(const std::string& text, const json& context = json::object()) {
    return TRY(ChatTemplate::parse(text)).render(context, NOW);
}
// The rendered text, or the error's message without "chat template: ".
std::string shown(const std::string& text, const json& context = json::object()) {
    const Result<std::string> r = render(text, context);
    if (!r.ok()) CHECK(r.status.code == Exit::input);
    return r.ok() ? r.value : r.status.message.substr(strlen("chat template: "));
}
struct Utc {    // strftime_now writes local time
    Utc() {
        setenv("TZ", "UTC", 1);
        tzset();
    }
    ~Utc() {
        unsetenv("TZ");
        tzset();
    }
};
}    // namespace

TEST_CASE("template: real templates and conversations, as jinja2 renders them") {
    Utc utc;
    const json conversations = golden("conversations.json"), expected = golden("expected.json");
    int total = 0, differ = 0;
    for (auto& [name, texts] : expected.items()) {
        const Result<ChatTemplate> t = ChatTemplate::parse(read_file(folder() + "/" + name));
        for (auto& [conversation, context] : conversations.items()) {
            total++;
            const json& text = texts[conversation];
            const Result<std::string> r = t.ok() ? t.value.render(context, NOW) : Result<std::string>(t.status);
            bool same = r.ok() != text.is_null();
            if (same && text.is_string()) same = r.value == text.get<std::string>();
            if (same && text.is_number())
                same = text == crc32(0, reinterpret_cast<const Bytef*>(r.value.data()), uInt(r.value.size()));
            differ += !same;
            if (!same) MESSAGE(name << ", " << conversation << ": " << (r.ok() ? r.value : r.status.message));
        }
    }
    CHECK(total >= 28 * 35);
    CHECK(differ == 0);
}

TEST_CASE("template: Python's and Jinja's rules, each by a small template") {
    Utc utc;
    json context = golden("conversations.json")["turns"];
    context["d"] = json::parse(R"({"b": 2, "a": 1})");
    const json snippets = golden("snippets.json");
    CHECK(snippets.size() >= 485);
    for (auto& one : snippets) {
        const std::string text = one[0].get<std::string>();
        const Result<std::string> r = render(text, context);
        INFO(text << "\n-> " << (r.ok() ? r.value : r.status.message));
        if (one[1].is_null()) CHECK_FALSE(r.ok());
        else CHECK((r.ok() && r.value == one[1].get<std::string>()));
    }
}

TEST_CASE("template: errors say the line and what to expect") {
    CHECK(shown("a\n{{ 1 +\n\n nope.x }}") == "line 4: 'nope' is undefined");
    CHECK(shown("\n\n{{ raise_exception('Roles must alternate.') }}") == "line 3: Roles must alternate.");
    CHECK(shown("\n{% if x %}\n\n") == "line 3: expected {% endif %}, found the end");
    CHECK(shown("{% for x in y %}{% endif %}") == "line 1: tag 'endif' is unknown");
    CHECK(shown("\n{% include 'x' %}") == "line 2: tag 'include': a chat template may read no files");
    CHECK(shown("{{ open('x') }}") == "line 1: 'open' is undefined");
    CHECK(shown("{{ x|\nshout }}", {{"x", 1}}) == "line 1: there is no filter 'shout'");
    CHECK(shown("{{ x is big }}") == "line 1: there is no test 'big'");
    CHECK(shown("{{ x.append(1) }}", {{"x", json::array()}}) ==
          "line 1: append: a template may change namespaces only");
    CHECK(shown("{% macro m(a) %}{% endmacro %}\n{{ m(b=1) }}") == "line 2: macro m has no parameter b");
    CHECK(shown("{% macro m(a) %}\n{{ a.b.c }}{% endmacro %}\n{{ m({}) }}") == "line 2: 'b' is undefined");
    CHECK(shown("{% set a = 1 %}\n{% set b.c = a %}") == "line 2: cannot assign attribute 'c': not a namespace");
    // Objects that Python prints as an address have no text; missing methods and filters are named.
    CHECK(shown("{{ 'a'.title }}") == "line 1: a function has no text: call it with ()");
    CHECK(shown("{{ 'b' ~ ['a'.title] }}") == "line 1: a function has no text: call it with ()");
    CHECK(shown("{{ ['a']|map('upper') }}") == "line 1: a generator has no text: add |list or |join");
    CHECK(shown("{% for x in [1] %}{{ loop }}{% endfor %}") ==
          "line 1: a loop has no text: expected loop.index or another of its attributes");
    CHECK(shown("{{ 'a'.encode('utf-8') }}") == "line 1: there is no method 'encode'");
    CHECK(shown("{{ [1].title() }}") == "line 1: there is no method 'title'");
    CHECK(shown("{{ {}.popitem() }}") == "line 1: popitem: a template may change namespaces only");
    CHECK(shown("{{ 'a'|urlize }}") == "line 1: there is no filter 'urlize'");
    CHECK(shown("{{ 'a'.ljust(99999999999) }}") == "line 1: the template does too much: more than its limit of steps");
    CHECK(shown("{{ 'a'.zfill(99999999999) }}") == "line 1: the template does too much: more than its limit of steps");
    CHECK(shown("{{ '\t'.expandtabs(99999999999) }}") ==
          "line 1: the template does too much: more than its limit of steps");
    CHECK(shown("{{ [1]|slice(99999999999) }}") == "line 1: the template does too much: more than its limit of steps");
    CHECK(shown("{{ [1]|batch(99999999999, 0) }}") ==
          "line 1: the template does too much: more than its limit of steps");
    CHECK(shown("{{ 9223372036854775807 + 1 }}") == "line 1: an integer beyond 64 bits");
    CHECK(shown("{{ 9223372036854775808 }}") == "line 1: an integer beyond 64 bits");
    CHECK(shown("{{ 1", {}) == "line 1: expected }}, found the end");
    CHECK(shown("{{ 'a }}") == "line 1: a string that does not end");
    CHECK(shown("{# a") == "line 1: expected #} for this {#, found the end");
    CHECK(shown("", json::array()) == "expected an object as its context");
    CHECK(shown("", {{"x", 1ull << 63}}) == "an integer beyond 64 bits: 9223372036854775808");
}

TEST_CASE("template: errors say what an operator or a built-in expects") {
    CHECK(shown("{{ nope < 1 }}") == "line 1: 'nope' is undefined");
    CHECK(shown("{{ nope[:1] }}") == "line 1: 'nope' is undefined");
    CHECK(shown("{{ nope + 1 }}") == "line 1: 'nope' is undefined");
    CHECK(shown("{{ -'a' }}") == "line 1: a sign before 'str'");
    CHECK(shown("{{ [1]['a':] }}") == "line 1: slice indices must be integers");
    CHECK(shown("{{ 'a'[::0] }}") == "line 1: slice step cannot be zero");
    CHECK(shown("{{ 1(2) }}") == "line 1: 'int' object is not callable");
    CHECK(shown("{{ 'a'.upper(1) }}") == "line 1: upper takes at most 0 arguments");
    CHECK(shown("{{ 'a'|trim(x=1) }}") == "line 1: trim has no parameter x");
    CHECK(shown("{{ 'a'|replace('b') }}") == "line 1: replace needs new");
    CHECK(shown("{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}") == "line 1: macro m got two values for a");
    CHECK(shown("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}") == "line 1: macro m takes at most 1 arguments");
    CHECK(shown("{{ [1]|selectattr }}") == "line 1: expected the name of an attribute");
    CHECK(shown("{{ [1]|select(1) }}") == "line 1: the name of a test must be a string");
    CHECK(shown("{{ [1]|map }}") == "line 1: map needs a filter");
    CHECK(shown("{{ [1]|map(1) }}") == "line 1: map needs a filter");
    CHECK(shown("{{ '1'|int(0, 1) }}") == "line 1: a base must be 0 or from 2 to 36");
    CHECK(shown("{{ '1'|int(0, 37) }}") == "line 1: a base must be 0 or from 2 to 36");
    CHECK(shown("{{ '0x1p3'|int(5) }}{{ '0x1p3'|float(6) }}") == "56");
    CHECK(shown("{{ 2.5|round(301) }}") == "line 1: round: expected a precision from 0 to 300");
    CHECK(shown("{{ 2.5|round(-1) }}") == "line 1: round: expected a precision from 0 to 300");
    CHECK(shown("{{ [1]|batch(0) }}") == "line 1: expected a count of at least 1");
    CHECK(shown("{{ 1.5 is even }}") == "line 1: expected an integer, found float");
    CHECK(shown("{{ 'a\nb'|indent(99999999)|length }}") == "1003");
    CHECK(shown("{{ 'a'|abs }}") == "line 1: abs needs a number, found str");
    CHECK(shown("{{ [1]|dictsort }}") == "line 1: dictsort needs a mapping, found list");
    CHECK(shown("{{ {}|dictsort(by='x') }}") == "line 1: dictsort sorts by 'key' or 'value'");
    CHECK(shown("{{ range(1, 2, 0) }}") == "line 1: range() arg 3 must not be zero");
    CHECK(shown("{{ range(1.5) }}") == "line 1: expected an integer as argument 1, found float");
    CHECK(shown("{{ 'a'.find(1) }}") == "line 1: expected a string as argument 1, found int");
    CHECK(shown("{{ [1].index(2) }}") == "line 1: the value is not in the list");
    CHECK(shown("{% for i in [1] %}{{ loop.cycle() }}{% endfor %}") == "line 1: cycle needs values");
    CHECK(shown("{{ dict([1]) }}") == "line 1: dict: expected named arguments only");
    CHECK(shown("{{ namespace(1) }}") == "line 1: expected named arguments only");
    CHECK(shown("{% set ns = namespace() %}{% set ns._a = 1 %}") ==
          "line 1: a namespace's attribute may not begin with _: _a");
    CHECK(shown("{{ strftime_now('" + std::string(1100, 'a') + "') }}") ==
          "line 1: strftime_now: more than 1023 characters, or none");
    CHECK(shown("{{ '{0!r}'.format(1) }}") == "line 1: format: expected a plain field: {0!r}");
    CHECK(shown("{{ 'a}'.format() }}") == "line 1: a } in a format that closes nothing");
    CHECK(shown("{{ 'a'.split('') }}") == "line 1: empty separator");
    CHECK(shown("{{ 'a'.startswith(1) }}") == "line 1: expected a string or a tuple of them, found int");
    CHECK(shown("{{ 'a'.center(5, 'xx') }}") == "line 1: the fill character must be exactly one character long");
    CHECK(shown("{{ -9223372036854775807 - 2 }}") == "line 1: an integer beyond 64 bits");
    CHECK(shown("{{ (-9223372036854775807 - 1) // -1 }}") == "line 1: an integer beyond 64 bits");
    CHECK(shown("{{ 3 ** 41 }}") == "line 1: an integer beyond 64 bits");
    CHECK(shown("{{ 1 // 0 }}") == "line 1: division by zero");
    CHECK(shown("{{ 1.5 % 0 }}") == "line 1: division by zero");
    const std::string deep = "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}";
    CHECK(shown(deep + "{{ f(100) }}") == "");
    CHECK(shown(deep + "{{ f(400) }}") == "line 1: calls nested too deep");
    const std::string loop = "{% for i in range(n) %}{{ 'aaaaaaaaaa' * 10000 }}{% endfor %}";
    CHECK(shown(loop, {{"n", 160}}).size() == 16'000'000);
    CHECK(shown(loop, {{"n", 170}}) == "line 1: more than 16777216 bytes of output");
    CHECK(shown("{{ 5|length }}") == "line 1: object of type 'int' has no len()");
    CHECK(shown("{{ 'a'|truncate(2) }}") ==
          "line 1: truncate: expected a length of at least that of its end, and a leeway from 0");
    CHECK(shown("{{ [1]|tojson(indent=101) }}") == "line 1: expected an indent of at most 100");
    CHECK(shown("{{ [1]|tojson(separators=[',']) }}") == "line 1: separators must be two strings");
    CHECK(shown("{{ {(1,): 2}|tojson }}") == "line 1: keys of JSON must be strings, not tuple");
}

TEST_CASE("template: errors of large integers, views and what this interpreter lacks") {
    for (const char* large : {"'99999999999999999999'", "'-9223372036854775809'", "'1_000'|replace('0', '9999999')"})
        CHECK(contains(shown(std::string("{{ ") + large + "|int(3) }}"), "line 1: int: an integer beyond 64 bits: "));
    for (const char* large : {"1e20", "'1e30'", "-1e19", "9223372036854775808.0"})
        CHECK(contains(shown(std::string("{{ ") + large + "|int(3) }}"), "line 1: int: an integer beyond 64 bits: "));
    CHECK(shown("{{ 1e400|int(3) }}") == "line 1: int: cannot convert an infinite number to an integer");
    CHECK(shown("{{ (-8) ** 0.5 }}") == "line 1: -8 ** 0.5 is no real number");
    CHECK(shown("{{ 10.0 ** 400 }}") == "line 1: 10 ** 400 is too large");
    CHECK(shown("{{ d.keys()[:1] }}", {{"d", {{"a", 1}}}}) == "line 1: 'dict_keys' object cannot be sliced");
    CHECK(shown("{{ d.items()|tojson }}", {{"d", {{"a", 1}}}}) == "line 1: dict_items has no JSON");
    CHECK(shown("{{ {{}.keys(): 1} }}") == "line 1: unhashable type: 'dict_keys'");
    CHECK(shown("{{ {}.keys().mapping }}") == "line 1: a view's mapping is not supported");
    CHECK(shown("{{ {}.keys() - [1] }}") == "line 1: unsupported operands for -: 'dict_keys' and 'list'");
    CHECK(shown("{{ range(3) + [1] }}") == "line 1: unsupported operands for +: 'range' and 'list'");
    CHECK(shown("{{ self }}") == "line 1: self: a chat template has no blocks");
    CHECK(shown("{% macro m() %}{% endmacro %}{{ m.caller }}") == "line 1: a macro's caller is not supported");
    CHECK(shown("{{ '\\N{BULLET}' }}") ==
          "line 1: \\N{...}: names of characters are not known; write the character, or \\u and its number");
}

TEST_CASE("template: the time is local; bytes that are not UTF-8 come through") {
    const time_t now = NOW;
    char text[40];
    strftime(text, sizeof text, "%d %b %Y %H", localtime(&now));
    CHECK(shown("{{ strftime_now('%d %b %Y %H') }}") == text);
    Utc utc;
    CHECK(shown("{{ strftime_now('%d %b %Y') }}{{ strftime_now('') }}") == "14 Nov 2023");
    CHECK(shown("{{ x[::-1] }}{{ x|length }}\xFF{{ '\xC3'|upper }}", {{"x", "a\xE9\xC3\xA9"}}) ==
          "\xC3\xA9\xE9"
          "a3\xFF\xC3");
}

TEST_CASE("template: none runs for ever, uses up memory or the stack") {
    auto times = [](const std::string& text, int n) {
        std::string all;
        while (n-- > 0) all += text;
        return all;
    };
    const std::string twice = "{% set ns.a = ns.a + ns.a %}", start = "{% set ns = namespace(a='xxxxxxxx', l=[1]) %}";
    const std::string tree = "{% for i in range(70) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";
    const std::string hostile[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        times("{% for a in range(9) %}", 150) + times("{% endfor %}", 150),
        "{% for a in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 10 }}{% endfor %}",
        "{{ range(100001) }}",
        "{{ range(9223372036854775807) }}",
        "{{ 'x' * 9000000000 }}",
        "{{ 'x' * 9000000 * 100 }}",
        "{{ ''.center(4611686018427387904, '\U0001F600') }}",
        "{{ [1] * 9000000000 }}",
        "{{ [[1]]|tojson(indent=99999999) }}",
        "{{ (['x' * 100000] * 100000)|join }}",
        "{{ ('x\n' * 100000)|indent('y' * 100000) }}",
        start + times(twice, 60),
        start + "{% for i in range(99999) %}" + twice + "{% endfor %}",
        start + tree + "{{ ns.l }}",
        start + tree + "{{ ns.l|tojson }}",
        start + tree + "{{ ns.l == ns.l + [] }}",
        start + tree + "{{ ns.l < ns.l + [1] }}",
        start + "{% for i in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}",
        start + "{% set ns.l = [ns] %}{{ ns }}",
        // Chains of 99,999 values, each of which holds the one before, as a method's object or a
        // loop's item: recursion along them would overflow the stack.
        start + "{% for i in range(99999) %}{% set ns.l = [ns.l].index %}{% endfor %}",
        start + "{% for i in range(99999) %}{% set ns.l = {1: ns.l}.get %}{% endfor %}",
        start + "{% for i in range(99999) %}{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}",
        start + "{% for i in range(99999) %}{% set ns.l = namespace(l=ns.l) %}{% endfor %}",
        start + "{% for i in range(22) %}" + twice + "{% endfor %}{{ ns.a.replace('', ns.a) }}",
        start + "{% for i in range(20) %}" + twice + "{% endfor %}{{ ([ns.a] * 9999)|join }}",
        start + "{% for i in range(20) %}" + twice + "{% endfor %}{% for i in range(99999) %}{{ 'z' in ns.a }}" +
            "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}" + times("{% call f() %}", 300) + times("{% endcall %}", 300),
        "{{ " + times("(", 100000),
        "{{ " + times("[", 100000),
        "{{ " + times("-", 100000) + "1 }}",
        "{{ " + times("not ", 100000) + "1 }}",
        "{{ 1" + times(" + 1", 100000) + " }}",
        "{{ x" + times(".x", 100000) + " }}",
        "{{ x" + times("|list", 100000) + " }}",
        times("{% if 1 %}", 100000),
        times("{% set x %}", 100000),
        times("{% filter trim %}", 199) + "{{ 1" + times(" + 1", 199) + " }}" + times("{% endfilter %}", 199),
        "{% set " + times("(", 100000),
        "{{ 1" + times(" if 1 else 1", 100000) + " }}",
    };
    for (auto& text : hostile) {
        const clock_t begin = clock();
        const Result<std::string> r = render(text);
        INFO(text.substr(0, 150));
        CHECK_FALSE(r.ok());
        CHECK(double(clock() - begin) / CLOCKS_PER_SEC < 10);    // CPU time, whatever the load
    }
    // Cycles of macros, frames and namespaces must be freed; AddressSanitizer would report a leak.
    CHECK(shown("{% set ns = namespace(f=none) %}{% macro f() %}{% macro g() %}{% set ns.f = f %}{% endmacro %}"
                "{{ g() }}{% endmacro %}{{ f() }}{% set ns.me = [ns] %}done") == "done");
    // A chain of 50,000 macros, each holding the frame of the one before, must be freed, too.
    CHECK(shown("{% set ns = namespace(f=0) %}{% macro m(g) %}{% macro h() %}{{ g }}{% endmacro %}{% set ns.f = h %}"
                "{% endmacro %}{% for i in range(50000) %}{{ m(ns.f) }}{% endfor %}done") == "done");
    CHECK(shown("{{ 1" + times(" ~ 1", 1000) + " }}").size() == 1001);    // long, but harmless
}
