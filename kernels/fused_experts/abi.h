// Host code: the arguments of fused experts' kernels.
#pragma once

#include "core/abi.h"

extern "C" {

// out[t] = sum over a token's experts of weight W2 (activation(gate) up), gate and up being rows of W13 x[t]. Strides in elements.
// Of packed weights, blocks of codes and scales (docs/formats.md), strides of experts are in bytes, and scales are bases of rows.
struct gemmill_fused_experts_args {
  void const* x;    // [tokens, hidden]
  void const* w13;  // [weights, 2 inner, hidden]
  void const* w2;   // [weights, hidden, inner]
  void* out;        // [tokens, hidden]
  float const* w13_scales;   // of each expert one value, or of each row, or of blocks; null of operands of 16 bits
  float const* w2_scales;
  void const* w13_bias;      // [weights, 2 inner] in x's type, or null
  void const* w2_bias;       // [weights, hidden]
  int32_t const* topk_ids;   // [tokens, topk], each of id_words words of 32 bits, of which the lowest counts
  float const* topk_weights;  // [tokens, topk]
  int32_t const* expert_map;  // which weights are an expert's, -1 for none; null where expert e has weights e
  void* workspace;            // null: that of the launch
  int64_t ldx, ldout, ld_ids, ld_weights;
  int64_t w13_stride_row, w13_stride_expert, w2_stride_row, w2_stride_expert;
  // Of scales: from an expert to the next; from a row, or a block of rows, to the next; from a block along K to the next.
  int64_t w13_scale_stride_expert, w13_scale_stride_row, w13_scale_stride_k;
  int64_t w2_scale_stride_expert, w2_scale_stride_row, w2_scale_stride_k;
  int32_t tokens, hidden, inner, topk;
  int32_t experts, weights;
  int32_t id_words;
  int32_t gate_row, up_row, row_step;  // rows of W13: gate of result h is gate_row + h * row_step
  int32_t weight_on_input, adds;
  int32_t activation;  // silu, gelu, gelu_tanh, swiglu
  int32_t endless_waits;  // whether waits for other CTAs may last for ever
  float alpha, limit, beta;
};

}  // extern "C"
