// test_writers.cpp - JSON, tables, CSV and SVG: hostile names stay names, numbers read back.
#include <zlib.h>

#include "base/table.h"
#include "files/json.h"
#include "files/json_write.h"
#include "files/picture.h"
#include "test.h"

TEST_CASE("writers: JSON keeps its order, integers are integers, and numbers read back to equal bits") {
    CHECK(Json::object("z", 1, "a", 3.0, "b", 0.1, "c", true, "d", nullptr, "e", size_t(7)).text() ==
          R"({"z":1,"a":3.0,"b":0.1,"c":true,"d":null,"e":7})");
    CHECK(Json::object("nan", NAN, "inf", -INFINITY).text() == R"({"nan":null,"inf":null})");
    for (double x : {1 / 3.0, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345680.0, 1e-5}) {
        const double again = nlohmann::json::parse(Json(x).text());
        CHECK(memcmp(&again, &x, sizeof x) == 0);
    }
    CHECK(Json(INT64_MIN).text() == "-9223372036854775808");
    CHECK(Json::object("list", Json::list(std::vector<int>{1, 2}), "none", Json::list(), "object", Json::object())
              .text(1) == "{\n \"list\": [\n  1,\n  2\n ],\n \"none\": [],\n \"object\": {}\n}");
}

TEST_CASE("writers: JSON quotes hostile keys and texts; a copy is a value of its own") {
    const std::string hostile = "\"},\\\n\x01\x7F</script>\xFF\xF0\x9F", text = Json::object(hostile, hostile).text();
    const auto read = json_parse(text, "text", 4);
    REQUIRE_MESSAGE(read.ok(), read.status.message);
    CHECK(read.value.size() == 1);
    const std::string back = read.value.begin().value();
    CHECK(back == "\"},\\\n\x01\x7F</script>\uFFFD\uFFFD");
    CHECK(json_string("a\"b") == R"("a\"b")");
    Json one = Json::object("a", 1);
    const Json before = one;
    one.set("b", before);
    CHECK(one.text() == R"({"a":1,"b":{"a":1}})");
    CHECK(before.text() == R"({"a":1})");
}

TEST_CASE("writers: CSV quotes every text and no number; a table's columns count what a terminal shows") {
    CHECK(csv_line({"a", 1, {0.5, "%.6g"}, {-NAN, "%.6g"}, {}, ""}) == "\"a\",1,0.5,nan,,\"\"\n");
    CHECK(csv_line({"x\",1\n\"", "=1+1"}) == "\"x\"\",1\n\"\"\",\"=1+1\"\n");
    CHECK(table_line({-4, 5, 0}, {"ab", 12, "c"}) == "ab      12 c");
    CHECK(table_line({-5, 5}, {"日本", {0.25, "%.1f"}}) == "日本    0.2");
    CHECK(table_line({-2, 2}, {"longer", 1234}) == "longer 1234");
}

namespace {
std::string big_endian_number(size_t n) { return {char(n >> 24), char(n >> 16), char(n >> 8), char(n)}; }
std::string from_base64(const std::string& text) {
    static const std::string DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    unsigned bits = 0, n = 0;
    for (char c : text.substr(0, text.find('='))) {
        bits = bits << 6 | unsigned(DIGITS.find(c));
        if (n += 6; n >= 8) out += char(bits >> (n -= 8));
    }
    return out;
}
}    // namespace

TEST_CASE("writers: an SVG's hostile names are text, and its cells a whole PNG file") {
    const std::string path = temporary_directory() + "/a.svg",
                      hostile = "<a href=\"x\">&\x01\xFF]]>\xEF\xBF\xBF</text>";
    const HeatmapPanel map{{1, 3, {0, NAN, 2}, {hostile}, {"a", "b", hostile}}, hostile};
    REQUIRE(write_heatmaps(path, {.title = hostile, .maps = {map}, .size = 6}).ok());
    const std::string svg = read_file(path);
    CHECK(contains(svg, ">&lt;a href=\"x\"&gt;&amp;\\x01\\xFF]]&gt;\uFFFD&lt;/text&gt;</text>\n"));
    for (size_t at = 0; (at = svg.find('<', at)) != svg.npos; at++) {
        const std::string name = svg.substr(at + 1, svg.find_first_of(" >", at) - at - 1);
        CHECK_MESSAGE(contains(" svg rect text /text image /svg ", " " + name + " "), name);
    }
    for (char c : svg) CHECK((c == '\n' || (c & 0xE0) != 0));    // XML: no other control characters

    const size_t begin = svg.find("base64,") + 7;
    const std::string png = from_base64(svg.substr(begin, svg.find('"', begin) - begin));
    std::string all;
    size_t at = 8;
    REQUIRE(png.starts_with("\x89PNG\r\n\x1a\n"));
    for (const char* type : {"IHDR", "PLTE", "IDAT", "IEND"}) {
        size_t length = 0;
        for (int i = 0; i < 4; i++) length = length << 8 | static_cast<unsigned char>(png.at(at++));
        const std::string chunk = png.substr(at, 4 + length);
        CHECK(chunk.starts_with(type));
        const auto sum = crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), uInt(chunk.size()));
        CHECK(png.substr(at + chunk.size(), 4) == big_endian_number(sum));
        at += chunk.size() + 4;
        if (type == std::string("IHDR")) CHECK(chunk.substr(4, 8) == big_endian_number(12) + big_endian_number(4));
        if (type == std::string("PLTE")) CHECK(chunk.substr(4 + 3 * 254) == "\xFD\xE7\x25\xD9\xD9\xD9");
        if (type != std::string("IDAT")) continue;
        uLongf bytes = 1000;
        all.resize(bytes);
        REQUIRE(uncompress(reinterpret_cast<Bytef*>(all.data()), &bytes,
                           reinterpret_cast<const Bytef*>(chunk.data() + 4), length) == Z_OK);
        all.resize(bytes);
    }
    CHECK(at == png.size());
    // A row of pixels: filter 0, then 4 pixels each of value 0, NaN (255) and 1 (254).
    const std::string row = std::string(5, '\0') + "\xFF\xFF\xFF\xFF\xFE\xFE\xFE\xFE";
    CHECK(all == row + row + row + row);
}
