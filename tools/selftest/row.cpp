// row.cpp - prints a line of `flatgpt selftest`.
#include "base/table.h"
#include "files/json_write.h"
#include "selftest.h"

void Selftest::row(const char* op, const std::function<Check()>& run) {
    if (std::string(op).find(filter) == std::string::npos) return;
    const Check c = run();
    checks++;
    failed += !c.ok();
    const Json row = Json::object("table", table, "op", c.op, "shape", c.shape, "error_over_limit", c.worst, "output",
                                  c.output, "ok", c.ok());
    const std::vector<Cell> cells = {c.ok() ? "ok" : "FAILED", Cell(c.worst, "%.3f"), " " + c.op,
                                     " " + c.shape + " (" + c.output + ")"};
    fprintf(out, "%s\n", (json ? row.text() : table_line({-7, 8, -21, 0}, cells)).c_str());
    fflush(out);
}
