// Few rows against many weights: D[m, n] = epilogue(A[m, k] B[k, n]), by the mechanism of split_k_tile.cuh.
#pragma once

#include "gemmill/plain_epilogue.cuh"
#include "gemmill/split_k_tile.cuh"

namespace gemmill {

template <class Element_, class Accumulator, class Output_, int tile_n, int tile_m, int tile_k, int stages, bool promoted,
          EpilogueKind kind>
struct SplitKMm : SplitKTile<Element_, Accumulator, Accumulator, Output_, tile_n, tile_m, tile_k, stages> {
  using Tile = SplitKTile<Element_, Accumulator, Accumulator, Output_, tile_n, tile_m, tile_k, stages>;
  using Element = Element_;
  using Output = Output_;
  using typename Tile::Barrier, typename Tile::EmptyBarrier, typename Tile::Slice, typename Tile::TiledMma;
  using Tile::kConsumers, Tile::kWeightBytes, Tile::kTokenBytes;

  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kArrivals = 1;

  struct Params {
    CUtensorMap weights;
    CUtensorMap tokens;
    EpilogueVectors vectors;
    Output* d;
    int64_t ldd;
    int32_t m, n, k;
    bool constant_weights;
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) Element weights[stages][kWeightBytes];
    alignas(1024) Element tokens[stages][kTokenBytes];
    Barrier full[stages];
    EmptyBarrier empty[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base

  static Params params_of(gemmill_scaled_mm_args const& x) {
    return {{}, {}, EpilogueVectors(x), static_cast<Output*>(x.d), x.ldd, x.m, x.n, x.k, x.constant_weights != 0};
  }

  __device__ static void run(Params const& params, char* shared) { Tile::template run<SplitKMm>(params, shared); }

  __device__ static void produce_scales(Params const&, SharedStorage&, Slice const&, int, int) {}

  __device__ static Output finished(Params const& params, Accumulator sum, int m, int n) {
    return finish<kind, Output>(params.vectors, sum, m, n);
  }

  __device__ static auto consume(SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto weights = make_tensor(make_smem_ptr(&storage.weights[0][0]), typename Tile::WeightLayout{});
    auto tokens = make_tensor(make_smem_ptr(&storage.tokens[0][0]), typename Tile::TokenLayout{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_w = thread_mma.make_fragment_A(thread_mma.partition_A(weights));
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<Int<tile_n>, Int<tile_m>>{});
    auto partial = make_fragment_like(sums);
    clear(sums);
    constexpr int kDepth = decltype(size<2>(fragment_w))::value;  // MMA steps of 32 along one K tile

    for (int t = 0; t < slice.count; ++t) {
      int const stage = t % stages;
      storage.full[stage].wait((t / stages) & 1);
      auto& target = promoted ? partial : sums;
      if (promoted || t == 0) mma.accumulate_ = GMMA::ScaleOut::Zero;
      warpgroup_fence_operand(target);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < kDepth; ++step) {
        if (promoted && step % 4 == 0 && step > 0) {
          // Only 128 along K stay in the tensor core's narrower accumulator.
          warpgroup_commit_batch();
          warpgroup_wait<0>();
          add(sums, partial);
          mma.accumulate_ = GMMA::ScaleOut::Zero;
          warpgroup_fence_operand(partial);
          warpgroup_arrive();
        }
        gemm(mma, fragment_w(_, _, step, stage), fragment_t(_, _, step, stage), target);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      if constexpr (promoted) {
        warpgroup_wait<0>();
        add(sums, partial);
        release(storage, t);
      } else {
        warpgroup_wait<1>();
        if (t > 0) release(storage, t - 1);
      }
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    return sums;
  }

  template <class Sums>
  __device__ static void add(Sums& sums, Sums& partial) {
    cute::warpgroup_fence_operand(partial);
    for (int i = 0; i < cute::size(sums); ++i) sums(i) += partial(i);
  }

  __device__ static void release(SharedStorage& storage, int t) {
    if (threadIdx.x % 32 == 0) storage.empty[t % stages].arrive();
  }
};

}  // namespace gemmill
