// Host code: the arguments of the router's kernel.
#pragma once

#include "core/abi.h"

extern "C" {

// logits = x weight^T, and each token's topk largest of their softmax. Strides in elements.
struct gemmill_router_topk_args {
  void const* x;       // [tokens, hidden]
  void const* weight;  // [experts, hidden] of x's type
  void* logits;        // [tokens, experts] of x's type
  float* topk_weights; // [tokens, topk]
  int32_t* topk_ids;   // [tokens, topk]
  uint8_t const* is_padding;  // [tokens], not 0 where the experts of a row are -1; null for none
  int64_t ldx, ldw, ldl, ld_weights, ld_ids;
  int32_t tokens, hidden, experts, topk;
  int32_t renormalize;
};

}  // extern "C"
