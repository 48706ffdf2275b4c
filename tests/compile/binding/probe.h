#pragma once

#include "gemmill/abi.h"

#define PROBE_EXPORT __attribute__((visibility("default")))

extern "C" int32_t probe_record(char const* symbol, gemmill_scaled_mm_args const* args);

#define PROBE_KERNEL(symbol)                                                          \
  extern "C" int32_t symbol(gemmill_scaled_mm_args const* args, void*) {              \
    return probe_record(#symbol, args);                                               \
  }                                                                                   \
  extern "C" int64_t symbol##_workspace(gemmill_scaled_mm_args const*) { return 0; }
