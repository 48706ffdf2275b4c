// The mean square of a row, with the same bits however threads, CTAs and turns divide the row.
//
// Threads sum non-negative f32 in f64, in an order of their own. The mean that is wanted is
//
//     mean = f32(f64(sum) / hidden + eps),   sum = the values by exponent, as integers, then 32 f64 by halves
//
// whose integers are exact, so that no order enters. Both sums are within (values + 64) / 2^53 of the row's, relatively. So where the
// threads' f64 lies further than twice that from a tie of f32, it rounds to the same f32, and no more work follows. A row of 512 chunks
// is nearer in 4 of 10^6 cases; then threads sum it again, as integers.
#pragma once

#include <cstdint>

#include "coding/reduce.cuh"

namespace gemmill::quant {

// Whether all f64 within (values + 64) units of `mean` round to one f32. `mean` is positive, or zero, infinite or NaN. The f64 below
// 2^-126, which have fewer bits as f32, are said to be unsettled; zero costs little there.
__host__ __device__ __forceinline__ bool is_settled(uint64_t mean_bits, uint32_t values) {
  constexpr int32_t kTie = 1 << 28;  // of the 29 bits that f32 lacks
  uint32_t const high = static_cast<uint32_t>(mean_bits >> 32);
  int32_t const beyond = static_cast<int32_t>(mean_bits & (2 * kTie - 1)) - kTie;
  uint32_t const from_tie = static_cast<uint32_t>(beyond < 0 ? -beyond : beyond);
  bool const is_finite = high < 0x7ff00000u, is_small = high < 0x38100000u;
  return !is_finite || (!is_small && from_tie > 2 * values + 128);
}

// A sum of up to 2^30 nonnegative finite f32, whatever their order, by all threads of a CTA or of a cluster's CTAs: all call each
// function. Values of one exponent but its last three bits share an integer.
template <bool kCluster>
struct SumInAnyOrder {
  static constexpr int kBins = 32;
  unsigned long long bins[kBins];

  __device__ __forceinline__ void clear() {
    if (threadIdx.x < kBins) bins[threadIdx.x] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ void add(float value) {
    uint32_t const bits = __float_as_uint(value);
    if (bits == 0) return;
    uint32_t const exponent = bits >> 23, fraction = bits & 0x7fffffu;
    uint32_t const place = exponent == 0 ? 1 : exponent;  // of a subnormal
    uint32_t const whole = exponent == 0 ? fraction : fraction | 0x800000u;
    atomicAdd(&bins[place / 8], static_cast<unsigned long long>(whole) << place % 8);
  }

  __device__ __forceinline__ double sum() const {
    __syncthreads();
    uint32_t const bin = threadIdx.x % kBins;
    unsigned long long total = bins[bin];
    if constexpr (kCluster) {
      cluster_arrive();
      cluster_wait();
      total = 0;
      for (uint32_t cta = 0; cta < cluster_size(); ++cta) total += of_cta(cta, bin);
      cluster_arrive();  // none leaves while another reads
      cluster_wait();
    }
    double const unit = __hiloint2double(static_cast<int>((1023 - 150 + 8 * bin) << 20), 0);  // 2^(8 bin - 150)
    return reduce_lanes<kBins>(static_cast<double>(total) * unit, Sum{});
  }

 private:
  __device__ __forceinline__ unsigned long long of_cta(uint32_t cta, uint32_t bin) const {
    uint32_t const local = static_cast<uint32_t>(__cvta_generic_to_shared(&bins[bin]));
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(cta));
    unsigned long long value;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(remote) : "memory");
    return value;
  }
};

}  // namespace gemmill::quant
