// cuda_on_cpu.h - the emulator's whole interface, in place of <cuda_runtime.h>. See emulator.h.
#pragma once
#include "block.h"
#include "device_functions.h"
#include "emulator.h"
#include "launch.h"
#include "runtime.h"
#include "types.h"
