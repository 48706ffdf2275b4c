// Host code: a layer whose two products are grouped GEMMs. The parameters of its own kernels, and where each part of its workspace lies.
#pragma once

#include <cstdint>

#include "fused_experts/abi.h"

extern "C" {

// Which of its own kernels a layer wants: the first product stands between the first two, the second between the last two.
enum { GEMMILL_PERMUTE, GEMMILL_ACTIVATE, GEMMILL_COMBINE };

struct gemmill_apart_experts_args {
  gemmill_fused_experts_args layer;
  int32_t stage;
};

}  // extern "C"

namespace gemmill::fused_moe {

// A test compares its bytes with gemmill.families.fused_experts.workspace: a caller reserves for any kernel.
struct ApartWorkspace {
  static constexpr int64_t kAligned = 128;

  int32_t* offsets;       // of weights: their first sorted row; behind the last the number of rows
  int32_t* order;         // of sorted rows: the pair, token * topk + slot
  int32_t* places;        // of pairs: the sorted row, -1 for none
  void* products;         // of sorted rows: gates and ups in x's type, [pairs, 2 inner]
  void* rows;             // of sorted rows of x: codes, or elements where there are none, [pairs, hidden]
  float* scales;          // of codes, [groups of hidden, pairs]; of rows [pairs]
  void* inner_rows;       // the same of activated rows, [pairs, inner]
  float* inner_scales;
  void* parts;            // of sorted rows: addends of the weighted sums, in x's type, [pairs, hidden]
  int64_t bytes;

  // `group` elements of a row share a scale; all of them where it is 0.
  ApartWorkspace(gemmill_fused_experts_args const& x, bool coded, int64_t group, char* base) {
    int64_t const pairs = int64_t(x.tokens) * x.topk, bytes_each = coded ? 1 : 2;
    auto const scales_of = [&](int64_t length) { return !coded ? 0 : pairs * 4 * (group != 0 ? (length + group - 1) / group : 1); };
    int64_t at = -reinterpret_cast<intptr_t>(base) & (kAligned - 1);  // a caller's may begin anywhere
    auto const take = [&](int64_t size) {
      char* const part = base + at;
      at += (size + kAligned - 1) / kAligned * kAligned;
      return static_cast<void*>(part);
    };
    offsets = static_cast<int32_t*>(take((int64_t(x.weights) + 1) * 4));
    order = static_cast<int32_t*>(take(pairs * 4));
    places = static_cast<int32_t*>(take(pairs * 4));
    products = take(pairs * x.inner * 4);
    rows = take(pairs * x.hidden * bytes_each);
    scales = static_cast<float*>(take(scales_of(x.hidden)));
    inner_rows = take(pairs * x.inner * bytes_each);
    inner_scales = static_cast<float*>(take(scales_of(x.inner)));
    parts = take(pairs * x.hidden * 2);
    bytes = at + kAligned;
  }
};

}  // namespace gemmill::fused_moe
