#include "ops.h"

TEST_CASE("tables: complete; those that only other machines or builds have are named") {
    each_table(TablePart::products, [](auto& op) {
        const char* missing = missing_operation(op);
        CHECK_MESSAGE(!missing, missing);
    });
    if (const std::string absent = absent_tables(); !absent.empty()) SKIP(("not tested: " + absent).c_str());
}
