// test_generation_config.cpp - generation_config.json: its fields, and the flags whose defaults it
// sets.
#include "files/json.h"
#include "infer/model_defaults.h"
#include "test.h"

using Strings = std::vector<std::string>;

TEST_CASE("generation_config.json: what it may hold, and what it may not") {
    const auto c = generation_config_parse(
        R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": null, "typical_p": 0.2,
            "repetition_penalty": 1.1,
            "max_new_tokens": 99, "stop_strings": ["a", "b"],
            "transformers_version": "4"})",
        "f");
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    CHECK(generation_config_parse(generation_config_json(c.value, {}, {5, 6}), "f").value == c.value);
    CHECK(generation_config_json({}, {}, {}) == "");
    CHECK(c.value.stop == Strings{"a", "b"});
    Sampling s;
    int tokens = 200;
    CHECK(apply_generation_defaults(c.value, {"--top-k", "--prompt"}, &s, &tokens) ==
          " --temperature 0.6, --top-p 0.9, --typical-p 0.2, --repetition-penalty 1.1, --tokens 99");
    CHECK(s.temperature == 0.6);
    CHECK(s.top_p == 0.9);
    CHECK(s.top_k == Sampling().top_k);
    CHECK(s.min_p == Sampling().min_p);
    CHECK(s.penalties.repetition == 1.1);
    CHECK(s.typical_p == 0.2);
    CHECK(tokens == 99);
    CHECK(generation_config_parse(R"({"stop_strings": "x"})", "f").value.stop == Strings{"x"});

    auto temperature = [](const char* json) {
        Sampling s;
        int tokens = 1;
        (void)apply_generation_defaults(generation_config_parse(json, "f").value, {}, &s, &tokens);
        return s.temperature;
    };
    CHECK(temperature("{}") == Sampling().temperature);
    CHECK(temperature(R"({"do_sample": true})") == 1);    // transformers' default
    CHECK(temperature(R"({"do_sample": false, "temperature": 0.6})") == 0);
    CHECK(temperature(R"({"temperature": 0.5})") == 0.5);

    for (const char* bad :
         {"", "[]", R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_k": 1.5})", R"({"top_p": 2})",
          R"({"do_sample": 1})", R"({"stop_strings": [1]})", R"({"max_new_tokens": 0})"}) {
        const auto r = generation_config_parse(bad, "f");
        CHECK_MESSAGE(r.status.code == Exit::input, bad);
        CHECK(contains(r.status.message, "f"));
    }
}

TEST_CASE("generation_config.json: each number has its range, and each field goes out as it came in") {
    const struct {
        const char *key, *least, *most;
        std::vector<const char*> beyond;
    } rows[] = {{"temperature", "0", "100", {"-0.001", "100.1"}},
                {"top_p", "0", "1", {"-0.1", "1.01"}},
                {"min_p", "0", "1", {"-0.1", "1.01"}},
                {"typical_p", "0", "1", {"-0.1", "1.01"}},
                {"repetition_penalty", "0.01", "100", {"0", "0.009", "100.1", "-1"}},
                {"top_k", "0", "2147483647", {"-1", "2147483648", "0.5"}},
                {"max_new_tokens", "1", "2147483647", {"0", "-1", "2147483648"}}};
    auto parsed = [](const std::string& key, const std::string& value) {
        return generation_config_parse("{\"" + key + "\": " + value + "}", "f");
    };
    for (const auto& row : rows) {
        CAPTURE(std::string(row.key));
        for (const char* good : {row.least, row.most}) {
            CAPTURE(std::string(good));
            const auto c = parsed(row.key, good);
            REQUIRE_MESSAGE(c.ok(), c.status.message);
            const auto out = nlohmann::json::parse(generation_config_json(c.value, {}, {}));
            CHECK(out.size() == 1);
            CHECK(out[row.key] == nlohmann::json::parse(good));
        }
        CHECK(generation_config_json(parsed(row.key, "null").value, {}, {}) == "");
        for (const char* bad : row.beyond) CHECK_MESSAGE(contains(parsed(row.key, bad).status.message, row.key), bad);
        CHECK_FALSE(parsed(row.key, "\"1\"").ok());
    }
    for (const char* text : {"true", "false"})
        CHECK(nlohmann::json::parse(generation_config_json(parsed("do_sample", text).value, {}, {})) ==
              nlohmann::json{{"do_sample", nlohmann::json::parse(text)}});
    CHECK(contains(parsed("do_sample", "\"yes\"").status.message, "do_sample: expected true or false"));
    CHECK(contains(parsed("stop_strings", "[\"a\", null]").status.message, "stop_strings: expected strings"));
    CHECK(contains(generation_config_parse("[]", "f").status.message, "expected a JSON object"));
    auto nested = [&](int n) { return parsed("x", std::string(size_t(n), '[') + std::string(size_t(n), ']')).ok(); };
    CHECK(nested(31));
    CHECK_FALSE(nested(32));
    Vocabulary v;
    v.bos = 0;
    v.pad = 3;
    CHECK(nlohmann::json::parse(generation_config_json({}, v, {7})) ==
          nlohmann::json{{"bos_token_id", 0}, {"pad_token_id", 3}, {"eos_token_id", 7}});
}

TEST_CASE("generation_config.json: each field is the default of one flag, where that is not given") {
    typedef double (*Field)(const Sampling&, int tokens);
    const struct {
        const char *json, *flag;
        Field of;
        double value;
    } rows[] = {
        {R"({"temperature": 0.25})", "--temperature", [](const Sampling& s, int) { return s.temperature; }, 0.25},
        {R"({"do_sample": false})", "--temperature", [](const Sampling& s, int) { return s.temperature; }, 0},
        {R"({"top_k": 7})", "--top-k", [](const Sampling& s, int) { return double(s.top_k); }, 7},
        {R"({"top_p": 0.75})", "--top-p", [](const Sampling& s, int) { return s.top_p; }, 0.75},
        {R"({"min_p": 0.125})", "--min-p", [](const Sampling& s, int) { return s.min_p; }, 0.125},
        {R"({"typical_p": 0.5})", "--typical-p", [](const Sampling& s, int) { return s.typical_p; }, 0.5},
        {R"({"repetition_penalty": 1.5})", "--repetition-penalty",
         [](const Sampling& s, int) { return s.penalties.repetition; }, 1.5},
        {R"({"max_new_tokens": 5})", "--tokens", [](const Sampling&, int tokens) { return double(tokens); }, 5}};
    for (const auto& row : rows) {
        CAPTURE(std::string(row.json));
        const auto config = generation_config_parse(row.json, "f");
        REQUIRE(config.ok());
        Sampling s;
        int tokens = 200;
        CHECK(apply_generation_defaults(config.value, {row.flag}, &s, &tokens) == "");
        for (const auto& other : rows) CHECK(other.of(s, tokens) == other.of(Sampling(), 200));
        CHECK(apply_generation_defaults(config.value, {}, &s, &tokens) == formatted(" %s %g", row.flag, row.value));
        for (const auto& other : rows)
            if (strcmp(other.flag, row.flag)) CHECK(other.of(s, tokens) == other.of(Sampling(), 200));
        CHECK(row.of(s, tokens) == row.value);
        CHECK(apply_generation_defaults(config.value, {}, &s, &tokens) == "");    // value already set: nothing to note
    }
}
