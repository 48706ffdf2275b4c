// Some results of gates and ups together, by an activation that the compiler knows.
#pragma once

#include "coding/gating.cuh"

namespace gemmill::fused_moe {

// Results of gates and ups. Those with a sigmoid have no branch of their own where 1 + exp(-x) has a normal reciprocal.
template <int activation, int count>
__device__ __forceinline__ void gate_all(quant::Gating const& gating, float const (&gates)[count], float const (&ups)[count], float (&results)[count]) {
  if constexpr (activation == quant::kSiluGate || activation == quant::kSwigluGate) {
    constexpr bool kLimited = activation == quant::kSwigluGate;
    float held[count], smallest = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      held[i] = kLimited && gates[i] > gating.limit ? gating.limit : gates[i];  // NaN stays
      smallest = fminf(smallest, kLimited ? __fmul_rn(held[i], gating.alpha) : held[i]);
    }
    if (smallest >= quant::Silu::kSmallestPlainGate) [[likely]] {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        float const x = kLimited ? __fmul_rn(held[i], gating.alpha) : held[i];
        float const up = !kLimited ? ups[i] : __fadd_rn(ups[i] > gating.limit ? gating.limit : ups[i] < -gating.limit ? -gating.limit : ups[i], gating.beta);
        results[i] = __fmul_rn(__fmul_rn(held[i], quant::reciprocal_of_normal(__fadd_rn(1.0f, expf(-x)))), up);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) results[i] = gating(gates[i], ups[i]);
}

}  // namespace gemmill::fused_moe
