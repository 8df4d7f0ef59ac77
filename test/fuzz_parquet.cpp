// fuzz_parquet.cpp - libFuzzer: any bytes as a Parquet file.
#include "files/parquet/parquet.h"

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string path = memory_file(data, size);
    for (const char* column : {"text", "doc.body"}) {
        Result<ParquetTexts> texts = ParquetTexts::open(path, column, 1 << 20, 4 << 20);
        CHECK(texts.ok() || (texts.status.code == Exit::input && !texts.status.message.empty()));
        if (!texts.ok()) continue;
        // At most 4 MiB: a dictionary and runs may expand to very much.
        std::string_view text;
        Result<bool> more = true;
        for (size_t bytes = 0, n = 0; bytes < (4 << 20) && n < (1 << 18) && more.ok() && more.value; n++) {
            more = texts.value.next(&text);
            if (more.ok() && more.value) bytes += std::string(text).size();
        }
        CHECK(more.ok() || (more.status.code == Exit::input && !more.status.message.empty()));
    }
    return 0;
}
