// test_tokenizer_options.cpp - the time that hostile texts take.
#include "base/console.h"
#include "data/normalize.h"
#include "test.h"

TEST_CASE("tokenizer options: runs of marks are put in order in linear time") {
    const std::vector<Normalization> nfc = {{Normalization::Kind::nfc, "", ""}};
    constexpr int MARKS = 200'000;
    std::string text = "a", want = "\xC3\xA1";
    for (int i = 0; i < MARKS; i++) text += "\xCC\x96\xCC\x81";    // below, above
    for (int i = 0; i < MARKS; i++) want += "\xCC\x96";
    for (int i = 1; i < MARKS; i++) want += "\xCC\x81";
    const double begin = now_seconds();
    CHECK(normalized(text, nfc, false) == want);
    CHECK(now_seconds() - begin < 20);    // pair by pair it took minutes
}
