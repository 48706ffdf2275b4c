// Host code: a gated GEMM of the CuTe DSL, launched without the DSL's host code.
#pragma once

#include "core/expert_host.h"
#include "gated_mm/abi.h"

namespace gemmill {

struct GatedFacts {
  ExpertFacts expert;
  int32_t by_expert;  // whether rows belong to experts
  int32_t grouped;    // whether scales change along K
  int32_t result_group;  // columns of D that share a scale
};

// Enqueues one call. Returns 0 or an error code.
int32_t launch_gemm(gemmill_driver_kernel& kernel, GatedFacts const& facts, gemmill_gated_mm_args const& args, gemmill_launch const& how);

}  // namespace gemmill
