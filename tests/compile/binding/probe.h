#pragma once

#include "core/abi.h"

#define PROBE_EXPORT __attribute__((visibility("default")))

extern "C" int32_t probe_record(char const* symbol, void const* args, gemmill_launch const* how);
extern "C" int64_t probe_workspace;

#define PROBE(symbol)                                                                                                        \
  extern "C" int32_t symbol(void const* args, gemmill_launch const* how) { return probe_record(#symbol, args, how); }
#define PROBE_WORKSPACE(symbol) \
  extern "C" int64_t symbol##_workspace(void const*, gemmill_launch const*) { return probe_workspace; }
