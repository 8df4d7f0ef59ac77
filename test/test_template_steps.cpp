// test_template_steps.cpp - each construct of a chat template counts its steps; one that did not
// would escape the limit on steps.
#include <nlohmann/json.hpp>

#include "infer/jinja/interpreter.h"
#include "infer/jinja/syntax.h"
#include "test.h"

namespace {
// Steps of a template whose variables grow with `size`: s and s2 are texts of 1600 * size bytes, l
// is a list, t a text of lines, n the number 1000 * size, d a dict, and few a list of 100 * size
// items.
int64_t steps(const std::string& text, int size) {
    nlohmann::ordered_json l, d, few;
    std::string t;
    const int n = 1000 * size;
    for (int i = 0; i < n; i++) l.push_back(i), t += "x\n";
    for (int i = 0; i < 100 * size; i++) d[std::to_string(1000 + i)] = i, few.push_back("a");
    const std::string s(size_t(1600 * size), 'a');
    jinja::Interpreter run(
        jinja::from_json({{"s", s}, {"s2", s}, {"t", t}, {"l", l}, {"d", d}, {"few", few}, {"n", n}}), 0);
    const std::unique_ptr<jinja::Node> root = jinja::parse(text);
    (void)run.render(*root);
    return jinja::MAX_STEPS - run.meter.steps;
}
}    // namespace

TEST_CASE("template steps: work twice as large costs what is more of it") {
    // more: today's additional steps at size 2; a tenth less for sorts, whose comparisons vary.
    const struct {
        const char* text;
        int64_t more;
    } rows[] = {{"{% for x in l %}{% endfor %}", 5000},
                {"{% for x in l %}{{ 1 }}{% endfor %}", 9000},
                {"{% for x in l if x %}{% endfor %}", 10000},
                {"{{ s }}", 100},
                {"{% for x in few %}{{ s }}{% endfor %}", 30800},
                {"{% set x %}{{ s }}{% endset %}", 100},
                {"{% set x = s ~ s %}", 200},
                {"{% set x = s + s %}", 200},
                {"{% set x = s * 2 %}", 200},
                {"{% set x = 's' * n %}", 126},
                {"{% set x = '' * n %}", 63},
                {"{% set x = [1] * n %}", 1000},
                {"{% set x = l + l %}", 2000},
                {"{% set x = l[:] %}", 1000},
                {"{% set x = s[:] %}", 6400},
                {"{% set x = s[0] %}", 100},
                {"{% for x in l %}{% macro f() %}{% endmacro %}{% endfor %}", 23000},
                {"{% macro f(a) %}{% endmacro %}{% for x in l %}{{ f(x) }}{% endfor %}", 15000},
                {"{% set x = l|length %}", 1000},
                {"{% set x = s|length %}", 100},
                {"{% set x = 1|default(l) %}", 1000},
                {"{% set x = 1|default(s) %}", 100},
                {"{% set x = none|default(l, true) %}", 5000},
                {"{% set x = range(n)[:] %}", 5000},
                {"{% set x = range(n) %}", 4000},
                {"{% set x = l|reverse %}", 5000},
                {"{% set x = l|sort %}", 10765},
                {"{% set x = few|sort %}", 1328},
                {"{% set x = few|unique|list %}", 300},
                {"{% set x = l|select %}", 6000},
                {"{% set x = l|select('odd') %}", 4000},
                {"{% set x = l|map('abs') %}", 6000},
                {"{% set x = few|map(attribute='x') %}", 600},
                {"{% set x = few|join(s) %}", 60206},
                {"{% set x = s.join(few) %}", 60206},
                {"{% set x = t|indent %}", 1500},
                {"{% set x = few|join('\\n')|indent(s) %}", 60336},
                {"{% set x = [1]|slice(n) %}", 5000},
                {"{% set x = l|batch(2) %}", 3000},
                {"{% set x = [1]|batch(n, 1) %}", 1000},
                {"{% set x = s.replace('', s2) %}", 962000},
                {"{% set x = s.replace('a', s2) %}", 961800},
                {"{% set x = t.split('\\n') %}", 8125},
                {"{% set x = t.splitlines() %}", 4125},
                {"{% set x = '{} {}'.format(s, s) %}", 600},
                {"{% set x = ''.center(n) %}", 189},
                {"{% set x = ''.ljust(n, 'é') %}", 313},
                {"{% set x = '1'.zfill(n) %}", 125},
                {"{% set x = '\\t'.expandtabs(n) %}", 126},
                {"{% set x = s|list %}", 12900},
                {"{% set x = d|list %}", 800},
                {"{% set x = d.items() %}", 600},
                {"{% set x = d.get('none') %}", 313},
                {"{% set x = d['none'] %}", 226},
                {"{% set x = 'z' in s %}", 100},
                {"{% set x = 'z' in l %}", 1000},
                {"{% set x = s == s2 %}", 100},
                {"{% set x = s < s2 %}", 100},
                {"{% set x = l == l %}", 1000},
                {"{% set x = l < l %}", 1000},
                {"{% set x = d == d %}", 16987},
                {"{% set x = s|string %}", 200},
                {"{% set x = l|string %}", 2750},
                {"{% set x = [s]|string %}", 300},
                {"{% set x = d|string %}", 662},
                {"{% set x = l|tojson %}", 2750},
                {"{% set x = l|tojson(indent=50) %}", 9063},
                {"{% set x = s|tojson %}", 300},
                {"{% set x = d|tojson %}", 462},
                {"{% set x = d|tojson(sort_keys=true) %}", 1294},
                {"{% set x = s|upper %}", 200}};
    for (const auto& row : rows) {
        CAPTURE(std::string(row.text));
        CHECK(steps(row.text, 2) - steps(row.text, 1) >= row.more);
    }
}

TEST_CASE("template steps: a name far out costs more; what refers to itself is freed") {
    auto nested = [](const std::string& name) {
        std::string all = "{{ " + name + " }}";
        for (int i = 0; i < 48; i++) all = "{% for a" + std::to_string(i) + " in [1] %}" + all + "{% endfor %}";
        return steps(all, 1);
    };
    CHECK(nested("n") - nested("a0") >= 2);

    const jinja::Value held(jinja::Kind::list, {});
    for (const char* text : {"{% macro f() %}{% endmacro %}", "{% set ns = namespace() %}{% set ns.me = [ns, x] %}",
                             "{% for i in [x] %}{% macro f() %}{{ i }}{% endmacro %}{% endfor %}"}) {
        CAPTURE(std::string(text));
        const std::unique_ptr<jinja::Node> root = jinja::parse(text);
        (void)jinja::Interpreter(jinja::Value(jinja::Kind::dict, {"x", held}), 0).render(*root);
        CHECK(held.object.use_count() == 1);
    }
}
