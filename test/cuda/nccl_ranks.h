// nccl_ranks.h - ranks as processes: run_ranks() runs this binary once for each rank, all at the
// same time, in a test case whose title begins with "rank: ".
#pragma once
#include <algorithm>
#include <thread>

#include "comm/comm.h"
#include "cuda_test.h"

inline std::string hex(const std::string& bytes) {
    std::string text;
    for (const unsigned char c : bytes) text += "0123456789abcdef"[c / 16], text += "0123456789abcdef"[c % 16];
    return text;
}
inline std::string bytes_of(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += char(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

struct Ended {
    int status;
    std::string text;
};
inline std::vector<Ended> run_ranks(const char* name, int ranks, int come, const std::string& more = "") {
    const Result<std::string> id = nccl_new_id();
    REQUIRE_MESSAGE(id.ok(), id.status.message);
    std::vector<Ended> ended(static_cast<size_t>(come));
    std::vector<std::thread> threads;
    for (int r = 0; r < come; r++)
        threads.emplace_back([&, r] {
            const std::string device = std::to_string(cuda_emulated() ? 0 : r);
            const std::string environment = "FLATGPT_TEST_DEVICE=" + device + " TEST_RANK=" + std::to_string(r) +
                                            " TEST_RANKS=" + std::to_string(ranks) + " TEST_ID=" + hex(id.value) + more;
            Ended& e = ended[size_t(r)];
            e.text = run_again(environment, "--no-skip -tc='" + std::string(name) + "'", &e.status);
        });
    for (std::thread& t : threads) t.join();
    return ended;
}
inline int most_ranks() {
    std::string why;
    return cuda_emulated() ? 4 : std::min(4, int(cuda_devices(&why).size()));
}
inline int number(const char* name) {
    const char* text = getenv(name);
    return text ? atoi(text) : 0;
}
inline std::unique_ptr<Comm> join_others(Activity* activity = nullptr) {
    const char* id = getenv("TEST_ID");
    REQUIRE(id);
    auto comm = nccl_join(bytes_of(id), number("TEST_RANK"), number("TEST_RANKS"), activity, 60);
    REQUIRE_MESSAGE(comm.ok(), comm.status.message);
    return std::move(comm.value);
}
