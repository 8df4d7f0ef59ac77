// mpirun.h - a program as the ranks of an MPI job on this machine, for the tests.
//
//     NEED_MPIRUN();
//     ProcessResult r = run_process(mpirun(4, {binary, "train", ...}), mpirun_options());
#pragma once
#include <unistd.h>

#include "test.h"

// mpirun_options permits root, more ranks than cores and no binding by environment variables,
// because the flags for it differ between MPI implementations.
inline std::vector<std::string> mpirun(int n, std::vector<std::string> program) {
    program.insert(program.begin(), {"mpirun", "-n", std::to_string(n)});
    return program;
}
inline ProcessOptions mpirun_options(double timeout = 60, std::vector<std::string> environment = {}) {
    ProcessOptions o;
    o.timeout = timeout;
    o.environment = {"ASAN_OPTIONS=detect_leaks=0",    // leaks of Open MPI's unloaded plugins
                     "OMPI_ALLOW_RUN_AS_ROOT=1",
                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                     "OMP_NUM_THREADS=1",
                     "OMPI_MCA_rmaps_base_oversubscribe=1",
                     "OMPI_MCA_hwloc_base_binding_policy=none",
                     "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",    // Open MPI 5
                     "PRTE_MCA_hwloc_default_binding_policy=none"};
    o.environment.insert(o.environment.end(), environment.begin(), environment.end());
    return o;
}
inline bool has_mpirun() {
    const std::string path = getenv("PATH") ? getenv("PATH") : "";
    for (size_t at = 0; at <= path.size();) {
        const size_t end = std::min(path.find(':', at), path.size());
        if (access((path.substr(at, end - at) + "/mpirun").c_str(), X_OK) == 0) return true;
        at = end + 1;
    }
    return false;
}
#define NEED_MPIRUN() \
    if (!has_mpirun()) SKIP("no mpirun here: install openmpi-bin")
