// Host code: a scaled GEMM of the CuTe DSL, launched without the DSL's host code.
#pragma once

#include "core/gemm_host.h"
#include "scaled_mm/abi.h"

namespace gemmill {

struct ScaledMmFacts {
  GemmFacts gemm;
  int32_t own_rows, own_columns, own_scalars;  // the inputs of a user's epilogue; -1 for gemmill's epilogues
};

// Enqueues one GEMM. Returns 0 or an error code.
int32_t launch_gemm(gemmill_driver_kernel& kernel, ScaledMmFacts const& facts, gemmill_scaled_mm_args const& args, gemmill_launch const& how);

}  // namespace gemmill
