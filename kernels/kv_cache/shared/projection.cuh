// S of turboquant_prod: independent standard normal entries of a seed, the same on every machine.
//
// Entry k is that of generator/gemmill/families/kv_cache/seeds.py: SplitMix64, the inverse of the normal distribution function in
// f64 (Wichura, algorithm AS241, 1988), rounded to multiples of 2^-20.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/shared/rotation.cuh"

namespace gemmill::kv_cache {

constexpr int kProjectionThreads = 256;

// S for kernels: rows and columns in turn, so that lanes read neighbouring words either way.
struct Projection {
  float const* rows;     // [d][d]: S
  float const* columns;  // [d][d]: its transpose
};

// With the signs of turboquant_prod the share of a residual's norm that a sign stands for: sqrt(pi / 2) / d.
template <int kHeadDim>
inline constexpr float kSignShare = 1.2533141373155003f / kHeadDim;

template <int kTerms>
__device__ double polynomial(double const (&coefficients)[kTerms], double x) {
  double sum = coefficients[0];
  for (int i = 1; i < kTerms; ++i) sum = sum * x + coefficients[i];
  return sum;
}

__device__ inline double normal_of(double p) {
  constexpr double kNear[2][8] = {
      {2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987, 13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665},
      {5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597, 5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0}};
  constexpr double kMiddle[2][8] = {
      {0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684, 3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835},
      {1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008, 0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0}};
  constexpr double kFar[2][8] = {
      {2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124, 0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103},
      {2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133, 0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0}};
  double const q = p - 0.5;
  if (fabs(q) <= 0.425) {
    double const r = 0.180625 - q * q;
    return polynomial(kNear[0], r) * q / polynomial(kNear[1], r);
  }
  double const r = sqrt(-log(q <= 0.0 ? p : 1.0 - p));
  double const x = r <= 5.0 ? polynomial(kMiddle[0], r - 1.6) / polynomial(kMiddle[1], r - 1.6)
                            : polynomial(kFar[0], r - 5.0) / polynomial(kFar[1], r - 5.0);
  return q < 0.0 ? -x : x;
}

struct ProjectionParams {
  float* to;  // rows, then columns
  uint64_t stream;
  int size;
};

// Entry k of the stream.
__device__ inline float entry_of(uint64_t stream, int k) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  uint64_t word = stream + static_cast<uint64_t>(k + 1) * kGolden;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  word ^= word >> 31;
  double const p = (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
  return static_cast<float>(rint(normal_of(p) * 0x1p20) * 0x1p-20);
}

template <class Variant>
__global__ void __launch_bounds__(kProjectionThreads) make_projection(__grid_constant__ ProjectionParams const params) {
  wait_for_predecessor();
  int const k = static_cast<int>(blockIdx.x * kProjectionThreads + threadIdx.x), count = params.size * params.size;
  if (k >= count) return;
  float const entry = entry_of(params.stream, k);
  params.to[k] = entry;
  params.to[count + k % params.size * params.size + k / params.size] = entry;
}

// Host code.
template <int kHeadDim>
constexpr int64_t kProjectionBytes = 2LL * kHeadDim * kHeadDim * static_cast<int64_t>(sizeof(float));

inline uint64_t projection_stream(int64_t seed) { return split_mix(static_cast<uint64_t>(seed) + 3 * 0x9E3779B97F4A7C15u); }

template <class Variant, int kHeadDim>
int32_t launch_projection(int64_t seed, void* memory, gemmill_launch const& how, Projection& projection) {
  float* const to = static_cast<float*>(memory);
  projection = {to, to + kHeadDim * kHeadDim};
  ProjectionParams params{to, projection_stream(seed), kHeadDim};
  LaunchShape const shape{dim3(kHeadDim * kHeadDim / kProjectionThreads), dim3(kProjectionThreads), dim3(1), 0};
  void* parameters[] = {&params};
  return launch_kernel<make_projection<Variant>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
