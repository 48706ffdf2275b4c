// Few rows against many weights, on Hopper, as in split_k_mm.cuh, by CTAs that walk over tiles: loads of the next tile run while this one's
// sums are stored, which have shared memory of their own. Scales may come in groups along K.
//
// Where a cluster shares K, each of its CTAs has one tile.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gemm/pipeline.cuh"
#include "scaled_mm/group_scales.cuh"
#include "scaled_mm/split_k_mm.cuh"

namespace gemmill {

// Scales that the main loop applies, and the bias of the sums.
struct GroupVectors : GroupScales<128, true> {
  void const* bias;

  explicit GroupVectors(gemmill_scaled_mm_args const& x) : GroupScales<128, true>(x), bias(x.bias) {}
};

template <EpilogueKind kind, class Output>
__device__ Output finish(GroupVectors const& v, float sum, int64_t, int64_t n) {
  return with_bias<kind == EpilogueKind::scaledbias>(sum, static_cast<Output const*>(v.bias), n);
}

template <class Element_, class Accumulator, class Output_, int tile_n, int tile_m, int tile_k, int stages, bool grouped,
          EpilogueKind kind>
struct FewRowsMm : SplitKMm<Element_, Accumulator, Output_, tile_n, tile_m, tile_k, stages, grouped, kind,
                            std::conditional_t<grouped, GroupVectors, EpilogueVectors>> {
  using Base = SplitKMm<Element_, Accumulator, Output_, tile_n, tile_m, tile_k, stages, grouped, kind,
                        std::conditional_t<grouped, GroupVectors, EpilogueVectors>>;
  using typename Base::Element;
  using typename Base::Params;
  using typename Base::Slice;
  using typename Base::TiledMma;
  using Ring = typename Base::SharedStorage;
  using State = PipelineState<stages>;
  static constexpr int kGroup = GroupVectors::kGroup;
  static constexpr int kGroups = grouped ? tile_k / kGroup : 1;  // along K, of a stage
  static constexpr int kScales = grouped ? tile_m + 4 : 4;       // of a group: of rows of A, then of B's block; 16-byte rows
  static constexpr int kConsumers = Base::kConsumers;
  static constexpr int kThreads = kConsumers + (grouped ? 64 : 32);  // a warp loads operands, another one scales
  // The part of its first tile's weights that a CTA prefetches: a quarter of the K steps, up to 128 KB (docs/notes/tiles.md).
  static constexpr int kPrefetchShare = 4, kPrefetchSteps = 128 * 1024 / Base::kWeightBytes;

  static_assert(!grouped || (sizeof(Element) == 1 && std::is_same_v<Accumulator, float>), "groups are of e4m3");
  static_assert(!grouped || (tile_k % kGroup == 0 && tile_n <= kGroup), "a stage has whole groups, a tile one block of B");

  struct alignas(1024) SharedStorage {
    Ring ring;
    alignas(16) Accumulator sums[tile_m * Base::kPitch];
    alignas(16) float scales[stages][kGroups][kScales];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static constexpr int kCtasOfSm = std::max(1, std::min(4, 228 * 1024 / (kSharedBytes + 1024)));

  // Host code: CTAs of a launch.
  static int64_t ctas(int64_t tiles, int32_t splits, int32_t sm_count) {
    return splits > 1 ? tiles * splits : std::min<int64_t>(tiles, int64_t{sm_count} * kCtasOfSm);
  }

  // The tiles of a CTA, and its slice of their K.
  struct Walk {
    unsigned tile, step, tiles_m, tiles;
    int m;
    Slice slice;

    __device__ Walk(Params const& params, int rank, unsigned splits)
        : tile(blockIdx.x / splits), step(gridDim.x / splits), tiles_m((params.m + tile_m - 1) / tile_m),
          tiles(tiles_m * ((params.n + tile_n - 1) / tile_n)), m(params.m), slice(params.k, rank, splits) {}
    __device__ bool has() const { return tile < tiles; }
    __device__ void next() { tile += step; }
    __device__ int n0() const { return static_cast<int>(tile / tiles_m) * tile_n; }
    __device__ int m0() const { return min(static_cast<int>(tile % tiles_m) * tile_m, max(m - tile_m, 0)); }
  };

  // The work of one CTA.
  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    int const rank = cute::block_rank_in_cluster(), splits = cute::cluster_shape().x;
    Walk walk(params, rank, splits);

    Base::prepare(params, storage.ring, grouped ? 33 : 1);  // the thread that loads operands, and the warp that loads scales
    if (threadIdx.x >= kConsumers) {
      if (threadIdx.x == kConsumers) load_operands(params, storage.ring, walk);
      if constexpr (grouped) {
        if (threadIdx.x >= kConsumers + 32) load_scales(params, storage, walk);
      }
      Base::meet_consumers(splits);
      return;
    }
    for (State state; walk.has(); walk.next()) {
      auto sums = multiply(storage, walk.slice.count, state);
      Base::store(params, storage.sums, sums, rank, splits, walk.n0(), walk.m0());
    }
  }

 private:
  __device__ static void load_operands(Params const& params, Ring& ring, Walk walk) {
    auto const [first, count] = walk.slice;
    using Policy = cute::TMA::CacheHintSm90;
    auto const policy = static_cast<uint64_t>(params.m <= tile_m ? Policy::EVICT_FIRST : Policy::EVICT_NORMAL);
    // Weights that nobody writes need not wait for the predecessor; others are fetched into L2, where all writes meet.
    int const early = params.constant_weights ? min(count, stages) : 0;
    for (int t = 0; t < early; ++t) Base::load_weights(params, ring, first, t, walk.n0(), policy);
    if (!params.constant_weights) {
      for (int t = 0; t < min(count / kPrefetchShare, kPrefetchSteps); ++t) {
        for (int s = 0; s < Base::kSlabs; ++s) {
          cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&params.weights, (first + t) * Base::kDepthBytes + s * Base::kSlab, walk.n0());
        }
      }
    }
    cutlass::arch::wait_on_dependent_grids();
    int loaded = 0;
    for (State state; walk.has(); walk.next()) {
      int const n0 = walk.n0(), m0 = walk.m0();
      for (int t = 0; t < count; ++t, ++loaded, state.next()) {
        int const from = first + t - state.stage;  // the base counts steps by stages
        if (loaded >= early) {
          ring.empty[state.stage].wait(state.phase ^ 1);
          Base::load_weights(params, ring, from, state.stage, n0, policy);
        }
        Base::load_tokens(params, ring, from, state.stage, m0);
      }
    }
  }

  // Beyond M, N and K zeros: those that TMA puts there stay zeros.
  __device__ static void load_scales(Params const& params, SharedStorage& storage, Walk walk) {
    auto const& scales = params.vectors;
    int const lane = threadIdx.x % 32;
    cutlass::arch::wait_on_dependent_grids();
    for (State state; walk.has(); walk.next()) {
      int const m0 = walk.m0();
      float const* const of_b = scales.b + walk.n0() / kGroup * scales.b_stride_n;
      for (int t = 0; t < walk.slice.count; ++t, state.next()) {
        storage.ring.empty[state.stage].wait(state.phase ^ 1);
        CUTLASS_PRAGMA_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          int const group = (walk.slice.first + t) * kGroups + g;
          bool const exists = group < scales.groups;
          float* const to = storage.scales[state.stage][g];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < tile_m; i += 32) {
            int const row = m0 + i + lane;
            if (i + lane < tile_m) copy(to + i + lane, scales.a + row * scales.a_stride_m + group * scales.a_stride_k, scales.a, exists && row < params.m);
          }
          if (lane == 0) copy(to + tile_m, of_b + group * scales.b_stride_k, scales.b, exists);
        }
        arrive_after_copies(storage.ring.full[state.stage]);
      }
    }
  }

  // Starts the copy of a scale, or of a zero; `any` is an address that may be read.
  __device__ static void copy(float* to, float const* from, float const* any, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cute::cast_smem_ptr_to_uint(to)), "l"(exists ? from : any), "r"(exists ? 4 : 0)
                 : "memory");
  }

  // The sums of a tile, in the registers of the consumers.
  __device__ static auto multiply(SharedStorage& storage, int steps, State& state) {
    using namespace cute;
    auto weights = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(&storage.ring.weights[0][0])), typename Base::WeightLayout{});
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(&storage.ring.tokens[0][0])), typename Base::TokenLayout{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_w = thread_mma.make_fragment_A(thread_mma.partition_A(weights));
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<Int<tile_n>, Int<tile_m>>{});
    clear(sums);
    constexpr int kDepth = decltype(size<2>(fragment_w))::value / kGroups;  // instructions of 32 bytes along K, of a group

    if constexpr (grouped) {
      decltype(make_fragment_like(sums)) partial[kGroups];
      for (int t = 0; t < steps; ++t, state.next()) {
        storage.ring.full[state.stage].wait(state.phase);
        for_each(make_seq<kGroups>{}, [&](auto g) { warpgroup_fence_operand(partial[g]); });
        warpgroup_arrive();
        for_each(make_seq<kGroups>{}, [&](auto g) {
          mma.accumulate_ = GMMA::ScaleOut::Zero;
          CUTLASS_PRAGMA_UNROLL
          for (int step = 0; step < kDepth; ++step) {
            gemm(mma, fragment_w(_, _, g * kDepth + step, state.stage), fragment_t(_, _, g * kDepth + step, state.stage), partial[g]);
            mma.accumulate_ = GMMA::ScaleOut::One;
          }
          warpgroup_commit_batch();
        });
        for_each(make_seq<kGroups>{}, [&](auto g) {  // while later groups multiply
          warpgroup_wait<kGroups - 1 - g>();
          warpgroup_fence_operand(partial[g]);
          add_scaled(sums, partial[g], storage.scales[state.stage][g]);
        });
        __syncwarp();  // all lanes have read the scales
        Base::release(storage.ring, state.stage);
      }
    } else {
      int before = 0;
      for (int t = 0; t < steps; ++t, state.next()) {
        storage.ring.full[state.stage].wait(state.phase);
        if (t == 0) mma.accumulate_ = GMMA::ScaleOut::Zero;
        warpgroup_fence_operand(sums);
        warpgroup_arrive();
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < kDepth; ++step) {
          gemm(mma, fragment_w(_, _, step, state.stage), fragment_t(_, _, step, state.stage), sums);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        if (t > 0) Base::release(storage.ring, before);
        before = state.stage;
      }
      warpgroup_wait<0>();
      if (steps > 0) Base::release(storage.ring, before);
      warpgroup_fence_operand(sums);
    }
    return sums;
  }

  // A thread has pairs of neighbouring rows of A: sums (2, 2, tile_m / 8) of rows, columns and eights of rows.
  template <class Sums>
  __device__ static void add_scaled(Sums& sums, Sums const& partial, float const* scales) {
    static_assert(decltype(cute::size(sums))::value == tile_m / 2);
    float const of_b = scales[tile_m];
    CUTLASS_PRAGMA_UNROLL
    for (int eight = 0; eight < tile_m / 8; ++eight) {
      auto const of_a = *reinterpret_cast<float2 const*>(scales + 8 * eight + threadIdx.x % 4 * 2);
      float const factors[2] = {of_a.x * of_b, of_a.y * of_b};
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) sums(4 * eight + i) = fmaf(factors[i % 2], partial(4 * eight + i), sums(4 * eight + i));
    }
  }
};

}  // namespace gemmill
