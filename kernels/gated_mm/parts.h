// Host code: the arguments of a gated GEMM that runs its parts, a GEMM that stores the product and a kernel that activates it.
#pragma once

#include "gated_mm/abi.h"

extern "C" {

struct gemmill_gated_parts_args {
  gemmill_gated_mm_args call;
  void* product;  // bf16 [m, n], of every row of D
};

}  // extern "C"
