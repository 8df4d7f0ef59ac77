// cuda_on_cpu.h - all of the emulator's interface: what <cuda_runtime.h> is where there is no CUDA. See emulator.h.
#pragma once
#include "block.h"
#include "device_functions.h"
#include "emulator.h"
#include "launch.h"
#include "runtime.h"
#include "types.h"
