#pragma once

#include "scaled_mm/abi.h"

#define PROBE_EXPORT __attribute__((visibility("default")))

extern "C" int32_t probe_record(char const* symbol, gemmill_scaled_mm_args const* args, void* stream);
extern "C" int64_t probe_workspace;

#define PROBE_SCALED_MM(symbol)                                                       \
  extern "C" int32_t symbol(gemmill_scaled_mm_args const* args, void* stream) {       \
    return probe_record(#symbol, args, stream);                                       \
  }                                                                                   \
  extern "C" int64_t symbol##_workspace(gemmill_scaled_mm_args const*) { return probe_workspace; }

extern "C" int32_t probe_record_quant(char const* symbol, void const* args);

#define PROBE_QUANT(symbol) \
  extern "C" int32_t symbol(void const* args) { return probe_record_quant(#symbol, args); }
