// Few rows against many weights with scales in groups along K, on Hopper: D^T = B^T A^T, as split_k_mm.cuh computes it.
//
// The machine works in the same way: B's columns (the weights) fill the tensor core's 64 rows, A's rows (the tokens) are
// its columns, the CTAs of a cluster take slices of K of one tile, and their sums meet in distributed shared memory, where
// they are added in a fixed order. What differs is the main loop: at the end of every group its sum leaves the tensor
// core, is multiplied by the scales of token and weight, and is added in FP32.
//
// Scales travel with the weights: a warp of their own copies those of a stage one by one, by their strides, into the stage,
// so that they are as far ahead as the weights are. Read by the consumers one stage ahead, they held the main loop up: with
// the memory busy, a read takes longer than a stage (H200, 2026-11-20: 16 x 8192 x 8192 in 20.9 us).
#pragma once

#include <climits>
#include <cuda.h>

#include "gemmill/group_scales.cuh"
#include "gemmill/split_k_mm.cuh"

namespace gemmill {

template <class Element_, class Accumulator_, class Output_, int tile_n, int tile_m, int tile_k, int stages, bool takes_bias,
          class Scales_>
struct GroupSplitKMm {
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Output = Output_;
  using Scales = Scales_;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;

  static constexpr int kTileN = tile_n, kTileM = tile_m;
  static constexpr int kSlab = 128;  // bytes along K that one swizzled TMA box covers
  static constexpr int kSlabs = tile_k / kSlab;
  static constexpr int kConsumerGroups = tile_n / 64;
  static constexpr int kConsumers = 128 * kConsumerGroups;
  static constexpr int kThreads = kConsumers + 64;  // and a warp for operands, one for scales
  static constexpr int kWeightBytes = tile_n * tile_k;
  static constexpr int kTokenBytes = tile_m * tile_k;
  static constexpr int kPitch = tile_n + 4;  // of a row of partial sums: 16-byte rows, banks apart
  static constexpr int kPrefetchBytes = 32 * 1024;  // more delays the loads themselves (see split_k_mm.cuh)
  static constexpr int kGroups = tile_k / Scales::kGroup;  // of one stage
  static constexpr int kSteps = Scales::kGroup / 32;       // WGMMA instructions of one group
  // Of one group along K.
  static constexpr int kWeightScales = Scales::kBlocks ? (tile_n + Scales::kGroup - 1) / Scales::kGroup : tile_n;

  static_assert(sizeof(Element) == 1, "operands are one byte wide");
  static_assert(tile_n % 64 == 0, "a consumer group multiplies 64 columns of B");
  static_assert(tile_k % kSlab == 0, "a K step is whole swizzle rows");
  static_assert(tile_k % Scales::kGroup == 0, "a K step is whole groups");
  static_assert(tile_m * kPitch * 4 <= stages * (kWeightBytes + kTokenBytes), "partial sums reuse the stages");

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

  using Op = decltype(cute::GMMA::ss_op_selector<Element, Element, Accumulator,
                                                 cute::Shape<cute::_64, cute::Int<tile_m>, cute::_32>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<kConsumerGroups>, cute::_1, cute::_1>>{}));
  using Atom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using WeightLayout = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_n>, cute::Int<tile_k>, cute::Int<stages>>{}));
  using TokenLayout = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_m>, cute::Int<tile_k>, cute::Int<stages>>{}));

  // The K tiles of this CTA.
  struct Slice {
    int first, count;
    __device__ Slice(int k, int rank, int splits) {
      int tiles = (k + tile_k - 1) / tile_k;
      first = static_cast<int>(static_cast<int64_t>(tiles) * rank / splits);
      count = static_cast<int>(static_cast<int64_t>(tiles) * (rank + 1) / splits) - first;
    }
  };

  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    int const rank = cute::block_rank_in_cluster();
    int const splits = cute::cluster_shape().x;
    int const tile = blockIdx.x / splits;
    int const tiles_n = (params.n + tile_n - 1) / tile_n;
    int const n0 = tile % tiles_n * tile_n;
    int const m0 = tile / tiles_n * tile_m;
    Slice const slice(params.k, rank, splits);

    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.weights);
      cute::prefetch_tma_descriptor(&params.tokens);
      for (int i = 0; i < stages; ++i) {
        storage.full[i].init(1 + 32);  // the announcement of operands' bytes, and every lane's scales
        storage.empty[i].init(kConsumers / 32);
      }
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    cutlass::arch::launch_dependent_grids();

    if (threadIdx.x >= kConsumers) {
      if (threadIdx.x == kConsumers) produce(params, storage, slice, n0, m0);
      if (threadIdx.x >= kConsumers + 32) produce_scales(params.scales, storage, slice, n0, m0);
      __syncwarp();
      if (splits > 1) {  // the two meetings of the cluster in `store`
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
      }
      return;
    }
    auto sums = consume(storage, slice);
    store(params, storage, sums, rank, splits, n0, m0);
  }

 private:
  __device__ static void produce(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    // Weights that nobody writes need not wait for the predecessor: all stages are under way before it ends.
    int const early = min(slice.count, stages);
    if (params.constant_weights) {
      for (int t = 0; t < early; ++t) load_weights(params, storage, slice.first, t, n0);
    } else {
      int const ahead = min(slice.count, kPrefetchBytes / kWeightBytes);
      for (int t = 0; t < ahead; ++t) {
        for (int s = 0; s < kSlabs; ++s) {
          cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&params.weights, (slice.first + t) * tile_k + s * kSlab, n0);
        }
      }
    }
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      if (t >= early || !params.constant_weights) {
        storage.empty[t % stages].wait(((t / stages) & 1) ^ 1);
        load_weights(params, storage, slice.first, t, n0);
      }
      load_tokens(params, storage, slice.first, t, m0);
    }
  }

  __device__ static void produce_scales(Scales const& scales, SharedStorage& storage, Slice const& slice, int n0, int m0) {
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

  // Also announces the tokens' bytes, which are on their way next.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, int first, int t, int n0) {
    int const stage = t % stages;
    storage.full[stage].arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int s = 0; s < kSlabs; ++s) {
      cute::SM90_TMA_LOAD_2D::copy(&params.weights, reinterpret_cast<uint64_t*>(&storage.full[stage]),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                   storage.weights[stage] + s * tile_n * kSlab, (first + t) * tile_k + s * kSlab, n0);
    }
  }

  __device__ static void load_tokens(Params const& params, SharedStorage& storage, int first, int t, int m0) {
    int const stage = t % stages;
    for (int s = 0; s < kSlabs; ++s) {
      cute::SM90_TMA_LOAD_2D::copy(&params.tokens, reinterpret_cast<uint64_t*>(&storage.full[stage]),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                   storage.tokens[stage] + s * tile_m * kSlab, (first + t) * tile_k + s * kSlab, m0);
    }
  }

  __device__ static auto consume(SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto weights = make_tensor(make_smem_ptr(&storage.weights[0][0]), WeightLayout{});
    auto tokens = make_tensor(make_smem_ptr(&storage.tokens[0][0]), TokenLayout{});
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

  // Partial sums go to this CTA's shared memory, token by token; then the cluster's CTAs divide the tile among them,
  // add up all slices in order of K, and store rows of D along n.
  template <class Sums>
  __device__ static void store(Params const& params, SharedStorage& storage, Sums const& sums, int rank, int splits, int n0, int m0) {
    using namespace cute;
    auto* buffer = reinterpret_cast<float*>(&storage);
    auto buffer_layout = make_layout(Shape<Int<tile_n>, Int<tile_m>>{}, Stride<_1, Int<kPitch>>{});
    auto partition = TiledMma{}.get_thread_slice(threadIdx.x).partition_C(make_tensor(make_smem_ptr(buffer), buffer_layout));
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the stages that this overwrites
    copy(sums, partition);
    if (splits > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    }

    constexpr int kQuads = tile_m * tile_n / 4;
    for (int i = rank * kConsumers + threadIdx.x; i < kQuads; i += splits * kConsumers) {
      int const m = i / (tile_n / 4);
      int const n = i % (tile_n / 4) * 4;
      if (m0 + m >= params.m || n0 + n >= params.n) continue;
      float quad[4] = {};
      uint32_t const address = cast_smem_ptr_to_uint(buffer + m * kPitch + n);
      for (int s = 0; s < splits; ++s) add_remote(quad, address, s);
      store_quad(params, quad, m0 + m, n0 + n);
    }
    if (splits > 1) {
      cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cluster_wait();
    }
  }

  __device__ static void add_remote(float (&quad)[4], uint32_t address, int rank) {
    uint32_t remote;
    float values[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "r"(remote)
                 : "memory");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) quad[i] += values[i];
  }

  __device__ static void store_quad(Params const& params, float const (&quad)[4], int64_t m, int n) {
    Output* row = params.d + m * params.ldd + n;
    if (n + 4 <= params.n) {
      cutlass::AlignedArray<Output, 4> values;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = with_bias<takes_bias>(quad[i], params.bias, n + i);
      *reinterpret_cast<cutlass::AlignedArray<Output, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 3; ++i) {
        if (n + i < params.n) row[i] = with_bias<takes_bias>(quad[i], params.bias, n + i);
      }
    }
  }
};

template <class Kernel, auto entry>
int32_t launch_group_split_k(gemmill_scaled_mm_args const& x, void* stream) {
  constexpr int tile_n = Kernel::kTileN, tile_m = Kernel::kTileM;
  if (cudaError_t error = allow_shared_memory<entry>(x.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{{}, {}, typename Kernel::Scales(group_args(x)),
                                 static_cast<typename Kernel::Output const*>(x.bias),
                                 static_cast<typename Kernel::Output*>(x.d), x.ldd, x.m, x.n, x.k, x.constant_weights != 0};
  if (describe_operand(params.weights, x.b, x.n, x.k, x.ldb, tile_n) != CUDA_SUCCESS ||
      describe_operand(params.tokens, x.a, x.m, x.k, x.lda, tile_m) != CUDA_SUCCESS) {
    return GEMMILL_CANNOT_IMPLEMENT;
  }
  int64_t const tiles = int64_t((x.n + tile_n - 1) / tile_n) * ((x.m + tile_m - 1) / tile_m);
  if (tiles * x.splits > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(tiles * x.splits), dim3(Kernel::kThreads), dim3(x.splits), Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, x.device, x.programmatic_launch, parameters, static_cast<cudaStream_t>(stream));
}

}  // namespace gemmill
