// The CUDA dialect of our kernel sources for AMD GPUs: qualifiers, types, built-in variables and functions
// under their CUDA names, implemented by clang builtins and the ROCm device libraries. The target-specific
// parts are in amdgcn.h and, for measurements on NVIDIA GPUs, in nvptx.h. Included before the first line of
// every hipified module. No HIP or C library header is needed.
#pragma once

#include "candle_contract.h"
#include "candle_hip/language.h"
#include "candle_hip/types.h"
#if defined(__AMDGCN__)
#include "candle_hip/amdgcn.h"
#else
#include "candle_hip/nvptx.h"
#endif
#include "candle_hip/launch.h"
#include "candle_hip/math.h"
#include "candle_hip/half.h"
#include "candle_hip/bfloat16.h"
#include "candle_hip/float8.h"
#include "candle_hip/packed.h"
#include "candle_hip/wave.h"
#include "candle_hip/atomic.h"
