// Many rows with scales in groups along K, on Hopper: D[m, n] = sum over g of a_scale b_scale (A B)_g + bias.
//
// A persistent kernel: one warp loads tiles of A and B by TMA, multicast to the CTAs of a cluster that share them;
// another copies the scales that belong to them; two consumer groups multiply 64 rows of the tile each. At the end of
// every group along K its sum leaves the tensor core, is multiplied by its scales and is added in FP32.
//
// A consumer group has two sets of accumulators: while it adds one up, the tensor core fills the other. So registers are
// taken from the loading warps.
//
// Scales travel with the tiles, each copied by its stride into the step's stage. Read by the consumers one step ahead,
// they held the main loop up: with the memory busy, a read takes longer than a step. Rows beyond M read none, so any M
// takes the time of the next whole tile. The epilogue is done by every warp for its own 16 rows, without a barrier.
#pragma once

#include <algorithm>
#include <climits>
#include <numeric>

#include "cute/arch/copy_sm90.hpp"
#include "cutlass/arch/reg_reconfig.h"
#include "gemmill/group_scales.cuh"
#include "gemmill/split_k_tile.cuh"

namespace gemmill {

// The order in which clusters take tiles: bands of `band` tiles, swept along the other dimension, for reuse in L2.
struct GroupMmOrder {
  int32_t tiles_m, tiles_n;  // in clusters
  int32_t band;
  bool along_m;

  __device__ int count() const { return tiles_m * tiles_n; }
  __device__ int2 operator()(int i) const {
    int const length = along_m ? tiles_m : tiles_n, width = along_m ? tiles_n : tiles_m;
    int const first = i / (length * band) * band, rest = i % (length * band);
    int const here = min(band, width - first);  // the last band may be narrower
    int const along = rest / here, across = first + rest % here;
    return along_m ? make_int2(along, across) : make_int2(across, along);
  }
};

template <class Element_, class Accumulator_, class Output_, int tile_m, int tile_n, int tile_k, int stages, int cluster_m,
          int cluster_n, bool takes_bias, class Scales_>
struct GroupMm {
  using Element = Element_;
  using Accumulator = Accumulator_;
  using Output = Output_;
  using Scales = Scales_;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;

  static constexpr int kTileM = tile_m, kTileN = tile_n, kClusterM = cluster_m, kClusterN = cluster_n;
  static constexpr int kCluster = cluster_m * cluster_n;
  static constexpr int kConsumerGroups = tile_m / 64;
  static constexpr int kConsumers = 128 * kConsumerGroups;
  static constexpr int kThreads = kConsumers + 128;  // and a warp each for operands and scales, two idle ones
  static constexpr int kBytesA = tile_m * tile_k, kBytesB = tile_n * tile_k;
  static constexpr int kRowsA = tile_m / cluster_n, kRowsB = tile_n / cluster_m;  // that a CTA loads for those that share them
  static constexpr int kSharers = cluster_m + cluster_n - 1;  // CTAs of the same row or column of the cluster, with this one
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;  // of 65,536, for two groups and one
  static constexpr int kPairs = 4;  // of groups along K, that a turn of the main loop takes
  static constexpr int kStrip = 64;                           // columns that a warp stores at a time
  static constexpr int kGroups = tile_k / Scales::kGroup;     // of one step
  static constexpr int kSteps = Scales::kGroup / 32;          // WGMMA instructions of one group
  static constexpr int kChunks = tile_n / 8;                  // of eight columns
  // Blocks of B that a tile's columns can touch: tiles begin at multiples of tile_n, so of the common divisor.
  static constexpr int kCommon = std::gcd(tile_n, Scales::kGroup);
  static constexpr int kBlocks = (Scales::kGroup - kCommon + tile_n - 1) / Scales::kGroup + 1;
  static constexpr int kColumnScales = Scales::kBlocks ? kBlocks : tile_n;  // of one group along K

  static_assert(sizeof(Element) == 1 && tile_k == 128, "a K step is one 128-byte swizzle row");
  static_assert(tile_m == 128 && tile_n % 16 == 0, "two consumer groups multiply 64 rows, results are stored in 16-byte pieces");
  static_assert(kRowsA % 8 == 0 && kRowsB % 8 == 0, "a part of a tile is whole swizzle atoms");

  struct Params {
    CUtensorMap a;
    CUtensorMap b;
    Scales scales;
    Output const* bias;
    Output* d;
    int64_t ldd;
    int32_t m, n, k;
    GroupMmOrder order;
  };

  struct alignas(8) StageScales {
    float rows[kGroups][tile_m];
    float columns[kGroups][kColumnScales];
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) Element a[stages][kBytesA];
    alignas(1024) Element b[stages][kBytesB];
    alignas(1024) Output result[kConsumers / 32][16 * kStrip];
    alignas(16) StageScales scales[stages];
    Barrier full[stages];
    EmptyBarrier empty[stages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage);

  using Op = decltype(cute::GMMA::ss_op_selector<Element, Element, Accumulator,
                                                 cute::Shape<cute::_64, cute::Int<tile_n>, cute::_32>>());
  using TiledMma = decltype(cute::make_tiled_mma(Op{}, cute::Layout<cute::Shape<cute::Int<kConsumerGroups>, cute::_1, cute::_1>>{}));
  using Atom = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using LayoutA = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_m>, cute::Int<tile_k>, cute::Int<stages>>{}));
  using LayoutB = decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<tile_n>, cute::Int<tile_k>, cute::Int<stages>>{}));

  // This CTA's tiles, in the same order in every role.
  class Walk {
   public:
    __device__ explicit Walk(GroupMmOrder const& order)
        : order_(order), i_(blockIdx.x / kCluster), step_(gridDim.x / kCluster) {}
    __device__ bool there() const { return i_ < order_.count(); }
    __device__ int count() const { return there() ? (order_.count() - i_ + step_ - 1) / step_ : 0; }
    __device__ void advance() { i_ += step_; }
    // The first row and column of the tile.
    __device__ int2 origin() const {
      int const rank = blockIdx.x % kCluster;
      int2 const at = order_(i_);
      return make_int2((at.x * cluster_m + rank % cluster_m) * tile_m, (at.y * cluster_n + rank / cluster_m) * tile_n);
    }

   private:
    GroupMmOrder const& order_;
    int i_, step_;
  };

  // Where this thread's sums lie (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32"): rows `row` and 8 more, columns
  // `column` and the next of every eight.
  struct Place {
    int row, column, n0;
    __device__ explicit Place(Walk const& walk) {
      int2 const origin = walk.origin();
      n0 = origin.y;
      row = origin.x + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      column = n0 + threadIdx.x % 4 * 2;
    }
  };

  __device__ static void run(Params const& params, char* shared) {
    auto& storage = *reinterpret_cast<SharedStorage*>(shared);
    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.a);
      cute::prefetch_tma_descriptor(&params.b);
      for (int i = 0; i < stages; ++i) {
        storage.full[i].init(1 + 32);  // the announcement of operands' bytes, and every lane's scales
        storage.empty[i].init(kConsumers / 32 * kSharers);
      }
      cutlass::arch::fence_barrier_init();
    }
    meet();  // barriers are ready everywhere in the cluster
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    if (threadIdx.x < kConsumers) {
      cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, storage);
    } else {
      cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      int const warp = (threadIdx.x - kConsumers) / 32;
      if (threadIdx.x == kConsumers) produce(params, storage);
      if (warp == 1) produce_scales(params, storage);
    }
    __syncwarp();
    if constexpr (kCluster > 1) meet();  // nobody leaves while others still write here
  }

 private:
  __device__ static void meet() {
    if constexpr (kCluster > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  // Pairs of groups along K; where their number is odd, the last one holds zeros.
  __device__ static int pairs_of(int k) { return (k + 2 * Scales::kGroup - 1) / (2 * Scales::kGroup); }

  __device__ static void produce(Params const& params, SharedStorage& storage) {
    int const rank = blockIdx.x % kCluster;
    int const rank_m = rank % cluster_m, rank_n = rank / cluster_m;
    uint16_t mask_a = 0, mask_b = 0;  // CTAs of the same rows, and of the same columns
    for (int i = 0; i < cluster_n; ++i) mask_a |= 1 << (rank_m + i * cluster_m);
    for (int i = 0; i < cluster_m; ++i) mask_b |= 1 << (i + rank_n * cluster_m);
    int const steps = pairs_of(params.k) * 2 / kGroups;
    int stage = 0;
    uint32_t phase = 1;
    for (Walk walk(params.order); walk.there(); walk.advance()) {
      auto [m0, n0] = walk.origin();
      CUTLASS_PRAGMA_NO_UNROLL
      for (int t = 0; t < steps; ++t) {
        storage.empty[stage].wait(phase);
        storage.full[stage].arrive_and_expect_tx(kBytesA + kBytesB);
        load<cluster_n>(params.a, storage.full[stage], storage.a[stage], rank_n * kRowsA, t * tile_k, m0, mask_a);
        load<cluster_m>(params.b, storage.full[stage], storage.b[stage], rank_m * kRowsB, t * tile_k, n0, mask_b);
        if (++stage == stages) stage = 0, phase ^= 1;
      }
    }
  }

  // This CTA's part of a tile, to all that share it.
  template <int sharers>
  __device__ static void load(CUtensorMap const& map, Barrier& full, Element* tile, int first_row, int k, int row, uint16_t mask) {
    auto* barrier = reinterpret_cast<uint64_t*>(&full);
    Element* to = tile + first_row * tile_k;
    constexpr auto kKeep = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    if constexpr (sharers > 1) {
      cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&map, barrier, mask, kKeep, to, k, row + first_row);
    } else {
      cute::SM90_TMA_LOAD_2D::copy(&map, barrier, kKeep, to, k, row + first_row);
    }
  }

  __device__ static void produce_scales(Params const& params, SharedStorage& storage) {
    Scales const& scales = params.scales;
    int const n_count = Scales::kBlocks ? (scales.n + Scales::kGroup - 1) / Scales::kGroup : scales.n;
    int const steps = pairs_of(params.k) * 2 / kGroups;
    int stage = 0;
    uint32_t phase = 1;
    for (Walk walk(params.order); walk.there(); walk.advance()) {
      auto [m0, n0] = walk.origin();
      int const n_first = Scales::kBlocks ? n0 / Scales::kGroup : n0;
      ScaleCopier<tile_m> rows(scales.a + m0 * scales.a_stride_m, scales.a_stride_m, scales.a_stride_k, scales.m - m0);
      ScaleCopier<kColumnScales> columns(scales.b + n_first * scales.b_stride_n, scales.b_stride_n, scales.b_stride_k,
                                         n_count - n_first);
      CUTLASS_PRAGMA_NO_UNROLL
      for (int t = 0; t < steps; ++t) {
        storage.empty[stage].wait(phase);
        CUTLASS_PRAGMA_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          bool const there = t * kGroups + g < scales.groups;
          rows.next(storage.scales[stage].rows[g], there);
          columns.next(storage.scales[stage].columns[g], there);
        }
        cutlass::arch::cpasync_barrier_arrive_noinc(reinterpret_cast<uint64_t*>(&storage.full[stage]));
        if (++stage == stages) stage = 0, phase ^= 1;
      }
    }
  }

  // A consumer's place in the ring of stages.
  struct Cursor {
    int stage = 0;
    uint32_t phase = 0;

    __device__ void advance() {
      if (++stage == stages) stage = 0, phase ^= 1;
    }
  };

  // Groups come in pairs, one for each set of accumulators: two of one step, or those of two steps. So the loop has no
  // condition while the tensor core is at work, for which the compiler would make it wait.
  __device__ static void consume(Params const& params, SharedStorage& storage) {
    using namespace cute;
    auto tile_a = make_tensor(make_smem_ptr(&storage.a[0][0]), LayoutA{});
    auto tile_b = make_tensor(make_smem_ptr(&storage.b[0][0]), LayoutB{});
    TiledMma mma;
    auto thread_mma = mma.get_thread_slice(threadIdx.x);
    auto fragment_a = thread_mma.make_fragment_A(thread_mma.partition_A(tile_a));
    auto fragment_b = thread_mma.make_fragment_B(thread_mma.partition_B(tile_b));
    auto even = partition_fragment_C(mma, Shape<Int<tile_m>, Int<tile_n>>{});
    auto odd = make_fragment_like(even);
    auto sums = make_fragment_like<float>(even);

    Cursor issued, added;
    int const pairs = pairs_of(params.k);

    auto issue = [&](auto& partial, auto half) {
      constexpr int group = kGroups == 2 ? half : 0;
      if constexpr (group == 0) storage.full[issued.stage].wait(issued.phase);
      mma.accumulate_ = GMMA::ScaleOut::Zero;
      warpgroup_fence_operand(partial);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
        gemm(mma, fragment_a(_, _, step, issued.stage), fragment_b(_, _, step, issued.stage), partial);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      if constexpr (group == kGroups - 1) issued.advance();
    };
    auto add = [&](auto& partial, auto half, Place const& place) {
      constexpr int group = kGroups == 2 ? half : 0;
      warpgroup_fence_operand(partial);
      ThreadScales const scales(storage.scales[added.stage], group, place);
      promote(sums, partial, scales);
      warpgroup_fence_operand(sums);  // all of it is added before the tensor core gets these registers back
      if constexpr (group == kGroups - 1) {
        release(storage, added.stage);
        added.advance();
      }
    };
    for (Walk walk(params.order); walk.there(); walk.advance()) {
      Place const place(walk);
      clear(sums);
      // At the end of a loop the compiler wants the tensor core idle: so each turn takes several pairs.
      auto turn = [&](auto pairs_of_turn) {
        issue(even, _0{});
        issue(odd, _1{});
        CUTLASS_PRAGMA_UNROLL
        for (int pair = 1; pair < pairs_of_turn; ++pair) {
          warpgroup_wait<1>();
          add(even, _0{}, place);
          issue(even, _0{});
          warpgroup_wait<1>();
          add(odd, _1{}, place);
          issue(odd, _1{});
        }
        warpgroup_wait<1>();
        add(even, _0{}, place);
        warpgroup_wait<0>();
        add(odd, _1{}, place);
      };
      for (int turns = pairs / kPairs; turns > 0; --turns) turn(Int<kPairs>{});
      for (int rest = pairs % kPairs; rest > 0; --rest) turn(_1{});
      store(params, storage, sums, place);
    }
  }

  // The scales of one group that a thread's sums need: its two rows', and its columns', which are read as they are needed
  // where each has its own.
  struct ThreadScales {
    float rows[2];
    float blocks[kBlocks];
    float const* columns;
    int offset;  // of the tile's first column in its block

    __device__ ThreadScales(StageScales const& stage, int g, Place const& place)
        : columns(stage.columns[g] + threadIdx.x % 4 * 2), offset(place.n0 % Scales::kGroup) {
      int const row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      rows[0] = stage.rows[g][row], rows[1] = stage.rows[g][row + 8];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks; ++i) blocks[i] = Scales::kBlocks ? stage.columns[g][i] : 0.0f;
    }

    // Of this thread's two columns of the j-th eight.
    __device__ float2 of_columns(int j) const {
      if constexpr (!Scales::kBlocks) {
        return *reinterpret_cast<float2 const*>(columns + j * 8);
      } else if constexpr (tile_n % Scales::kGroup == 0 || Scales::kGroup % tile_n == 0) {
        float const block = blocks[j * 8 / Scales::kGroup];  // known when compiled: tiles begin where blocks do
        return make_float2(block, block);
      } else {
        float block = blocks[0];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 1; i < kBlocks; ++i) block = offset + j * 8 >= i * Scales::kGroup ? blocks[i] : block;
        return make_float2(block, block);
      }
    }
  };

  // Register 4 j + 2 h + e of a thread's sums: column e of the j-th eight, row h of two.
  template <class Sums, class Partial>
  __device__ static void promote(Sums& sums, Partial const& partial, ThreadScales const& scales) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kChunks; ++j) {
      float2 const columns = scales.of_columns(j);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        float const scale = scales.rows[i / 2 % 2] * (i % 2 == 0 ? columns.x : columns.y);
        sums(i) = fmaf(scale, static_cast<float>(partial(i)), sums(i));
      }
    }
  }

  // A stage is free for a producer when all whose tiles it writes have read it.
  __device__ static void release(SharedStorage& storage, int stage) {
    int const lane = threadIdx.x % 32;
    __syncwarp();  // all lanes have read their scales
    if constexpr (kSharers == 1) {
      if (lane == 0) storage.empty[stage].arrive();
    } else {
      int const rank = blockIdx.x % kCluster;
      int const rank_m = rank % cluster_m, rank_n = rank / cluster_m;
      // The CTAs of the same column first, then those of the same row, without this one again.
      int const other_n = lane - cluster_m + (lane - cluster_m >= rank_n);
      int const target = lane < cluster_m ? lane + rank_n * cluster_m : rank_m + other_n * cluster_m;
      storage.empty[stage].arrive(target, lane < kSharers);
    }
  }

  // Each warp turns its 16 rows around in shared memory, a strip of columns at a time, and stores them along n. Pieces of
  // 16 bytes are spread by exclusive-or with the row, so that neither side meets a bank twice.
  template <class Sums>
  __device__ static void store(Params const& params, SharedStorage& storage, Sums const& sums, Place const& place) {
    int const lane = threadIdx.x % 32;
    Output* buffer = storage.result[threadIdx.x / 32];
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < kChunks; first += kStrip / 8) {
      __syncwarp();  // the strip before has left
      CUTLASS_PRAGMA_UNROLL
      for (int j = first; j < first + kStrip / 8 && j < kChunks; ++j) {
        float const bias[2] = {bias_of(params, place.column + j * 8), bias_of(params, place.column + j * 8 + 1)};
        CUTLASS_PRAGMA_UNROLL
        for (int h = 0; h < 2; ++h) {
          cutlass::AlignedArray<Output, 2> pair;
          CUTLASS_PRAGMA_UNROLL
          for (int e = 0; e < 2; ++e) pair[e] = Output(sums(4 * j + 2 * h + e) + bias[e]);
          int const row = lane / 4 + h * 8;
          Output* to = buffer + row * kStrip + (((j - first) ^ row) & 7) * 8 + lane % 4 * 2;
          *reinterpret_cast<cutlass::AlignedArray<Output, 2>*>(to) = pair;
        }
      }
      __syncwarp();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 16 * kStrip / 8 / 32; ++i) {
        int const row = i * 4 + lane / 8, piece = lane % 8;
        int64_t const m = place.row - lane / 4 + row;
        int const n = place.n0 + (first + piece) * 8;
        if (m >= params.m || n >= params.n || first + piece >= kChunks) continue;
        auto const* from = reinterpret_cast<uint4 const*>(buffer + row * kStrip + ((piece ^ row) & 7) * 8);
        *reinterpret_cast<uint4*>(params.d + m * params.ldd + n) = *from;
      }
    }
  }

  __device__ static float bias_of(Params const& params, int column) {
    if constexpr (takes_bias) {
      if (params.bias != nullptr && column < params.n) return static_cast<float>(params.bias[column]);
    }
    return 0.0f;
  }
};

template <class Kernel, auto entry>
int32_t launch_group_mm(gemmill_scaled_mm_args const& x, void* stream) {
  constexpr int cluster_m = Kernel::kClusterM, cluster_n = Kernel::kClusterN, cluster = cluster_m * cluster_n;
  constexpr int kWidestBand = 8;
  if (cudaError_t error = allow_shared_memory<entry>(x.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  auto ceil_div = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  int64_t const tiles_m = ceil_div(ceil_div(x.m, Kernel::kTileM), cluster_m);
  int64_t const tiles_n = ceil_div(ceil_div(x.n, Kernel::kTileN), cluster_n);
  if (tiles_m * tiles_n * kWidestBand > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  bool const chosen = x.raster_order != 0;  // else the widest band, along M
  GroupMmOrder const order{static_cast<int32_t>(tiles_m), static_cast<int32_t>(tiles_n), chosen ? x.swizzle : kWidestBand,
                           x.raster_order != 2};
  typename Kernel::Params params{{}, {}, typename Kernel::Scales(group_args(x)),
                                 static_cast<typename Kernel::Output const*>(x.bias),
                                 static_cast<typename Kernel::Output*>(x.d), x.ldd, x.m, x.n, x.k, order};
  if (describe_operand(params.a, x.a, x.m, x.k, x.lda, Kernel::kRowsA) != CUDA_SUCCESS ||
      describe_operand(params.b, x.b, x.n, x.k, x.ldb, Kernel::kRowsB) != CUDA_SUCCESS) {
    return GEMMILL_CANNOT_IMPLEMENT;
  }
  int64_t const clusters = std::min<int64_t>(tiles_m * tiles_n, std::max(x.sm_count / cluster, 1));
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(clusters * cluster), dim3(Kernel::kThreads), dim3(cluster), Kernel::kSharedBytes};
  return launch_kernel<entry>(shape, x.device, x.programmatic_launch, parameters, static_cast<cudaStream_t>(stream));
}

}  // namespace gemmill
