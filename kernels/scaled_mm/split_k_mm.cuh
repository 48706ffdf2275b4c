// Few rows against many weights, on Hopper: D[m, n] = epilogue(A[m, k] B[k, n]), computed as D^T = B^T A^T.
//
// B's columns (the weights) fill the tensor core's 64 rows, A's rows (the tokens) are its columns. A cluster of CTAs
// shares one output tile: each takes a slice of K, and the partial sums meet in distributed shared memory, where every
// CTA adds up its part of the tile in a fixed order. So there is no workspace, nothing to clear and no second kernel,
// and the result does not depend on timing.
//
// Time goes to reading the weights. While the kernel before this one still runs, it already fetches the weights' first slices into
// L2, which is safe whichever kernel writes them: L2 is where all of them meet. It reads nothing before the predecessor has ended, unless the
// caller has said that weights are constant: then it loads every stage of them early, and in a chain of such kernels the memory is never
// idle.
#pragma once

#include <climits>
#include <cuda.h>

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/array.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "scaled_mm/abi.h"
#include "core/launch.cuh"
#include "gemm/plain_epilogue.cuh"

namespace gemmill {

template <class Element_, class Accumulator, class Output_, int tile_n, int tile_m, int tile_k, int stages, bool promoted,
          EpilogueKind kind, class Vectors_ = EpilogueVectors>
struct SplitKMm {
  using Element = Element_;
  using Output = Output_;
  using Vectors = Vectors_;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;

  static constexpr int kTileN = tile_n, kTileM = tile_m;
  static constexpr int kSlab = 128;  // bytes along K that one swizzled TMA box covers
  static constexpr int kDepthBytes = tile_k * sizeof(Element);
  static constexpr int kSlabs = kDepthBytes / kSlab;
  static constexpr int kConsumerGroups = tile_n / 64;
  static constexpr int kConsumers = 128 * kConsumerGroups;
  static constexpr int kThreads = kConsumers + 32;  // and the warp that loads
  static constexpr int kWeightBytes = tile_n * kDepthBytes;
  static constexpr int kTokenBytes = tile_m * kDepthBytes;
  static constexpr int kPitch = tile_n + 4;  // of a row of partial sums: 16-byte rows, banks apart
  static constexpr int kPrefetchBytes = 32 * 1024;  // more delays the loads themselves (H200, 2026-11-20)

  static_assert(tile_n % 64 == 0, "a consumer group multiplies 64 columns of B");
  static_assert(kDepthBytes % kSlab == 0, "a K step is whole swizzle rows");
  static_assert(tile_m * kPitch * 4 <= stages * (kWeightBytes + kTokenBytes), "partial sums reuse the stages");

  using Op = decltype(cute::GMMA::ss_op_selector<Element, Element, Accumulator,
                                                 cute::Shape<cute::_64, cute::Int<tile_m>, cute::Int<32 / sizeof(Element)>>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<kConsumerGroups>, cute::_1, cute::_1>>{}));
  using Atom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using WeightLayout = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_n>, cute::Int<tile_k>, cute::Int<stages>>{}));
  using TokenLayout = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_m>, cute::Int<tile_k>, cute::Int<stages>>{}));

  struct Params {
    CUtensorMap weights;
    CUtensorMap tokens;
    Vectors vectors;
    Output* d;
    int64_t ldd;
    int32_t m, n, k;
    bool constant_weights;
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) uint8_t weights[stages][kWeightBytes];
    alignas(1024) uint8_t tokens[stages][kTokenBytes];
    Barrier full[stages];
    EmptyBarrier empty[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base

  // Host code: CTAs of a launch.
  static int64_t ctas(int64_t tiles, int32_t splits, int32_t) { return tiles * splits; }

  // The K tiles of this CTA.
  struct Slice {
    int first, count;
    __device__ Slice(unsigned k, unsigned rank, unsigned splits) {
      unsigned const tiles = (k + tile_k - 1) / tile_k;  // 2^24 at most: its product with 8 splits has 27 bits
      first = static_cast<int>(tiles * rank / splits);
      count = static_cast<int>(tiles * (rank + 1) / splits) - first;
    }
  };

  // The work of one CTA.
  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    int const rank = cute::block_rank_in_cluster();
    int const splits = cute::cluster_shape().x;
    unsigned const tile = blockIdx.x / static_cast<unsigned>(splits);
    unsigned const tiles_m = (params.m + tile_m - 1) / tile_m;  // neighbours in time share weights
    int const n0 = static_cast<int>(tile / tiles_m) * tile_n;
    // The last tile moves back to lie within A; both tiles store their common rows, with the same bits. TMA takes longer to fill the rows
    // beyond A with zeros than to load them (docs/notes/tiles.md).
    int const m0 = min(static_cast<int>(tile % tiles_m) * tile_m, max(params.m - tile_m, 0));
    Slice const slice(params.k, rank, splits);

    prepare(params, storage, 1);
    if (threadIdx.x >= kConsumers) {
      if (threadIdx.x == kConsumers) produce(params, storage, slice, n0, m0);
      meet_consumers(splits);
      return;
    }
    auto sums = consume(storage, slice);
    store(params, reinterpret_cast<Accumulator*>(&storage), sums, rank, splits, n0, m0);
  }

  // Before any load: descriptors, and barriers of which `producers` threads fill a stage.
  __device__ static void prepare(Params const& params, SharedStorage& storage, int producers) {
    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.weights);
      cute::prefetch_tma_descriptor(&params.tokens);
      for (int i = 0; i < stages; ++i) {
        storage.full[i].init(producers);
        storage.empty[i].init(kConsumers / 32);
      }
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    cutlass::arch::launch_dependent_grids();
  }

  // A loading warp's part of the two meetings of the cluster in `store`.
  __device__ static void meet_consumers(int splits) {
    __syncwarp();
    if (splits > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }
  }

  __device__ static void produce(Params const& params, SharedStorage& storage, Slice const& slice, int n0, int m0) {
    // Weights that nobody writes need not wait for the predecessor: all stages are under way before it ends.
    int const early = min(slice.count, stages);
    using Policy = cute::TMA::CacheHintSm90;
    auto const policy = static_cast<uint64_t>(params.m <= tile_m ? Policy::EVICT_FIRST : Policy::EVICT_NORMAL);
    if (params.constant_weights) {
      for (int t = 0; t < early; ++t) load_weights(params, storage, slice.first, t, n0, policy);
    } else {
      int const ahead = min(slice.count, kPrefetchBytes / kWeightBytes);
      for (int t = 0; t < ahead; ++t) {
        for (int s = 0; s < kSlabs; ++s) {
          cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&params.weights, (slice.first + t) * kDepthBytes + s * kSlab, n0);
        }
      }
    }
    cutlass::arch::wait_on_dependent_grids();
    for (int t = 0; t < slice.count; ++t) {
      if (t >= early || !params.constant_weights) {
        storage.empty[t % stages].wait(((t / stages) & 1) ^ 1);
        load_weights(params, storage, slice.first, t, n0, policy);
      }
      load_tokens(params, storage, slice.first, t, m0);
    }
  }

  // Also announces the tokens' bytes, which are on their way next.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, int first, int t, int n0, uint64_t policy) {
    int const stage = t % stages;
    storage.full[stage].arrive_and_expect_tx(kWeightBytes + kTokenBytes);
    for (int s = 0; s < kSlabs; ++s) {
      cute::SM90_TMA_LOAD_2D::copy(&params.weights, reinterpret_cast<uint64_t*>(&storage.full[stage]),
                                   policy, storage.weights[stage] + s * tile_n * kSlab, (first + t) * kDepthBytes + s * kSlab, n0);
    }
  }

  __device__ static void load_tokens(Params const& params, SharedStorage& storage, int first, int t, int m0) {
    int const stage = t % stages;
    for (int s = 0; s < kSlabs; ++s) {
      cute::SM90_TMA_LOAD_2D::copy(&params.tokens, reinterpret_cast<uint64_t*>(&storage.full[stage]),
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                   storage.tokens[stage] + s * tile_m * kSlab, (first + t) * kDepthBytes + s * kSlab, m0);
    }
  }

  // The sums of this CTA's slice of K, in the registers of the consumers.
  __device__ static auto consume(SharedStorage& storage, Slice const& slice) {
    using namespace cute;
    auto weights = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(&storage.weights[0][0])), WeightLayout{});
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(&storage.tokens[0][0])), TokenLayout{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_w = thread_mma.make_fragment_A(thread_mma.partition_A(weights));
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<Int<tile_n>, Int<tile_m>>{});
    auto partial = make_fragment_like(sums);
    clear(sums);
    constexpr int kDepth = decltype(size<2>(fragment_w))::value;  // MMA steps of 32 bytes along one K tile

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

  // Partial sums go to `buffer` in this CTA's shared memory, token by token; then the cluster's CTAs divide the tile among them,
  // add up all slices in order of K, and store rows of D along n.
  template <class Sums>
  __device__ static void store(Params const& params, Accumulator* buffer, Sums const& sums, int rank, int splits, int n0, int m0) {
    using namespace cute;
    auto buffer_layout = make_layout(Shape<Int<tile_n>, Int<tile_m>>{}, Stride<_1, Int<kPitch>>{});
    auto partition = TiledMma{}.get_thread_slice(threadIdx.x).partition_C(make_tensor(make_smem_ptr(buffer), buffer_layout));
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // every group has read the contents that this overwrites
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
      Accumulator quad[4] = {};
      uint32_t const address = cast_smem_ptr_to_uint(buffer + m * kPitch + n);
      for (int s = 0; s < splits; ++s) add_remote(quad, address, s);
      store_quad(params, quad, m0 + m, n0 + n);
    }
    if (splits > 1) {
      cluster_arrive_relaxed();  // nobody leaves while others still read its sums
      cluster_wait();
    }
  }

  __device__ static void add_remote(Accumulator (&quad)[4], uint32_t address, int rank) {
    uint32_t remote, bits[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"(remote)
                 : "memory");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) quad[i] += reinterpret_cast<Accumulator const&>(bits[i]);
  }

  __device__ static void store_quad(Params const& params, Accumulator const (&quad)[4], int m, int n) {
    Output* row = params.d + m * params.ldd + n;
    if (n + 4 <= params.n) {
      cutlass::AlignedArray<Output, 4> values;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = finish<kind, Output>(params.vectors, quad[i], m, n + i);
      *reinterpret_cast<cutlass::AlignedArray<Output, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 3; ++i) {
        if (n + i < params.n) row[i] = finish<kind, Output>(params.vectors, quad[i], m, n + i);
      }
    }
  }
};

// Host code: a launch. A K-major operand of `rows` rows of `k` bytes for TMA boxes of `box_rows` rows and 128 bytes.
inline CUresult describe_operand(CUtensorMap& map, void const* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
  cuuint64_t const dims[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  cuuint64_t const strides[1] = {static_cast<cuuint64_t>(stride)};
  cuuint32_t const box[2] = {128, static_cast<cuuint32_t>(box_rows)};
  cuuint32_t const element_strides[2] = {1, 1};
  return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), dims, strides, box,
                                element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class Kernel, auto entry>
int32_t launch_split_k(gemmill_scaled_mm_args const& x, gemmill_launch const& how) {
  constexpr int tile_n = Kernel::kTileN, tile_m = Kernel::kTileM;
  constexpr int64_t kBytes = sizeof(typename Kernel::Element);
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{{}, {}, typename Kernel::Vectors(x), static_cast<typename Kernel::Output*>(x.d), x.ldd, x.m, x.n, x.k, how.constant_weights != 0};
  if (describe_operand(params.weights, x.b, x.n, x.k * kBytes, x.ldb * kBytes, tile_n) != CUDA_SUCCESS ||
      describe_operand(params.tokens, x.a, x.m, x.k * kBytes, x.lda * kBytes, tile_m) != CUDA_SUCCESS) {
    return GEMMILL_CANNOT_IMPLEMENT;
  }
  int64_t const tiles = int64_t((x.n + tile_n - 1) / tile_n) * ((x.m + tile_m - 1) / tile_m);
  if (tiles * x.splits > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(Kernel::ctas(tiles, x.splits, how.sm_count)), dim3(Kernel::kThreads), dim3(x.splits), Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill
