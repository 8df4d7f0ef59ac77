// test_comm_mpi.cpp - collectives of ranks that mpirun starts (test/ranks); errors without MPI.
#include "comm/comm.h"

#include "base/console.h"
#include "mpirun.h"

#include <filesystem>

namespace {
#define NEED_PROGRAM(path) \
    if (!std::filesystem::exists(path)) SKIP("no " path ": make test builds it")
std::string program(const char* path) { return std::filesystem::absolute(path).string(); }
const char RANKS[] = "build/test_ranks";
}    // namespace

TEST_CASE("mpi: collectives between 1 to 4 ranks") {
    NEED_MPIRUN();
    NEED_PROGRAM("build/test_ranks");
    if (Status s = mpi_available(); !s.ok()) SKIP(s.message.c_str());
    for (int ranks : {1, 2, 3, 4}) {
        const ProcessResult r = run_process(mpirun(ranks, {program(RANKS), "mpi"}), mpirun_options(240));
        INFO(ranks << " ranks: " << r.err);
        CHECK(r.exit_code == 0);
        CHECK(contains(r.out, std::to_string(ranks) + " ranks: 0 failures"));
    }
}

TEST_CASE("mpi: collectives between 3 ranks over TCP") {
    NEED_MPIRUN();
    NEED_PROGRAM("build/test_ranks");
    if (Status s = mpi_available(); !s.ok()) SKIP(s.message.c_str());
    const ProcessResult r = run_process(mpirun(3, {program(RANKS), "mpi"}),
                                        mpirun_options(240, {"OMPI_MCA_btl=tcp,self", "OMPI_MCA_pml=ob1"}));
    INFO(r.err);
    CHECK(r.exit_code == 0);
}

TEST_CASE("mpi: a rank that is over the tests' limit fails by name") {
    NEED_MPIRUN();
    NEED_PROGRAM("build/test_ranks");
    const ProcessResult r =
        run_process(mpirun(2, {program(RANKS), "stuck"}), mpirun_options(60, {"FLATGPT_TEST_LIMIT=0.2"}));
    INFO(r.err);
    CHECK(r.exit_code > 0);
    CHECK(contains(r.err, " is over its limit of 0.2 s"));
}

TEST_CASE("mpi: a launcher that MPI knows nothing of, or another number of ranks, is exit 7 with advice") {
    NEED_PROGRAM("build/test_ranks");
    if (Status s = mpi_available(); !s.ok()) SKIP(s.message.c_str());
    ProcessOptions slurm;    // srun without PMI
    slurm.environment = {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=1", "SLURM_STEP_NODELIST=here",
                         "SLURM_JOB_ID=7", "OMPI_COMM_WORLD_SIZE",   "PMIX_RANK",       "PMI_RANK"};
    ProcessResult r = run_process({program(RANKS), "mpi"}, slurm);
    INFO(r.err);
    CHECK(r.exit_code == 7);
    CHECK(contains(r.err, "rank 1 of 4"));
    CHECK(contains(r.err, "srun --mpi=pmix"));
    if (!has_mpirun()) return;
    const std::string other = "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=1 ";
    r = run_process(mpirun(2, {"sh", "-c", other + program(RANKS) + " mpi"}), mpirun_options());
    INFO(r.err);
    CHECK(r.exit_code == 7);
    CHECK(contains(r.err, " of 3 ranks expected, but MPI says rank "));
}

TEST_CASE("mpi: a rank that is stopped before the ranks have met is waited for no longer than --timeout") {
    NEED_MPIRUN();
    if (Status s = mpi_available(); !s.ok()) SKIP(s.message.c_str());
    const double begin = now_seconds();
    const std::string stop = "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -STOP $$; exec ",
                      train = flatgpt_binary() + " train --data x --model d1 --out x --timeout 2 --device cpu";
    const ProcessResult r = run_process(mpirun(2, {"sh", "-c", stop + train}), mpirun_options());
    INFO(r.err);
    CHECK(!r.timed_out);
    CHECK(r.exit_code == 7);
    CHECK(contains(r.err, "rank 0: MPI has not brought all 2 ranks together within 2 s (--timeout)"));
    CHECK(now_seconds() - begin < 20);
}

TEST_CASE("nccl: collectives between ranks with emulated GPUs") {
    NEED_MPIRUN();
    NEED_PROGRAM("build/emu/test_ranks");
    for (int ranks : {2, 3}) {
        const ProcessResult r =
            run_process(mpirun(ranks, {program("build/emu/test_ranks"), "nccl"}), mpirun_options(240));
        INFO(ranks << " ranks: " << r.err);
        CHECK(r.exit_code == 0);
        CHECK(contains(r.out, std::to_string(ranks) + " ranks: 0 failures"));
    }
}
