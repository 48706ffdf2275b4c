// The operations on a row before its coding, in f32. Products and sums do not contract, so that the same expression in torch on the same
// device has the same bits.
#pragma once

#include <type_traits>

#include "coding/code.cuh"
#include "coding/memory.cuh"

namespace gemmill::quant {

struct Identity {
  static constexpr bool kGated = false;
};

// gate * (1 / (1 + exp(-gate)))
struct Silu {
  static constexpr bool kGated = true;
  // From here up, 1 + exp(-gate) has a normal reciprocal.
  static constexpr float kSmallestPlainGate = -87.0f;
  static __device__ __forceinline__ float plain(float gate) {
    return __fmul_rn(gate, reciprocal_of_normal(__fadd_rn(1.0f, expf(-gate))));
  }
  static __device__ __noinline__ float any(float gate) {
    return __fmul_rn(gate, __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-gate))));
  }
};

// 0.5 gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))). Contracted, the sum and its product round once, as in torch.
struct GeluTanh {
  static constexpr bool kGated = true;
  static __device__ __forceinline__ float odd(float gate, bool contracted = false) {
    float const cube = __fmul_rn(__fmul_rn(gate, gate), gate);
    float const inner = contracted ? __fmaf_rn(0.044715f, cube, gate) : __fadd_rn(gate, __fmul_rn(0.044715f, cube));
    return tanhf(__fmul_rn(0.7978845608028654f, inner));
  }
};

// 0.5 gate (1 + erf(gate / sqrt(2)))
struct GeluErf {
  static constexpr bool kGated = true;
  static __device__ __forceinline__ float odd(float gate, bool = false) { return erff(__fmul_rn(gate, 0.7071067811865476f)); }
};

__device__ __forceinline__ float gelu(float gate, float odd) { return __fmul_rn(__fmul_rn(0.5f, gate), __fadd_rn(1.0f, odd)); }

// A GELU without a product.
template <class Odd>
struct Only {
  using Gelu = Odd;
  static constexpr bool kGated = false;
  static __device__ __forceinline__ float of(float x, bool contracted) { return gelu(x, Gelu::odd(x, contracted)); }
};

// Replaces each gate by silu(gate) * up as vLLM's silu_and_mul_quant: a quotient, and both it and the product rounded to In.
template <class In, int kElements>
__device__ __forceinline__ void gate_and_multiply_as_vllm(float (&gate)[kElements], float const (&up)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) gate[i] = __fdiv_rn(gate[i], __fadd_rn(1.0f, expf(-gate[i])));
  unpack<In>(pack<In>(gate), gate);
#pragma unroll
  for (int i = 0; i < kElements; ++i) gate[i] = __fmul_rn(gate[i], up[i]);
  unpack<In>(pack<In>(gate), gate);
}

// The same as vLLM's kernels of block-scaled formats: exponential and quotient are the device's approximate ones, and the product is
// rounded to In.
template <class In, int kElements>
__device__ __forceinline__ void gate_and_multiply_approximately(float (&gate)[kElements], float const (&up)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    float const silu = __fdividef(gate[i], __fadd_rn(1.0f, __expf(-gate[i])));
    gate[i] = static_cast<float>(static_cast<In>(__fmul_rn(silu, up[i])));
  }
}

// Replaces each gate by activation(gate) * up.
template <class Activation, int kElements>
__device__ __forceinline__ void gate_and_multiply(float (&gate)[kElements], float const (&up)[kElements]) {
  if constexpr (std::is_same_v<Activation, Silu>) {
    float smallest = gate[0];
#pragma unroll
    for (int i = 1; i < kElements; ++i) smallest = fminf(smallest, gate[i]);
    if (smallest < Silu::kSmallestPlainGate) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < kElements; ++i) gate[i] = __fmul_rn(Silu::any(gate[i]), up[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) gate[i] = __fmul_rn(Silu::plain(gate[i]), up[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) gate[i] = __fmul_rn(gelu(gate[i], Activation::odd(gate[i])), up[i]);
  }
}

}  // namespace gemmill::quant
