// Sums of one output tile that groups of threads and the CTAs of a cluster have of their parts of K. They go to shared memory,
// token by token; then the cluster's CTAs divide the tile among them and add up all parts in order of K. So a result does not
// depend on timing, and there is no workspace and no second kernel.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"

namespace gemmill::blockscaled {

// `rows` of weights, 64 for each group of 128 threads that shares a part of K; k_groups parts in a CTA.
template <int rows, int tile_m, int k_groups>
struct ClusterSums {
  static constexpr int kThreads = 2 * rows * k_groups;
  static constexpr int kPitch = rows + 4;  // of a token: rows of 16 bytes, banks apart
  static constexpr int kBytes = k_groups * tile_m * kPitch * 4;

  // `buffer` is of every group, and none reads it any more for another purpose once all are here.
  template <class TiledMma, class Sums>
  __device__ static void keep(float* buffer, Sums const& sums) {
    using namespace cute;
    int const group = threadIdx.x / 128;
    auto* own = buffer + group / (rows / 64) * tile_m * kPitch + group % (rows / 64) * 64;
    auto const layout = make_layout(Shape<_64, Int<tile_m>>{}, Stride<_1, Int<kPitch>>{});
    cutlass::arch::NamedBarrier::sync(kThreads, 1);
    copy(sums, TiledMma{}.get_thread_slice(threadIdx.x % 128).partition_C(make_tensor(make_smem_ptr(own), layout)));
  }

  // What the threads that keep no sums do meanwhile.
  __device__ static void stand_by(int splits) {
    if (splits == 1) return;
    cute::cluster_arrive_relaxed();
    cute::cluster_wait();
    cute::cluster_arrive_relaxed();
    cute::cluster_wait();
  }

  // Calls store(token, row, four sums of rows that follow one another) for this CTA's part of the tile, where `inside` holds.
  template <class Inside, class Store>
  __device__ static void add(float const* buffer, int rank, int splits, Inside inside, Store store) {
    if (splits > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    } else {
      cutlass::arch::NamedBarrier::sync(kThreads, 1);
    }
    constexpr int kQuads = tile_m * rows / 4;
    for (int i = rank * kThreads + threadIdx.x; i < kQuads; i += splits * kThreads) {
      int const m = i / (rows / 4), n = i % (rows / 4) * 4;
      if (!inside(m, n)) continue;
      float quad[4] = {};
      uint32_t const address = cute::cast_smem_ptr_to_uint(buffer + m * kPitch + n);
      for (int s = 0; s < splits; ++s) {
        CUTLASS_PRAGMA_UNROLL
        for (int g = 0; g < k_groups; ++g) add_remote(quad, address + g * tile_m * kPitch * 4, s);
      }
      store(m, n, quad);
    }
    if (splits > 1) {
      cute::cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cute::cluster_wait();
    }
  }

  __device__ static void add_remote(float (&quad)[4], uint32_t address, int rank) {
    uint32_t remote, bits[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"(remote)
                 : "memory");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) quad[i] += __uint_as_float(bits[i]);
  }
};

}  // namespace gemmill::blockscaled
