// Host code: a grouped GEMM of the CuTe DSL, launched without the DSL's host code.
#pragma once

#include "core/expert_host.h"
#include "grouped_mm/abi.h"

namespace gemmill {

// Enqueues one call. Returns 0 or an error code.
int32_t launch_gemm(gemmill_driver_kernel& kernel, ExpertFacts const& facts, gemmill_grouped_mm_args const& args, gemmill_launch const& how);

}  // namespace gemmill
