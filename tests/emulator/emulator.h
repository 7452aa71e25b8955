// CUDA C++ on a CPU, for tests: kernels compiled by a C++ compiler with this header, with one fiber per CUDA thread.
// `src/device/cuda/kernels/compat.cuh` includes it if EMU is defined.
#pragma once

#include "device/async_copy.h"
#include "device/atomics.h"
#include "device/block.h"
#include "device/kernel_table.h"
#include "device/language.h"
#include "device/math.h"
#include "device/sixteen_bit.h"
#include "device/tensor_core.h"
#include "device/warp.h"
