// Partial sums of a tile of D^T, which groups of threads and CTAs of a cluster have of their parts of K.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/util.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/cutlass.h"

namespace gemmill::blockscaled {

__device__ inline void add_remote(float (&quad)[4], uint32_t address, int rank) {
  uint32_t remote, bits[4];
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(remote)
               : "memory");
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 4; ++i) quad[i] += __uint_as_float(bits[i]);
}

// `parts` parts of `tokens` rows of `rows` sums, `pitch` apart, lie in each CTA's shared memory. All CTAs of the cluster divide the
// tile among their `threads`, add up all parts in order of K, and hand on four sums at a time: those of a thread are of the
// same columns. Before it all sums of this CTA are written, and its threads have met if it is alone.
template <int parts, int tokens, int rows, int pitch, int threads, class Take>
__device__ void add_up(float const* buffer, int rank, int splits, Take const& take) {
  static_assert(threads % (rows / 4) == 0, "a thread has the same four columns of every row");
  constexpr int kQuads = tokens * rows / 4;
  for (int i = rank * threads + threadIdx.x; i < kQuads; i += splits * threads) {
    int const token = i / (rows / 4), row = i % (rows / 4) * 4;
    float quad[4] = {};
    uint32_t const address = cute::cast_smem_ptr_to_uint(buffer + token * pitch + row);
    for (int s = 0; s < splits; ++s) {
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < parts; ++part) add_remote(quad, address + part * tokens * pitch * 4, s);
    }
    take(token, row, quad);
  }
}

}  // namespace gemmill::blockscaled
