// Grouped GEMMs of packed 4-bit weights on Hopper: D[i, n] = alpha[e] * base[e, n] * scale[r] * sum over k of A[r, k] W[e, n, k] +
// bias[e, n], e being the expert of row i, and r its row of A. A is of bf16, or of e4m3 with a scale for each row.
//
// Blocks of weights, and how threads make operands of them, are packed_mm.cuh's: weights fill the tensor core's rows, tokens its columns.
// The division of the work differs. CTAs are persistent, and take tiles of all experts in turn. One warp, or four for a large M, loads
// stages of one tile after another without a pause, while others multiply and store: so the kernel reads memory at the beginning and at
// the end of a tile as in its middle.
//
// Tiles of the same weights and of different rows are neighbours, so that these weights come from memory once. TMA loads rows in order.
// Threads copy rows by their numbers, 16 bytes each, to where TMA would have put them; the multiplying groups make those bytes visible to
// the tensor core after they have waited for them.
//
// Before the kernel ahead of this one has ended it reads nothing: which weights it needs is unknown. An epilogue may know tiles before.
#pragma once

#include "core/shared_memory.cuh"
#include "gemm/packed_mm.cuh"
#include "gemm/tensor_map.h"
#include "gemm/work_tile.cuh"

namespace gemmill::moe {

inline constexpr int kMostExperts = 512;

// The epilogue of a tile: it scales sums of a thread's four columns, and stores them as they are. Another epilogue has the same functions,
// and arguments that begin with a grouped GEMM's.
template <class Mm>
struct StoredRows {
  using Args = gemmill_grouped_mm_args;
  using Output = typename Mm::Output;
  // Threads that do the rest of a stored tile, while others go on. Without any, the threads that stored it do it.
  static constexpr int kFinishers = 0;
  // Whether a launch before listed the tiles of rows, for Epilogue::tile_of.
  static constexpr bool kListed = false;
  // Whether those tiles can be read before the last launch has ended: then the kernel loads weights, too.
  static constexpr bool kFollows = false;
  // Whether there is a function ask, of the row that a thread stores.
  static constexpr bool kAsks = false;
  // Tiles of at most kMost rows, which who gathers them finds without a list.
  struct Few {
    static constexpr int kMost = 0;
  };

  float factors[4], bias[4];

  // Of columns n to n + 3 of an expert's weights.
  __device__ StoredRows(gemmill_grouped_mm_args const& x, int weights, int n) {
    float const alpha = (x.alpha == nullptr ? 1.0f : x.alpha[weights]) * Mm::Block::kShort;
    int64_t const of_expert = int64_t{weights} * x.n;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int64_t const at = of_expert + min(n + i, x.n - 1);
      factors[i] = x.b_scales[at] * alpha;
      bias[i] = x.bias == nullptr ? 0.0f : static_cast<float>(static_cast<Output const*>(x.bias)[at]);
    }
  }

  // Sums of row m of D, which ends with its expert's; `whole`: whether rows of D begin at multiples of 8 bytes; `asks`: whether `ask` was
  // called of this row.
  template <bool asks>
  __device__ void take(gemmill_grouped_mm_args const& x, bool whole, float const (&quad)[4], int m, int end, int n) const {
    Output* const row = static_cast<Output*>(x.d) + m * x.ldd + n;
    float scale = 1.0f;
    if constexpr (Mm::kScaled) scale = scale_of(x, m, end);
    cutlass::AlignedArray<Output, 4> values;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float const scaled = quad[i] * factors[i] * scale;
      values[i] = Output(x.bias == nullptr ? scaled : scaled + bias[i]);
    }
    if (n + 4 <= x.n && whole) {
      *reinterpret_cast<cutlass::AlignedArray<Output, 4>*>(row) = values;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i < x.n) row[i] = values[i];
      }
    }
  }

  // Rows m0 up to `end` of a tile, of columns from n0 on, are taken: told by all threads that take them, or by finishers.
  template <class Kernel>
  __device__ static void finish(Args const&, int, int, int) {}
};

// Whether a group's warps multiply rows of their own (row_products.cuh).
template <class Products>
inline constexpr bool kByRows = false;

// Groups of threads on different rows of weights, and groups that divide the columns of a stage, as in a PackedMm. `loaders` threads
// load.
template <class Products, class Output, int row_groups, int k_groups, int loaders, template <class> class Epilogue_ = StoredRows>
struct PackedGroupedMm {
  using Mm = blockscaled::PackedMm<Products, Output, row_groups, k_groups>;
  using Epilogue = Epilogue_<Mm>;
  using Args = typename Epilogue::Args;
  using Input = typename Products::Input;
  using Block = typename Products::Block;
  using Stages = PipelineState<Products::kStages>;

  static constexpr uint32_t kSpread = Mm::kSpread;
  static constexpr int kRows = Mm::kRows, kTileM = Mm::kTileM, kBlocks = Mm::kBlocks, kStages = Mm::kStages;
  static constexpr int kColumns = Mm::kColumns, kTileK = Mm::kTileK, kPitch = Mm::kPitch, kConsumers = Mm::kConsumers;
  static constexpr int kThreads = kConsumers + loaders + Epilogue::kFinishers;
  static constexpr int kEnds = 4;                                                          // stored tiles with work left
  static constexpr int kChunk = Products::kThreads == 32 ? kTileM : std::min(kTileM, 16);  // tokens whose sums meet at a time
  static constexpr int kPiece = 16 / sizeof(Input);                                        // columns that a thread copies at a time
  static constexpr bool kRoomy = Products::kThreads == 32 || kTileM == 8;  // products leave registers for the epilogue's data
  // Whether a thread stores one row of a tile at most, so that it can load that row's data before it multiplies.
  static constexpr bool kOneRow = Epilogue::kAsks && kRoomy && kChunk == kTileM && kConsumers / (kRows / 4) >= kTileM;
  static constexpr int kRowsAtOnce = loaders / 8, kOwnRows = kTileM / kRowsAtOnce;         // eight threads copy a row

  static_assert(!Products::kGrouped, "tokens have scales of rows");
  static_assert(k_groups * Products::kEach == Products::kParts, "groups divide the parts of a stage evenly");
  static_assert(kTileM % kChunk == 0, "sums meet in whole chunks");
  static_assert(kTileM % kRowsAtOnce == 0, "a thread copies as many rows as another");

  struct Params {
    CUtensorMap tokens;  // of rows in order: boxes of tile_m rows of 128 bytes, swizzled by as many
    Args x;
    int32_t tiles_n;  // of an expert's weights
    int32_t blocks;   // of weights along K, a multiple of kBlocks
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing
    bool whole_quads;  // whether rows of D begin at multiples of 8 bytes
  };

  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][Mm::kTokenBytes];
    alignas(128) char weights[kStages][Mm::kWeightBytes];
    alignas(16) float sums[k_groups * kChunk * kPitch];
    alignas(16) uint2 tables[std::max(Block::kEntries, 1)];
    int32_t first[kMostExperts + 1];  // tile of rows of each expert; the end
    WorkTile tiles[kStages];              // of those whose first stage is that
    Filled filled[kStages];
    Freed freed[kStages];
    Freed stored[kEnds], finished[kEnds];  // between the threads that store tiles and finishers
    int32_t gathers;
    int32_t sources[std::max(Epilogue::Few::kMost, 1)];  // rows of A of few rows
    static constexpr bool kPersistent = true;

    // Copies by other threads need a fence before the tensor core reads them, unlike TMA's.
    __device__ void show_to_tensor_core() const {
      asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p fence.proxy.async.shared::cta;}" ::"r"(gathers) : "memory");
    }
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;           // room to align the base
  static constexpr int kCtas = kSharedBytes <= most_shared(2) && kTileM <= 64 ? 2 : 1;  // on a multiprocessor
  static_assert(kSharedBytes <= most_shared(1), "as much as a multiprocessor has");

  static bool describe(Params& params, Args const& x) { return x.token_ids != nullptr || describe_rows<Input>(params.tokens, x, kTileM); }

  // By an offset the compiler knows that it is of shared memory, by a rounded address it does not: that cost tiles by warps up to 392 bytes of
  // spilled registers. Others stay as they were timed.
  __device__ static char* base_of(char* shared) {
    if constexpr (Epilogue::kListed && kRoomy) return shared + (-cute::cast_smem_ptr_to_uint(shared) & 1023);
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared) + 1023) & ~uintptr_t(1023));
  }

  __device__ static void run(Params const& params, char* shared) {
    auto& storage = *reinterpret_cast<SharedStorage*>(base_of(shared));
    bool const gathers = params.x.token_ids != nullptr;
    if (threadIdx.x == kConsumers) {
      if (!gathers) cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(gathers ? 1 + loaders : 1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.stored) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.finished) barrier.init(1);
      cutlass::arch::fence_barrier_init();
      storage.gathers = gathers;
    }
    if constexpr (Block::kEntries > 0) {
      for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    }
    bool const finds = finds_tiles(params);
    begin(params, storage, finds);
    // Lists that the launch before the last made are read by plain loads: without the wait an L1 cache may answer with older ones.
    if constexpr (Epilogue::kFollows) {
      if (threadIdx.x < kConsumers || threadIdx.x >= kConsumers + loaders) cutlass::arch::wait_on_dependent_grids();
    }
    if (finds && threadIdx.x < kConsumers) wait_and_launch_dependents();
    if (threadIdx.x >= kConsumers + loaders) {
      if constexpr (Epilogue::kFinishers > 0) finish_tiles(params, storage);
      return;
    }
    if (threadIdx.x >= kConsumers) {
      if (gathers || threadIdx.x == kConsumers) produce(params, storage, finds);
      return;
    }
    int const group = __shfl_sync(~0u, threadIdx.x / Products::kThreads, 0), row_group = group % row_groups, part = group / row_groups;
    uint32_t const told = Block::kEntries > 0 ? cute::cast_smem_ptr_to_uint(storage.tables) : params.spread;
    Stages ring;
    PipelineState<kEnds> ends;
    while (true) {
      storage.filled[ring.stage].wait(ring.phase);
      WorkTile const tile = storage.tiles[ring.stage];
      if (tile.weights < 0) return;
      int const n = tile.n0 + threadIdx.x % (kRows / 4) * 4;
      if constexpr (kRoomy) {
        Epilogue epilogue(params.x, tile.weights, n);
        if constexpr (kOneRow) epilogue.ask(params.x, min(tile.m0 + static_cast<int>(threadIdx.x) / (kRows / 4), tile.end - 1));
        auto const sums = multiply(params, storage, told, ring, row_group, part);
        store<0>(params, storage.sums, tile, sums, epilogue, row_group * 64, part);
      } else {
        auto const sums = multiply(params, storage, told, ring, row_group, part);
        store<0>(params, storage.sums, tile, sums, Epilogue(params.x, tile.weights, n), row_group * 64, part);
      }
      if constexpr (Epilogue::kFinishers > 0) {
        storage.finished[ends.stage].wait(ends.phase ^ 1);
        __syncwarp();
        if (threadIdx.x % 32 == 0) storage.stored[ends.stage].arrive();
        ends.next();
      } else {
        Epilogue::template finish<PackedGroupedMm>(params.x, tile.m0, tile.end, tile.n0);
      }
    }
  }

  // The sums of a tile, in registers.
  __device__ static auto multiply(Params const& params, SharedStorage& storage, uint32_t told, Stages& ring, int row_group, int part) {
    int const count = params.blocks / kBlocks;
    if constexpr (Products::kThreads == 32) {
      return Products::template consume<1, Products>(storage, told, ring, count, row_group, part * Products::kEach, 0);
    } else if constexpr (kByRows<Products>) {
      return Products::consume(storage, told, ring, count, row_group);
    } else {
      return multiply_by_warpgroup(storage, told, ring, count, row_group);
    }
  }

  // Those of a group of 128 threads, as WarpgroupProducts has them: with one function for both, ptxas allocates other registers.
  __device__ static auto multiply_by_warpgroup(SharedStorage& storage, uint32_t told, Stages& ring, int count, int row_group) {
    using namespace cute;
    static_assert(k_groups == 1, "a group of 128 threads multiplies all columns of a stage");
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Input*>(&storage.tokens[0][0])), typename Products::TokenLayout{});
    typename Products::TiledMma mma;
    int const thread = threadIdx.x % Products::kThreads;
    auto thread_mma = mma.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<Products::kTileM>>{});
    clear(sums);
    auto left = make_tensor<Input>(typename Products::Fragment{}), right = make_tensor<Input>(typename Products::Fragment{});
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * Products::kBlocks * Block::kBytes;

    auto multiply = [&](auto& fragment, int step, int stage) {
      warpgroup_fence_operand(fragment);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment(_, _, 0), fragment_t(_, _, step, stage), sums);
      gemm(mma, fragment(_, _, 1), fragment_t(_, _, step + 1, stage), sums);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other fragment is free again
    };
    int before = 0;
    for (int t = 0; t < count; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      storage.show_to_tensor_core();
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < Products::kBlocks; ++b) {
        Block block;
        block.load(own + ring.stage * sizeof(storage.weights[0]) + b * Block::kBytes, thread);
        block.template operand<0>(told, reinterpret_cast<uint32_t*>(&left(0)));
        multiply(left, b * 4, ring.stage);
        if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
        block.template operand<1>(told, reinterpret_cast<uint32_t*>(&right(0)));
        multiply(right, b * 4 + 2, ring.stage);
      }
      before = ring.stage;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    if (count > 0 && thread % 32 == 0) storage.freed[before].arrive();
    return sums;
  }

  // Until tiles are known. A launch that another follows lets it begin when all ahead of both have ended.
  __device__ static void begin(Params const& params, SharedStorage& storage, bool finds) {
    if constexpr (!Epilogue::kListed) {
      cutlass::arch::launch_dependent_grids();
      cutlass::arch::wait_on_dependent_grids();
      count_tiles(params, storage.first);
    } else {
      if constexpr (!Epilogue::kFollows) {
        if (!finds) wait_and_launch_dependents();
      }
      __syncthreads();
    }
  }

  // Whether threads that gather rows find tiles before the list has them.
  __device__ static bool finds_tiles(Params const& params) {
    if constexpr (Epilogue::Few::kMost > 0 && loaders == 32) return params.x.token_ids != nullptr && params.x.m <= Epilogue::Few::kMost;
    return false;
  }

  // The rest of this CTA's tiles: warps of finishers take turns.
  __device__ static void finish_tiles(Params const& params, SharedStorage& storage) {
    constexpr int kWarps = Epilogue::kFinishers / 32;
    static_assert(kEnds % kWarps == 0, "a warp has the same places in every round");
    for (int i = (threadIdx.x - kConsumers - loaders) / 32;; i += kWarps) {
      WorkTile const tile = find(params, storage.first, blockIdx.x + i * gridDim.x);
      if (tile.weights < 0) return;
      auto const asked = Epilogue::template ask_rows<PackedGroupedMm>(params.x, tile.m0, tile.end);
      storage.stored[i % kEnds].wait(i / kEnds % 2);
      Epilogue::template finish<PackedGroupedMm>(params.x, tile.m0, tile.end, tile.n0, asked);
      __syncwarp();
      if (threadIdx.x % 32 == 0) storage.finished[i % kEnds].arrive();
    }
  }

  // The first tile of rows of each expert: as many experts to each lane of a warp, whose tiles come after those of lower lanes.
  // Offsets that decrease may make more tiles than can be numbered: those past the last number are left out.
  __device__ static void count_tiles(Params const& params, int32_t* first) {
    auto const& x = params.x;
    int64_t const most = (INT_MAX - gridDim.x) / params.tiles_n;
    for (int e = threadIdx.x; e < x.experts; e += kThreads) {
      Span const span = span_of(x, e);
      first[e + 1] = span.end > span.begin ? (span.end - span.begin - 1) / kTileM + 1 : 0;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      int const each = (x.experts + 31) / 32, begin = threadIdx.x * each, end = min(begin + each, x.experts);
      int64_t own = 0;
      for (int e = begin; e < end; ++e) own += first[e + 1];
      int64_t up_to = own;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < 32; i *= 2) {
        int64_t const other = __shfl_up_sync(~0u, up_to, i);
        if (threadIdx.x >= i) up_to += other;
      }
      up_to -= own;
      for (int e = begin; e < end; ++e) {
        up_to += first[e + 1];
        first[e + 1] = static_cast<int32_t>(up_to < most ? up_to : most);
      }
      if (threadIdx.x == 0) first[0] = 0;
    }
    __syncthreads();
  }

  // The tile of a number, of all experts'.
  __device__ static WorkTile find(Params const& params, int32_t const* first, int index) {
    int const of_rows = index / params.tiles_n;
    if constexpr (Epilogue::kListed) return work_tile_of(Epilogue::tile_of(params.x, of_rows), index, params.tiles_n, kRows);
    int low = 0, high = params.x.experts;
    if (of_rows >= first[high]) return {-1, 0, 0, 0};
    while (high - low > 1) {
      int const middle = (low + high) / 2;
      (first[middle] <= of_rows ? low : high) = middle;
    }
    Span const span = span_of(params.x, low);
    int const inside = index - first[low] * params.tiles_n, tiles_m = first[low + 1] - first[low];
    return {span.weights, span.begin + inside % tiles_m * kTileM, span.end, inside / tiles_m * kRows};
  }

  // Stages of tile after tile. One thread asks for weights, and for rows in order; rows by their numbers all loaders copy. A stage's tile
  // is named next to the tile's first stage; behind the last tile comes a stage of none. The loader requests the tile after the next when
  // stages of one are on their way.
  __device__ static void produce(Params const& params, SharedStorage& storage, bool finds) {
    Stages ring;
    bool const gathers = params.x.token_ids != nullptr;
    int const thread = threadIdx.x - kConsumers;
    int32_t const* ids = params.x.token_ids;
    typename Epilogue::Few few;
    if constexpr (Epilogue::Few::kMost > 0) {
      if (finds) few.find(params.x, storage.sources), ids = storage.sources;
    }
    auto const tile_at = [&](int index) -> WorkTile {
      if constexpr (Epilogue::Few::kMost > 0) {
        if (!finds) return find(params, storage.first, index);
        return work_tile_of(few.tile_of(index / params.tiles_n), index, params.tiles_n, kRows);
      }
      return find(params, storage.first, index);
    };
    WorkTile tile = tile_at(blockIdx.x), next = tile_at(blockIdx.x + gridDim.x);
    int early = 0;  // stages of which the weights are on their way
    if (Epilogue::kFollows || (finds && Mm::kScaled)) {
      early = load_early(params, storage, tile_at, tile, thread, gathers ? 0 : Mm::kTokenBytes);
      cutlass::arch::wait_on_dependent_grids();
      if (Epilogue::kFollows) cutlass::arch::launch_dependent_grids();
    }
    int32_t asked[kOwnRows];
    if (gathers) ask_sources(params.x, ids, tile, thread, asked);
    for (int index = blockIdx.x;;) {
      if (tile.weights < 0) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        if (thread == 0) {
          storage.tiles[ring.stage] = tile;
          storage.filled[ring.stage].arrive();
        }
        if (gathers) storage.filled[ring.stage].arrive();
        return;
      }
      if (thread == 0) prefetch_scales<kRows>(params.x, tile);
      int32_t sources[kOwnRows];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOwnRows; ++i) sources[i] = asked[i];
      if (gathers) ask_sources(params.x, ids, next, thread, asked);
      for (int t = 0; t < params.blocks / kBlocks; ++t, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        auto& filled = storage.filled[ring.stage];
        if (thread == 0 && t == 0) storage.tiles[ring.stage] = tile;
        if (thread == 0 && early-- <= 0) load_weights(params, storage, tile, t, ring.stage, gathers ? 0 : Mm::kTokenBytes);
        if (gathers) {
          copy_rows(params.x, storage, sources, tile.end - tile.m0, t * kTileK, ring.stage, thread);
          continue;
        }
        for (int b = 0; b < kBlocks; ++b) load_box(params.tokens, filled, storage.tokens[ring.stage] + b * Mm::kBoxBytes, t * kTileK + b * kColumns, tile.m0);
      }
      index += gridDim.x;
      tile = next;
      next = tile_at(index + gridDim.x);
    }
  }

  // Weights of the first stages.
  template <class TileAt>
  __device__ static int load_early(Params const& params, SharedStorage& storage, TileAt const& tile_at, WorkTile tile, int thread, int others) {
    int stage = 0;
    for (int index = blockIdx.x; tile.weights >= 0;) {
      for (int t = 0; t < params.blocks / kBlocks && stage < kStages; ++t, ++stage) {
        if (thread == 0) load_weights(params, storage, tile, t, stage, others);
      }
      if (stage == kStages) break;
      index += gridDim.x;
      tile = tile_at(index);
    }
    return stage;
  }

  // Announces all bytes that TMA brings for a stage, and loads its weights. Rows beyond the last 64 are that 64's again, and not stored.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, WorkTile const& tile, int t, int stage, int others) {
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(Mm::kWeightBytes + others);
    char const* const of_expert = static_cast<char const*>(params.x.b) + tile.weights * params.x.b_stride_expert;
    for (int g = 0; g < row_groups; ++g) {
      int64_t const row = min(tile.n0 / 64 + g, (params.x.n + 63) / 64 - 1);
      load_bulk(cute::cast_smem_ptr_to_uint(storage.weights[stage] + g * Mm::kGroupBytes), of_expert + (row * params.blocks + t * kBlocks) * Block::kBytes, Mm::kGroupBytes, filled);
    }
  }

  // Rows of A for those rows of a tile that this thread copies. Nothing here waits for them.
  __device__ static void ask_sources(gemmill_grouped_mm_args const& x, int32_t const* ids, WorkTile const& tile, int thread, int32_t (&sources)[kOwnRows]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      int64_t const row = int64_t{tile.m0} + i * kRowsAtOnce + thread / 8;
      sources[i] = tile.weights >= 0 && row < tile.end ? ids[row * x.id_words] : -1;
    }
  }

  // A stage's rows by their numbers, swizzled as TMA would: piece p of 16 bytes of row r lies at p ^ (r % 8). Zeros stand for rows that A
  // has not, and for columns beyond K. Multiplications cover bytes behind the `rows` rows of a tile, and no store does.
  __device__ static void copy_rows(gemmill_grouped_mm_args const& x, SharedStorage& storage, int32_t const (&sources)[kOwnRows], int rows,
                                   int k0, int stage, int thread) {
    int const piece = thread % 8;
    uint32_t const to = cute::cast_smem_ptr_to_uint(storage.tokens[stage]);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      int const row = i * kRowsAtOnce + thread / 8;
      if (row >= rows) break;
      bool const has = sources[i] >= 0 && sources[i] < x.tokens;
      char const* const from = static_cast<char const*>(x.a) + (has ? sources[i] * x.lda * static_cast<int64_t>(sizeof(Input)) : 0);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        int const column = k0 + b * kColumns + piece * kPiece;
        bool const inside = has && column < x.k;
        // Readers wait for the barrier below: no clobber of memory here, which would have every copy wait for its number.
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(to + b * Mm::kBoxBytes + row * 128 + ((piece ^ row % 8) << 4)),
                       "l"(from + (inside ? column * static_cast<int64_t>(sizeof(Input)) : 0)), "r"(inside ? 16 : 0));
      }
    }
    arrive_after_copies(storage.filled[stage]);
  }

  // Sums of some tokens at a time meet in shared memory, add up in order of K, and become rows of D.
  template <int chunk, class Sums>
  __device__ static void store(Params const& params, float* buffer, WorkTile const& tile, Sums const& sums, Epilogue const& epilogue, int row, int part) {
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // all have read those before
    Products::template put_chunk<kChunk, kPitch, chunk>(sums, buffer + part * kChunk * kPitch + row);
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    int const m0 = tile.m0 + chunk * kChunk, n = tile.n0 + threadIdx.x % (kRows / 4) * 4;
    if (m0 >= tile.end) return;
    for (int token = threadIdx.x / (kRows / 4); token < kChunk; token += kConsumers / (kRows / 4)) {
      if (m0 + token >= tile.end || n >= params.x.n) break;
      float4 const* from = reinterpret_cast<float4 const*>(buffer + token * kPitch + n - tile.n0);
      float quad[4] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int p = 0; p < k_groups; ++p) {
        float4 const part_of = from[p * kChunk * kPitch / 4];
        quad[0] += part_of.x, quad[1] += part_of.y, quad[2] += part_of.z, quad[3] += part_of.w;
      }
      epilogue.template take<kOneRow>(params.x, params.whole_quads, quad, m0 + token, tile.end, n);
    }
    if constexpr ((chunk + 1) * kChunk < kTileM) store<chunk + 1>(params, buffer, tile, sums, epilogue, row, part);
  }
};

// Host code: a launch.
template <class Kernel, auto entry>
int32_t launch_packed_grouped(gemmill_grouped_mm_args const& x, gemmill_launch const& how) {
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (!Kernel::describe(params, x)) return GEMMILL_CANNOT_IMPLEMENT;
  params.x = x;
  params.tiles_n = (x.n - 1) / Kernel::kRows + 1;
  params.blocks = static_cast<int32_t>((int64_t{x.k} + blockscaled::kStageColumns - 1) / blockscaled::kStageColumns *
                                       (blockscaled::kStageColumns / Kernel::kColumns));
  params.spread = Kernel::kSpread;
  params.whole_quads = x.ldd % 4 == 0 && reinterpret_cast<uintptr_t>(x.d) % 8 == 0;
  int64_t const of_rows = x.slot != 0 ? (int64_t{x.slot} + Kernel::kTileM - 1) / Kernel::kTileM * x.experts
                                      : x.m / Kernel::kTileM + std::min(x.m, x.experts);
  int64_t const tiles = of_rows * params.tiles_n;
  if (tiles > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const ctas = std::min<int64_t>(tiles, int64_t{how.sm_count} * Kernel::kCtas);
  LaunchShape const shape{dim3(static_cast<unsigned>(ctas)), dim3(Kernel::kThreads), dim3(1), Kernel::kSharedBytes};
  void* parameters[] = {&params};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::moe
