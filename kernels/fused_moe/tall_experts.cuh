// Fused experts of packed 4-bit weights that are folded, for tiles of 32 to 256 rows: as ordered_experts.cuh, with a main loop of its own.
//
// A CTA stays, and takes one tile after another. Two groups of 128 threads multiply 64 rows of weights each by all rows of a tile, so
// that a weight becomes a number once. Rows come in boxes: a tile of fewer rows loads and multiplies fewer boxes.
// Sums end by warps: each passes its 16 columns through shared memory of its own, and waits for no other. Stages of the next tile are
// loaded meanwhile. Three warps beside the one that loads finish what tiles leave: codes of whole rows, and sums of whole tokens.
#pragma once

#include "fused_moe/ordered_experts.cuh"

namespace gemmill::fused_moe {

// Sums of two tokens over their experts, in the order of these, of 128 columns from n0 on, by a warp. Tokens have up to 32 experts; `whole`
// says that all have weights. Parts are asked for together: where there is none another's is read (sums.cuh).
template <class Half, int kTogether>
__device__ __forceinline__ void sum_two(Params const& p, int const (&tokens)[2], bool const (&whole)[2], int n0, int lane) {
  auto const& x = p.x;
  int const n = n0 + lane * 4, column = min(n, x.hidden - 4);
  uint64_t own[2];
  int some[2];
  float sums[2][4] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int64_t const pairs = int64_t{tokens[j]} * x.topk;
    own[j] = whole[j] ? (uint64_t{1} << x.topk) - 1 : __ballot_sync(~0u, lane < x.topk && p.ws.local[pairs + lane] >= 0);
    some[j] = __ffsll(static_cast<long long>(own[j])) - 1;
  }
#pragma unroll 1
  for (int first = 0; first < x.topk; first += kTogether) {
    float4 parts[2][kTogether];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float const* const from = p.ws.parts + int64_t{tokens[j]} * x.topk * x.hidden + column;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        int const slot = own[j] >> (first + i) & 1 ? first + i : some[j];
        parts[j][i] = __ldcg(reinterpret_cast<float4 const*>(from + int64_t{slot} * x.hidden));
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        bool const has = own[j] >> (first + i) & 1;
        sums[j][0] += has ? parts[j][i].x : 0.0f, sums[j][1] += has ? parts[j][i].y : 0.0f;
        sums[j][2] += has ? parts[j][i].z : 0.0f, sums[j][3] += has ? parts[j][i].w : 0.0f;
      }
    }
  }
  if (n >= x.hidden) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    Half* const out = static_cast<Half*>(x.out) + tokens[j] * x.ldout + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), sums[j][i]) : sums[j][i]);
  }
}

// As `sum_stored`, of a tile of up to `most` rows: all are asked for together, and tokens are summed by twos.
template <class Half, int columns, int most, int together>
__device__ __forceinline__ void sum_tall(Params const& p, int first, int count, int n0) {
  static_assert(columns == 128, "a lane sums four columns");
  constexpr int kEach = most / 32;
  constexpr unsigned kNone = ~0u;
  auto const& x = p.x;
  int const lane = threadIdx.x % 32;
  int tokens[kEach], needed[kEach], before[kEach] = {};
  unsigned told[kEach];  // tokens that have all, twice their number; and one where all of their experts have weights
  __threadfence();
#pragma unroll
  for (int i = 0; i < kEach; ++i) tokens[i] = p.ws.order[first + min(i * 32 + lane, count - 1)] / x.topk;
#pragma unroll
  for (int i = 0; i < kEach; ++i) needed[i] = p.ws.needed[tokens[i]];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i * 32 + lane < count) before[i] = atomicAdd(p.ws.summed + int64_t{tokens[i]} * p.down.blocks + n0 / columns, 1);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bool const has_all = i * 32 + lane < count && before[i] + 1 >= needed[i];
    told[i] = has_all ? 2u * tokens[i] + (needed[i] == x.topk) : kNone;
  }
  __threadfence();
  unsigned waiting = kNone;  // of two tokens the first
#pragma unroll 1
  for (int i = 0; i < kEach; ++i) {
    for (unsigned whole = __ballot_sync(~0u, told[0] != kNone); whole != 0; whole &= whole - 1) {
      unsigned const found = __shfl_sync(~0u, told[0], __ffs(whole) - 1);
      if (x.topk > 32) {
        sum_token<Half, columns>(p, found / 2, found % 2 != 0, n0, lane);
      } else if (waiting == kNone) {
        waiting = found;
      } else {
        sum_two<Half, together>(p, {static_cast<int>(waiting / 2), static_cast<int>(found / 2)}, {waiting % 2 != 0, found % 2 != 0}, n0, lane);
        waiting = kNone;
      }
    }
#pragma unroll
    for (int j = 0; j + 1 < kEach; ++j) told[j] = told[j + 1];
  }
  if (waiting != kNone) sum_token<Half, columns>(p, waiting / 2, waiting % 2 != 0, n0, lane);
}

// Rows come in boxes of `box_rows`. `ctas` share a multiprocessor.
template <class Products, class Output, template <class> class Ending_, int box_rows, int ctas>
struct TallMm {
  using Mm = blockscaled::PackedMm<Products, Output, 2, 1>;
  using Ending = Ending_<Mm>;
  using Args = PackedArgs;
  using Input = typename Products::Input;
  using Block = typename Products::Block;
  using Filled = typename Mm::Filled;
  using Freed = typename Mm::Freed;
  using Ringed = moe::Ring<Products::kStages>;

  static constexpr uint32_t kSpread = Mm::kSpread;
  static constexpr int kRows = Mm::kRows, kTileM = Mm::kTileM, kStages = Mm::kStages, kColumns = Mm::kColumns;
  static constexpr int kBoxRows = box_rows, kBoxes = kTileM / kBoxRows, kBoxBytes = kBoxRows * 128;
  static constexpr int kConsumers = Mm::kConsumers, kThreads = kConsumers + 128;  // the warp that loads, and up to three that finish
  static constexpr int kFinishing = Ending::kFinishing, kEnds = 2 * kFinishing;   // tiles that are stored and not finished
  static constexpr int kChunk = std::min(kBoxRows, 32);  // rows whose sums a warp passes on at a time
  static constexpr int kPitch = 20;                      // sums from one row to the next: banks apart
  static constexpr int kCtas = ctas;                     // on a multiprocessor
  static constexpr int kEvenRegisters = 65536 / ctas / kThreads / 8 * 8, kOtherRegisters = ctas == 1 ? 88 : 48;
  static constexpr int kSumRegisters = (kEvenRegisters * kThreads - kOtherRegisters * 128) / kConsumers / 8 * 8;

  static_assert(Mm::kBlocks == 1 && !Products::kGrouped && kConsumers == 256 && kTileM % kBoxRows == 0, "two groups, and boxes of a block's columns");

  struct Boxes {  // of rows
    using Input = typename Products::Input;
    static constexpr int kColumns = Mm::kColumns, kTileM = kBoxRows;
  };
  struct Params {
    CUtensorMap tokens;  // boxes of rows of 128 bytes, swizzled by as many
    Args x;
    int32_t tiles_n;  // of an expert's weights
    int32_t blocks;   // of weights along K
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing
  };
  struct Tile {
    int32_t weights;  // below 0 behind the last tile
    int32_t m0, end;  // its rows
    int32_t n0;
  };
  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][kTileM * 128];
    alignas(128) char weights[kStages][Mm::kWeightBytes];
    alignas(16) float ends[kConsumers / 32][kChunk * kPitch];
    alignas(16) uint2 tables[std::max(Block::kEntries, 1)];
    Tile tiles[kStages];  // of those whose first stage is that
    Filled filled[kStages];
    Freed freed[kStages];
    Freed stored[kEnds], finished[kEnds];  // between those who store tiles and those who finish them
    Tile ending[kEnds];                    // of those
    int2 left[kEnds];                      // rows that finishers leave to those who multiply: the first, and the end
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static_assert(kSharedBytes <= (228 / ctas - 1) * 1024, "as much as a multiprocessor has");

  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.stored) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.finished) barrier.init(1);
      for (auto& rows : storage.left) rows = make_int2(0, 0);
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (Block::kEntries > 0) {
      for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    }
    __syncthreads();
    cutlass::arch::wait_on_dependent_grids();
    cutlass::arch::launch_dependent_grids();
    if (threadIdx.x >= kConsumers) {
      cutlass::arch::warpgroup_reg_dealloc<kOtherRegisters>();
      int const warp = (threadIdx.x - kConsumers) / 32;
      if (warp > 0 && warp <= kFinishing) {
        finish_tiles(params, storage, warp - 1);
      } else if (threadIdx.x == kConsumers) {
        produce(params, storage);
      }
      return;
    }
    cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
    multiply_tiles(params, storage);
  }

  __device__ static Tile find(Params const& params, int index) {
    moe::Span const span = Ending::tile_of(params.x, index / params.tiles_n);
    return {span.weights, span.begin, span.end, index % params.tiles_n * kRows};
  }
  __device__ static int boxes_of(Tile const& tile) { return (tile.end - tile.m0 + kBoxRows - 1) / kBoxRows; }

  // The number of a CTA's next tile. Tiles are taken as CTAs come to them: who codes or sums for others takes fewer.
  __device__ static int take(Params const& params) { return gridDim.x + atomicAdd(params.x.layer.ws.tile_count + Ending::kCounter, 1); }

  // Stages of tile after tile. Whose tile it is stands beside its first stage; behind the last tile comes a stage of none.
  __device__ static void produce(Params const& params, SharedStorage& storage) {
    Ringed ring;
    Tile tile = find(params, blockIdx.x);
    for (int index = take(params); tile.weights >= 0;) {
      Tile const next = find(params, index);  // while stages of this one are loaded
      index = take(params);
      prefetch_ends(params, tile);
      char const* weights[2];
      for (int g = 0; g < 2; ++g) {
        int64_t const row = min(tile.n0 / 64 + g, (params.x.n + 63) / 64 - 1);  // beyond the last 64 that 64 again, and not stored
        weights[g] = static_cast<char const*>(params.x.b) + tile.weights * params.x.b_stride_expert + row * params.blocks * Block::kBytes;
      }
      int const boxes = boxes_of(tile);
      for (int t = 0; t < params.blocks; ++t, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        if (t == 0) storage.tiles[ring.stage] = tile;
        auto& filled = storage.filled[ring.stage];
        filled.arrive_and_expect_tx(Mm::kWeightBytes + boxes * kBoxBytes);
        for (int g = 0; g < 2; ++g) {
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                       ::"r"(cute::cast_smem_ptr_to_uint(storage.weights[ring.stage] + g * Mm::kGroupBytes)), "l"(weights[g] + int64_t{t} * Block::kBytes),
                         "r"(Mm::kGroupBytes), "r"(cute::cast_smem_ptr_to_uint(&filled)), "l"(static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST))
                       : "memory");
        }
        for (int i = 0; i < boxes; ++i) {
          cute::SM90_TMA_LOAD_2D::copy(&params.tokens, reinterpret_cast<uint64_t*>(&filled), static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                       storage.tokens[ring.stage] + i * kBoxBytes, t * kColumns, tile.m0 + i * kBoxRows);
        }
      }
      tile = next;
    }
    storage.freed[ring.stage].wait(ring.phase ^ 1);
    storage.tiles[ring.stage] = tile;
    storage.filled[ring.stage].arrive();
  }

  // Into L2, where all writes meet.
  __device__ static void prefetch_ends(Params const& params, Tile const& tile) {
    for (int n = tile.n0; n < min(tile.n0 + kRows, params.x.n); n += 32) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(params.x.b_scales + int64_t{tile.weights} * params.x.n + n));
    }
  }

  __device__ static void multiply_tiles(Params const& params, SharedStorage& storage) {
    Ringed ring;
    moe::Ring<kEnds> ends;
    while (true) {
      storage.filled[ring.stage].wait(ring.phase);
      Tile const tile = storage.tiles[ring.stage];
      if (tile.weights < 0) break;
      multiply_boxes<kBoxes>(params, storage, tile, ring, boxes_of(tile));
      end_tile(params, storage, ends, tile);
    }
    Tile const none{-1, 0, 0, 0};
    for (int i = 0; i < kFinishing; ++i) end_tile(params, storage, ends, none);
    for (int i = kFinishing; i < kEnds; ++i, ends.next()) take_left(params, storage, ends);
  }

  // A tile is its finisher's.
  __device__ static void end_tile(Params const& params, SharedStorage& storage, moe::Ring<kEnds>& ends, Tile const& tile) {
    take_left(params, storage, ends);
    if (threadIdx.x == 0) storage.ending[ends.stage] = tile;
    if (threadIdx.x % 32 == 0) storage.stored[ends.stage].arrive();
    ends.next();
  }

  // What the finisher of a tile some tiles back has left.
  __device__ static void take_left(Params const& params, SharedStorage& storage, moe::Ring<kEnds> const& ends) {
    storage.finished[ends.stage].wait(ends.phase ^ 1);
    if constexpr (Ending::kLeaves) {
      int2 const rows = storage.left[ends.stage];
      for (int row = rows.x + threadIdx.x / 32; row < rows.y; row += kConsumers / 32) Ending::take_row(params.x, row);
    }
    __syncwarp();
  }

  // Fewer boxes than some, of whose rows there is an instruction.
  static constexpr int fewer(int boxes) {
    for (int rows = --boxes * kBoxRows; rows % 64 != 0 && (rows & (rows - 1)) != 0; rows -= kBoxRows) --boxes;
    return boxes;
  }
  template <int boxes>
  __device__ static void multiply_boxes(Params const& params, SharedStorage& storage, Tile const& tile, Ringed& ring, int count) {
    if constexpr (fewer(boxes) > 0) {
      if (count <= fewer(boxes)) return multiply_boxes<fewer(boxes)>(params, storage, tile, ring, count);
    }
    multiply<boxes>(params, storage, tile, ring);
  }

  // A tile of some boxes of rows. While one half of a block is multiplied, the other is made.
  template <int boxes>
  __device__ static void multiply(Params const& params, SharedStorage& storage, Tile const& tile, Ringed& ring) {
    using namespace cute;
    using Op = decltype(GMMA::rs_op_selector<Input, Input, float, Shape<_64, Int<boxes * kBoxRows>, Int<Products::kSpan>>>());
    decltype(make_tiled_mma(Op{})) mma;
    // A descriptor of rows says where they begin, and is the same for all numbers of boxes.
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Input*>(&storage.tokens[0][0])), typename Products::TokenLayout{});
    typename Products::TiledMma whole;
    int const thread = threadIdx.x % 128, row_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    auto thread_mma = whole.get_thread_slice(thread);
    auto fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens));
    auto sums = partition_fragment_C(mma, Shape<_64, Int<boxes * kBoxRows>>{});
    clear(sums);
    auto left = make_tensor<Input>(typename Products::Fragment{}), right = make_tensor<Input>(typename Products::Fragment{});
    uint32_t const own = cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * Block::kBytes;
    uint32_t const told = Block::kEntries > 0 ? cast_smem_ptr_to_uint(storage.tables) : params.spread;

    auto product = [&](auto& fragment, int step, int stage) {
      warpgroup_fence_operand(fragment);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      gemm(mma, fragment(_, _, 0), fragment_t(_, _, step, stage), sums);
      gemm(mma, fragment(_, _, 1), fragment_t(_, _, step + 1, stage), sums);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other fragment is free again
    };
    int before = ring.stage;
    for (int t = 0; t < params.blocks; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      Block block;
      block.load(own + ring.stage * sizeof(storage.weights[0]), thread);
      block.template operand<0>(told, reinterpret_cast<uint32_t*>(&left(0)));
      product(left, 0, ring.stage);
      if (t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
      block.template operand<1>(told, reinterpret_cast<uint32_t*>(&right(0)));
      product(right, 2, ring.stage);
      before = ring.stage;
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    if (thread % 32 == 0) storage.freed[before].arrive();
    store<boxes>(params, storage.ends[threadIdx.x / 32], tile, sums);
  }

  // A warp's 16 columns of a tile, some rows at a time. What the next rows are multiplied by is asked for before these are stored.
  template <int boxes, class Sums>
  __device__ static void store(Params const& params, float* buffer, Tile const& tile, Sums const& sums) {
    constexpr int kTurns = boxes * kBoxRows / kChunk, kOwn = kChunk / 8;
    int const lane = threadIdx.x % 32, m0 = tile.m0 + lane / 4, n = tile.n0 + threadIdx.x / 32 * 16 + lane % 4 * 4;
    Ending const ending(params.x, tile.weights, n);
    typename Ending::Row rows[2][kOwn];
    auto ask = [&](int turn) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOwn; ++i) rows[turn % 2][i] = Ending::row_of(params.x, min(m0 + turn * kChunk + i * 8, tile.end - 1));
    };
    ask(0);
    CUTLASS_PRAGMA_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn + 1 < kTurns) ask(turn + 1);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kChunk / 2; ++i) {
        int const row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        buffer[row * kPitch + lane / 4 + i / 2 % 2 * 8] = sums(turn * kChunk / 2 + i);
      }
      __syncwarp();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        float4 const found = *reinterpret_cast<float4 const*>(buffer + (lane / 4 + i * 8) * kPitch + lane % 4 * 4);
        float const quad[4] = {found.x, found.y, found.z, found.w};
        int const m = m0 + turn * kChunk + i * 8;
        if (m < tile.end && n < params.x.n) ending.put_row(params.x, quad, m, n, rows[turn % 2][i]);
      }
      __syncwarp();
    }
  }

  // What is left of this CTA's tiles: warps take turns.
  __device__ static void finish_tiles(Params const& params, SharedStorage& storage, int warp) {
    for (int i = warp;; i += kFinishing) {
      storage.stored[i % kEnds].wait(i / kEnds % 2);
      Tile const tile = storage.ending[i % kEnds];
      if (tile.weights < 0) return;
      bool const leaves = Ending::template finish_tall<TallMm>(params.x, tile.m0, tile.end, tile.n0);
      if (threadIdx.x % 32 == 0) storage.left[i % kEnds] = leaves ? make_int2(tile.m0, tile.end) : make_int2(0, 0);
      __syncwarp();
      if (threadIdx.x % 32 == 0) storage.finished[i % kEnds].arrive();
    }
  }
};

// The ending of the first product.
template <class Mm>
struct TallGatedRows : GatedRows<Mm> {
  using Args = PackedArgs;
  static constexpr int kFinishing = 1, kCounter = 1;
  static constexpr bool kLeaves = Mm::kScaled;
  using GatedRows<Mm>::GatedRows;
  struct Row {
    float weight, scale;
  };

  __device__ static Row row_of(Args const& x, int m) {
    auto const& of = x.layer.x;
    return {of.weight_on_input ? router_weight(of, x.layer.ws.order[m]) : 1.0f, Mm::kScaled ? x.a_scales[m] : 1.0f};
  }
  __device__ void put_row(Args const& x, float const (&quad)[4], int m, int n, Row const& row) const { this->put(x, quad, m, n, row.weight, row.scale); }

  // Whether all columns of a tile's rows are stored: then those who multiply code them.
  template <class Kernel>
  __device__ static bool finish_tall(Args const& x, int m0, int, int) {
    if constexpr (!kLeaves) return false;
    __threadfence();
    int last = 0;
    if (threadIdx.x % 32 == 0) last = atomicAdd(x.layer.ws.finished + m0, 1) == (x.n - 1) / Kernel::kRows;
    __threadfence();
    return __shfl_sync(~0u, last, 0) != 0;
  }

  // A row's results to codes, by a warp, which holds a row of up to 2048.
  __device__ static void take_row(Args const& x, int64_t row) {
    constexpr int kHeld = 16;
    auto const& of = x.layer;
    int const lane = threadIdx.x % 32, pieces = of.x.inner / 4;
    float4 const* const values = reinterpret_cast<float4 const*>(of.ws.results + row * of.x.inner);
    auto* const codes = reinterpret_cast<uint32_t*>(of.ws.inner_codes + row * of.x.inner);
    if (pieces > 32 * kHeld) return code_row<32>([&](int piece) { return __ldcg(values + piece); }, codes, of.x.inner, of.ws.inner_scales + row);
    float4 held[kHeld];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) held[i] = __ldcg(values + min(lane + i * 32, pieces - 1));
    float largest = 0.0f;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) largest = largest_of(held[i], largest);
    Coding const coding(quant::reduce_lanes<32>(largest, quant::Max{}), INFINITY);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      if (lane + i * 32 < pieces) codes[lane + i * 32] = word_of(coding, held[i]);
    }
    if (lane == 0) of.ws.inner_scales[row] = coding.scale;
  }
};

// The ending of the second.
template <class Mm>
struct TallParts : WeighedParts<Mm> {
  using Args = PackedArgs;
  static constexpr int kFinishing = 3, kCounter = 2;
  static constexpr bool kLeaves = false;
  using WeighedParts<Mm>::WeighedParts;
  struct Row {
    int pair;
    float weight, scale;
  };

  __device__ static Row row_of(Args const& x, int m) {
    return {x.layer.ws.order[m], x.layer.x.weight_on_input ? 1.0f : x.a_scales[m], Mm::kScaled ? x.layer.ws.inner_scales[m] : 1.0f};
  }
  __device__ void put_row(Args const& x, float const (&quad)[4], int, int n, Row const& row) const { this->put(x, quad, row.pair, n, row.weight, row.scale); }

  template <class Kernel>
  __device__ static bool finish_tall(Args const& x, int m0, int end, int n0) {
    sum_tall<__nv_bfloat16, Kernel::kRows, Kernel::kTileM, Kernel::kCtas == 1 ? 6 : 2>(x.layer, m0, end - m0, n0);
    return false;
  }
};

// Host code: three launches.
template <class First, class Up, class Down, auto prepare, auto up, auto down>
int32_t launch_tall_experts(gemmill_fused_experts_args const& x, gemmill_launch const& how) {
  return launch_ordered_experts<First, Up, Down, prepare, up, down, typename Up::Boxes, typename Down::Boxes>(x, how);
}

}  // namespace gemmill::fused_moe
