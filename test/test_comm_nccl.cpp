// test_comm_nccl.cpp - NCCL as far as it works without a GPU. The rest: test/cuda/test_nccl.cpp.
#include "comm/comm.h"
#include "test.h"

#include <thread>

#define NEED_NCCL()                               \
    const Result<std::string> id = nccl_new_id(); \
    if (!id.ok()) SKIP(id.status.message.c_str())

TEST_CASE("nccl: the library is found, and each of its ids is another") {
    NEED_NCCL();
    CHECK(id.value.size() == 128);
    CHECK(id.value != std::string(128, '\0'));
    const Result<std::string> other = nccl_new_id();
    REQUIRE(other.ok());
    CHECK(other.value != id.value);
}

TEST_CASE("nccl: rank 0's id comes to all ranks over the watch") {
    NEED_NCCL();
    constexpr int RANKS = 3;
    Result<Listener> listener = Listener::open("127.0.0.1", 0);
    REQUIRE(listener.ok());
    const int port = listener.value.port;
    std::string came[RANKS], failed[RANKS];
    std::vector<std::thread> threads;
    for (int r = 0; r < RANKS; r++)
        threads.emplace_back([&, r] {
            RankInfo info;
            info.rank = r, info.ranks = RANKS;
            auto coordinator = Coordinator::rendezvous(info, r == 0 ? listener.value : Listener(), "127.0.0.1", port,
                                                       job_token("test_comm_nccl"), 20);
            failed[r] = coordinator.status.message;
            if (coordinator.ok()) came[r] = coordinator.value->broadcast(r == 0 ? id.value : "");
        });
    for (std::thread& t : threads) t.join();
    for (int r = 0; r < RANKS; r++) {
        CHECK(failed[r] == "");
        CHECK(came[r] == id.value);
    }
}
