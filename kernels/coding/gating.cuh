// Gate and up of one result, by an activation that is a run-time argument. Products and sums do not contract.
#pragma once

#include "coding/activation.cuh"

namespace gemmill::quant {

// In the order in which calls count them (gemmill.vocab.activation).
enum GateActivation { kSiluGate, kGeluGate, kGeluTanhGate, kSwigluGate };

struct Gating {
  int32_t activation;
  float alpha, limit, beta;  // of swiglu

  __device__ float operator()(float gate, float up) const {
    switch (activation) {
      case kSiluGate:
        return __fmul_rn(with_sigmoid(gate, gate), up);
      case kGeluGate:
        return __fmul_rn(gelu(gate, GeluErf::odd(gate)), up);
      case kGeluTanhGate:
        return __fmul_rn(gelu(gate, GeluTanh::odd(gate)), up);
      default:
        gate = gate > limit ? limit : gate;  // NaN stays
        up = up > limit ? limit : up < -limit ? -limit : up;
        return __fmul_rn(with_sigmoid(gate, __fmul_rn(gate, alpha)), __fadd_rn(up, beta));
    }
  }

 private:
  // gate / (1 + exp(-x))
  static __device__ float with_sigmoid(float gate, float x) { return __fmul_rn(gate, reciprocal_of(__fadd_rn(1.0f, expf(-x)))); }
};

}  // namespace gemmill::quant
