// Few rows against many weights with scales in groups along K, on Hopper: D^T = B^T A^T, by the mechanism of split_k_tile.cuh.
//
// At the end of every group its sum leaves the tensor core, is multiplied by the scales of token and weight, and is added in
// FP32.
//
// Scales travel with the weights: a warp of their own copies those of a stage one by one, by their strides, into the stage,
// so that they are as far ahead as the weights are. Read by the consumers one stage ahead, they held the main loop up: with
// the memory busy, a read takes longer than a stage (H200, 2026-11-20: 16 x 8192 x 8192 in 20.9 us).
#pragma once

#include <climits>
#include <cuda.h>

#include "gemmill/group_scales.cuh"
#include "gemmill/plain_epilogue.cuh"
#include "gemmill/split_k_tile.cuh"

namespace gemmill {

template <class Element_, class Accumulator, class Output_, int tile_n, int tile_m, int tile_k, int stages, bool takes_bias,
          class Scales_>
struct GroupSplitKMm : SplitKTile<Element_, Accumulator, float, Output_, tile_n, tile_m, tile_k, stages> {
  using Tile = SplitKTile<Element_, Accumulator, float, Output_, tile_n, tile_m, tile_k, stages>;
  using Element = Element_;
  using Output = Output_;
  using Scales = Scales_;
  using typename Tile::Barrier, typename Tile::EmptyBarrier, typename Tile::Slice, typename Tile::TiledMma;
  using Tile::kConsumers, Tile::kWeightBytes, Tile::kTokenBytes;

  static constexpr int kThreads = kConsumers + 64;  // and a warp for operands, one for scales
  static constexpr int kArrivals = 1 + 32;          // the announcement of operands' bytes, and every lane's scales
  static constexpr int kGroups = tile_k / Scales::kGroup;  // of one stage
  static constexpr int kSteps = Scales::kGroup / 32;       // WGMMA instructions of one group
  // Of one group along K.
  static constexpr int kWeightScales = Scales::kBlocks ? (tile_n + Scales::kGroup - 1) / Scales::kGroup : tile_n;

  static_assert(tile_k % Scales::kGroup == 0, "a K step is whole groups");

  struct Params {
    CUtensorMap weights;
    CUtensorMap tokens;
    Scales scales;
    Output const* bias;
    Output* d;
    int64_t ldd;
    int32_t m, n, k;
    bool constant_weights;
  };

  struct alignas(8) StageScales {
    float tokens[kGroups][tile_m];
    float weights[kGroups][kWeightScales];
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) Element weights[stages][kWeightBytes];
    alignas(1024) Element tokens[stages][kTokenBytes];
    alignas(16) StageScales scales[stages];
    Barrier full[stages];
    EmptyBarrier empty[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base

  static Params params_of(gemmill_scaled_mm_args const& x) {
    return {{}, {}, Scales(group_args(x)), static_cast<Output const*>(x.bias), static_cast<Output*>(x.d), x.ldd,
            x.m, x.n, x.k, x.constant_weights != 0};
  }

  __device__ static void run(Params const& params, char* shared) { Tile::template run<GroupSplitKMm>(params, shared); }

  __device__ static void produce_scales(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    Scales const& scales = params.scales;
    int const n_first = Scales::kBlocks ? n0 / Scales::kGroup : n0;
    int const n_count = Scales::kBlocks ? (scales.n + Scales::kGroup - 1) / Scales::kGroup : scales.n;
    int group = slice.first * kGroups;
    ScaleCopier<tile_m> tokens(scales.a + m0 * scales.a_stride_m + group * scales.a_stride_k, scales.a_stride_m,
                               scales.a_stride_k, scales.m - m0);
    ScaleCopier<kWeightScales> weights(scales.b + n_first * scales.b_stride_n + group * scales.b_stride_k, scales.b_stride_n,
                                       scales.b_stride_k, n_count - n_first);
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % stages;
      storage.empty[stage].wait(((t / stages) & 1) ^ 1);
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g, ++group) {
        tokens.next(storage.scales[stage].tokens[g], group < scales.groups);
        weights.next(storage.scales[stage].weights[g], group < scales.groups);
      }
      cutlass::arch::cpasync_barrier_arrive_noinc(reinterpret_cast<uint64_t*>(&storage.full[stage]));
    }
  }

  __device__ static Output finished(Params const& params, float sum, int, int n) {
    return with_bias<takes_bias>(sum, params.bias, n);
  }

  __device__ static auto consume(SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto weights = make_tensor(make_smem_ptr(&storage.weights[0][0]), typename Tile::WeightLayout{});
    auto tokens = make_tensor(make_smem_ptr(&storage.tokens[0][0]), typename Tile::TokenLayout{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_w = thread_mma.make_fragment_A(thread_mma.partition_A(weights));
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto partial = partition_fragment_C(mma, Shape<Int<tile_n>, Int<tile_m>>{});
    auto sums = make_fragment_like<float>(partial);
    clear(sums);

    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % stages;
      storage.full[stage].wait((t / stages) & 1);
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        mma.accumulate_ = GMMA::ScaleOut::Zero;
        warpgroup_fence_operand(partial);
        warpgroup_arrive();
        CUTLASS_PRAGMA_UNROLL
        for (int step = g * kSteps; step < (g + 1) * kSteps; ++step) {
          gemm(mma, fragment_w(_, _, step, stage), fragment_t(_, _, step, stage), partial);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        ThreadScales const scales(storage.scales[stage], g);
        warpgroup_wait<0>();
        warpgroup_fence_operand(partial);
        if (g == kGroups - 1) release(storage, t);
        promote(sums, partial, scales);
      }
    }
    return sums;
  }

  // The scales of one group that a thread's sums need (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32"): it has
  // rows lane / 4 and 8 more, columns lane % 4 * 2 and the next of every eight; rows are columns of B. The 64 columns of a
  // consumer group lie in one block, if B has blocks.
  struct ThreadScales {
    float2 tokens[tile_m / 8];
    float weights[2];

    __device__ ThreadScales(StageScales const& stage, int g) {
      int const lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < tile_m / 8; ++j) {
        tokens[j] = *reinterpret_cast<float2 const*>(&stage.tokens[g][j * 8 + lane % 4 * 2]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int h = 0; h < 2; ++h) {
        weights[h] = stage.weights[g][Scales::kBlocks ? threadIdx.x / 128 * 64 / Scales::kGroup : row + h * 8];
      }
    }
  };

  // Register 4 j + 2 h + e of a thread's sums: column e of the j-th eight, row h of two.
  template <class Sums, class Partial>
  __device__ static void promote(Sums& sums, Partial const& partial, ThreadScales const& scales) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(sums); ++i) {
      float const token = i % 2 == 0 ? scales.tokens[i / 4].x : scales.tokens[i / 4].y;
      sums(i) = fmaf(token * scales.weights[i / 2 % 2], static_cast<float>(partial(i)), sums(i));
    }
  }

  __device__ static void release(SharedStorage& storage, int t) {
    __syncwarp();  // all lanes have read their scales
    if (threadIdx.x % 32 == 0) storage.empty[t % stages].arrive();
  }
};

}  // namespace gemmill
