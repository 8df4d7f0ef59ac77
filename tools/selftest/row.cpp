// row.cpp - prints a line of `flatgpt selftest`.
#include "files/json.h"
#include "selftest.h"

void Selftest::row(const char* op, const std::function<Check()>& run) {
    if (std::string(op).find(filter) == std::string::npos) return;
    const Check c = run();
    checks++;
    failed += !c.ok();
    if (json)
        fprintf(out, "{\"table\":%s,\"op\":%s,\"shape\":%s,\"error_over_limit\":%s,\"output\":%s,\"ok\":%s}\n",
                json_string(table).c_str(), json_string(c.op).c_str(), json_string(c.shape).c_str(),
                json_number(c.worst).c_str(), json_string(c.output).c_str(), c.ok() ? "true" : "false");
    else
        fprintf(out, "%-7s %8.3f  %-20s  %s (%s)\n", c.ok() ? "ok" : "FAILED", c.worst, c.op.c_str(), c.shape.c_str(),
                c.output.c_str());
    fflush(out);
}
