// Fused experts of packed 4-bit weights that fold, for tiles of 32 to 224 rows: rows in order as in ordered_experts.cuh.
//
// CTAs are persistent; a tile is 128 rows of weights by the rows of an expert. Two groups of 128 threads multiply 64 rows of weights each
// by all rows of the tile, so that a weight becomes a number once. They leave a tile's sums in shared memory, scaled and rounded to bf16,
// and multiply the next.
//
// Next to them one warp loads. Three run epilogues: activations and codes of the first product, parts of the second. They need as long as
// the others multiply, and no more. After the last part is there, all threads of all CTAs sum tokens.
#pragma once

#include "fused_experts/fold_block.cuh"
#include "fused_experts/prefill_epilogue.cuh"
#include "gemm/wgmma.cuh"

namespace gemmill::fused_moe {

inline constexpr int kUnitRows = 16;  // multiplications take multiples of so many rows of a tile

template <class Block_, int tile_m, int stages, template <class> class Epilogue_>
struct PrefillMm {
  using Mm = PrefillMm;
  // Codes of few rows fold with fewer instructions; where the tensor core has more rows of a block to multiply, that takes 3 to 4 % longer.
  using Block = std::conditional_t<(tile_m <= 48), QuickBlock<Block_>, Block_>;
  using Epilogue = Epilogue_<PrefillMm>;
  using Args = PackedArgs;
  using Input = typename Block::Input;

  static constexpr bool kScaled = true;
  static constexpr uint32_t kSpread = Block::kSpread;
  static constexpr int kTileM = tile_m, kStages = stages, kRows = 128, kColumns = 128, kCtas = tile_m <= 80 ? 2 : 1;  // on a multiprocessor
  static constexpr int kUnitBytes = kUnitRows * 128, kUnits = kTileM / kUnitRows;
  static constexpr int kBoxRows = kTileM < 64 ? 32 : 64, kUnitsOfBox = kBoxRows / kUnitRows;
  static constexpr int kWeightBytes = 2 * Block::kBytes;
  static constexpr int kConsumers = 256, kEpilogueWarps = 3, kThreads = kConsumers + 32 + 32 * kEpilogueWarps;
  static constexpr int kAhead = 4;         // announced tiles without an epilogue yet
  static constexpr int kEndBytes = 2 * kRows;  // of a row that is left to epilogue warps
  static constexpr int kEvenRegisters = 65536 / kCtas / kThreads / 8 * 8, kOtherRegisters = kCtas == 1 ? 88 : tile_m <= 32 ? 72 : 64;
  static constexpr int kSumRegisters = (kEvenRegisters * kThreads - kOtherRegisters * 128) / kConsumers / 8 * 8;

  static_assert(sizeof(Input) == 1 && Block::kBytes % 16 == 0, "blocks of 64 rows and 128 columns fold into e4m3");
  static_assert(kTileM % kUnitRows == 0 && kUnits <= 15, "there is a product of so many rows");

  struct Params {
    CUtensorMap boxes, units;  // of rows of 128 bytes, swizzled by as many
    Args x;
    int32_t tiles_n;  // of an expert's weights
    int32_t blocks;   // of weights along K
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing
  };
  // The factors of a row's sums: `first` where nothing lies between, else that and, behind the bias, `second`.
  struct RowFactors {
    float first, second;
  };
  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][kTileM * 128];
    alignas(128) char weights[kStages][kWeightBytes];
    alignas(128) char ends[kTileM * kEndBytes];  // pieces of 16 bytes lie apart by their rows
    alignas(16) RowFactors rows[2][kTileM];
    int32_t pairs[2][kTileM];
    float columns[2][kRows];
    alignas(16) uint2 tables[std::max(Block::kEntries, 1)];
    WorkTile tiles[kAhead];
    Filled filled[kStages];
    Freed freed[kStages];
    Freed announced[kAhead], ready[kAhead], left[kAhead], done[kAhead];  // of tiles: told, factors there, sums there, sums read
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static_assert(kSharedBytes <= (228 / kCtas - 1) * 1024, "as much as a multiprocessor has");

  using Stages = PipelineState<kStages>;
  using Tiles = PipelineState<kAhead>;

  // The epilogue numbers as many parts of a tile as there are epilogue warps, in 16 bits.
  static bool describe(Params& params, Args const& x) {
    return params.tiles_n <= 0xFFFF / kEpilogueWarps && describe_rows<Input>(params.boxes, x, kBoxRows) && describe_rows<Input>(params.units, x, kUnitRows);
  }

  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.boxes);
      cute::prefetch_tma_descriptor(&params.units);
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.announced) barrier.init(1);
      for (auto& barrier : storage.ready) barrier.init(kEpilogueWarps);
      for (auto& barrier : storage.left) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.done) barrier.init(kEpilogueWarps);
      cutlass::arch::fence_barrier_init();
    }
    if constexpr (Block::kEntries > 0) {
      for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    }
    __syncthreads();
    wait_and_launch_dependents();
    if (threadIdx.x >= kConsumers) {
      cutlass::arch::warpgroup_reg_dealloc<kOtherRegisters>();
      int const warp = __shfl_sync(~0u, (threadIdx.x - kConsumers) / 32, 0);
      if (warp > 0) {
        run_epilogues(params, storage, warp - 1);
      } else if (cute::elect_one_sync()) {  // of which ptxas knows that it is one: else it loops over threads at every copy
        produce(params, storage);
      }
      __syncwarp();
    } else {
      cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
      multiply_tiles(params, storage);
    }
    Epilogue::template end<kThreads>(params.x);  // in one place: of two ptxas serialises products of 48 rows (C7512)
  }

  __device__ static WorkTile find(Params const& params, int index) { return listed_work_tile<kRows>(params, index); }
  __device__ static int units_of(WorkTile const& tile) { return (tile.rows() + kUnitRows - 1) / kUnitRows; }
  // The number of a CTA's next tile. CTAs take tiles as they come, the first too: so all taken tiles belong to CTAs that run.
  __device__ static int take(Params const& params) { return take_number(params.x, Epilogue::kCounter); }

  // Stages of tile after tile.
  __device__ static void produce(Params const& params, SharedStorage& storage) {
    Stages ring;
    Tiles tiles;
    WorkTile tile = find(params, take(params));
    for (int index = take(params);; tiles.next()) {
      storage.done[tiles.stage].wait(tiles.phase ^ 1);
      storage.tiles[tiles.stage] = tile;
      storage.announced[tiles.stage].arrive();
      if (tile.weights < 0) return;
      WorkTile const next = find(params, index);  // while this one's stages load
      index = take(params);
      char const* weights[2];
      for (int g = 0; g < 2; ++g) weights[g] = moe::packed_rows<Block>(params.x, tile, g, params.blocks);
      int const units = units_of(tile);
      for (int t = 0; t < params.blocks; ++t, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        auto& filled = storage.filled[ring.stage];
        filled.arrive_and_expect_tx(kWeightBytes + units * kUnitBytes);
        for (int g = 0; g < 2; ++g) load_bulk(cute::cast_smem_ptr_to_uint(storage.weights[ring.stage] + g * Block::kBytes), weights[g] + int64_t{t} * Block::kBytes, Block::kBytes, filled);
        auto load = [&](CUtensorMap const& map, int unit) {
          load_box(map, filled, storage.tokens[ring.stage] + unit * kUnitBytes, t * kColumns, tile.m0 + unit * kUnitRows);
        };
        int unit = 0;
        for (; unit + kUnitsOfBox <= units; unit += kUnitsOfBox) load(params.boxes, unit);
        for (; unit < units; ++unit) load(params.units, unit);
      }
      tile = next;
    }
  }

  __device__ static void multiply_tiles(Params const& params, SharedStorage& storage) {
    Stages ring;
    Tiles tiles;
    while (true) {
      storage.announced[tiles.stage].wait(tiles.phase);
      WorkTile const tile = storage.tiles[tiles.stage];
      if (tile.weights < 0) break;
      float sums[kTileM / 2];
      multiply_units<kUnits>(params, storage, ring, units_of(tile), sums);
      storage.ready[tiles.stage].wait(tiles.phase);
      storage.done[(tiles.stage + kAhead - 1) % kAhead].wait(tiles.phase ^ (tiles.stage == 0));  // sums of the tile before
      leave(params, storage, tile, tiles.stage % 2, sums);
      __syncwarp();
      if (threadIdx.x % 32 == 0) storage.left[tiles.stage].arrive();
      tiles.next();
    }
  }

  // Units that there are products of, below some. ptxas serialises products (C7512) of 224 rows with more than six sizes, of 64 with more
  // than two, of 80 with more than one.
  static constexpr int fewer(int units) {
    if (kUnits == 5) return 0;
    if (kUnits == 4) return units > 3 ? 3 : 0;
    if (kUnits <= 8) return units - 1;
    for (int size : {13, 12, 11, 8, 4}) {
      if (size < units) return size;
    }
    return 0;
  }
  template <int units>
  __device__ __forceinline__ static void multiply_units(Params const& params, SharedStorage& storage, Stages& ring, int count, float (&sums)[kTileM / 2]) {
    if constexpr (fewer(units) > 0) {
      if (count <= fewer(units)) return multiply_units<fewer(units)>(params, storage, ring, count, sums);
    }
    multiply<units * kUnitRows>(params, storage, ring, sums);
  }

  __device__ static void fence(uint32_t (&words)[8]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(words[i])::"memory");
  }
  template <int count>
  __device__ static void fence(float (&sums)[kTileM / 2]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  }

  // All stages of a tile of some rows. While the tensor core multiplies one half of a block, the group makes the other.
  template <int rows>
  __device__ __forceinline__ static void multiply(Params const& params, SharedStorage& storage, Stages& ring, float (&sums)[kTileM / 2]) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < rows / 2; ++i) sums[i] = 0.0f;
    int const thread = threadIdx.x % 128, row_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    uint32_t left[8], right[8];
    uint32_t const own = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * Block::kBytes;
    uint32_t const told = Block::kEntries > 0 ? cute::cast_smem_ptr_to_uint(storage.tables) : params.spread;
    auto const make = [&](Block const& block, auto half, uint32_t* out) {
      if constexpr (std::is_same_v<Block, Block_>) {
        block.template operand<half.value>(told, out);
      } else {
        block.template half_of<half.value>(told, params.spread, out);
      }
    };
    uint64_t const tokens = describe_shared_rows(cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]));
    auto product = [&](uint32_t (&fragment)[8], uint64_t from) {
      fence(fragment);
      fence<rows / 2>(sums);
      cute::warpgroup_arrive();
      Wgmma<Input, rows>::add(sums, fragment, from);
      Wgmma<Input, rows>::add(sums, fragment + 4, from + 2);  // 32 bytes further
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<1>();  // the other fragment is free again
    };
    int before = ring.stage;
    for (int t = 0; t < params.blocks; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      Block block;
      block.load(own + ring.stage * sizeof(storage.weights[0]), thread);
      uint64_t const from = tokens + ring.stage * (sizeof(storage.tokens[0]) >> 4);
      make(block, cute::Int<0>{}, left);
      product(left, from);
      if (t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last product has been waited for
      make(block, cute::Int<1>{}, right);
      product(right, from + 4);
      before = ring.stage;
    }
    cute::warpgroup_wait<0>();
    fence<rows / 2>(sums);
    if (thread % 32 == 0) storage.freed[before].arrive();
  }

  // A warp's sums of 16 columns as numbers of bf16, row by row, for the epilogue warps.
  __device__ static void leave(Params const& params, SharedStorage& storage, WorkTile const& tile, int slot, float const (&sums)[kTileM / 2]) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = warp * 16 + lane / 4;
    float const factors[2] = {storage.columns[slot][column], storage.columns[slot][column + 8]};
    uint32_t const rows = cute::cast_smem_ptr_to_uint(storage.rows[slot] + lane % 4 * 2);
    if (Epilogue::is_plain(params.x)) {
      put(storage, tile, rows, sums, [&](RowFactors const& row, float sum, int i) { return __fmul_rn(row.first, __fmul_rn(sum, factors[i])); });
      return;
    }
    float bias[2] = {0.0f, 0.0f};
    for (int i = 0; i < 2 && params.x.bias != nullptr; ++i) {
      int64_t const at = int64_t{tile.weights} * params.x.n + min(tile.n0 + column + 8 * i, params.x.n - 1);
      bias[i] = to_float(static_cast<__nv_bfloat16 const*>(params.x.bias)[at]);
    }
    bool const biased = params.x.bias != nullptr;
    put(storage, tile, rows, sums, [&](RowFactors const& row, float sum, int i) {
      float const value = __fmul_rn(row.first, __fmul_rn(sum, factors[i]));
      return __fmul_rn(biased ? __fadd_rn(value, bias[i]) : value, row.second);
    });
  }

  // A lane has two columns, eight apart, of two rows in each eight. The store transposes eights of columns by eights of rows.
  template <class Value>
  __device__ static void put(SharedStorage& storage, WorkTile const& tile, uint32_t rows, float const (&sums)[kTileM / 2], Value const& value) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = warp * 2 + lane / 8 % 2, row = lane / 16 * 8 + lane % 8;
    uint32_t const to = cute::cast_smem_ptr_to_uint(storage.ends) + row * kEndBytes + (piece ^ row % 8) * 16;
    int const count = tile.rows();
    CUTLASS_PRAGMA_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit * kUnitRows < count) {
        uint32_t words[4];
        CUTLASS_PRAGMA_UNROLL
        for (int half = 0; half < 2; ++half) {
          RowFactors of[2];
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(of[0].first), "=f"(of[0].second), "=f"(of[1].first), "=f"(of[1].second)
                       : "r"(rows + static_cast<uint32_t>(sizeof(RowFactors)) * (unit * kUnitRows + half * 8)));
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 2; ++i) {
            float const* const own = sums + unit * 8 + half * 4 + i * 2;
            __nv_bfloat162 const both = __floats2bfloat162_rn(value(of[0], own[0], i), value(of[1], own[1], i));
            words[half * 2 + i] = *reinterpret_cast<uint32_t const*>(&both);
          }
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(to + unit * kUnitRows * kEndBytes), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
    }
  }

  // A warp has every third four rows of a tile.
  __device__ static void run_epilogues(Params const& params, SharedStorage& storage, int warp) {
    int const lane = threadIdx.x % 32;
    uint32_t const ends = cute::cast_smem_ptr_to_uint(storage.ends);
    Epilogue epilogue;
    WorkTile before{-1, 0, 0, 0};
    Tiles tiles, last;
    for (;; tiles.next()) {
      storage.announced[tiles.stage].wait(tiles.phase);
      WorkTile const tile = storage.tiles[tiles.stage];
      if (tile.weights >= 0) {
        ask(params, storage, tile, tiles.stage % 2, warp);
        __syncwarp();
        if (lane == 0) storage.ready[tiles.stage].arrive();
      }
      if (before.weights >= 0) {
        storage.left[last.stage].wait(last.phase);
        int const slot = last.stage % 2;
        epilogue.finish(params.x, ends, storage.pairs[slot], before.m0, before.rows(), before.n0, warp * kTogetherRows + lane / kLanesOfRow, lane % kLanesOfRow);
        __syncwarp();
        if (lane == 0) storage.done[last.stage].arrive();
        epilogue.stored(params.x, before.m0);
        last.next();
      }
      if (tile.weights < 0) break;
      before = tile;
    }
    epilogue.left(params.x);
  }

  // The factors of a tile's sums: of a warp's own rows, and of every third 32 columns.
  __device__ static void ask(Params const& params, SharedStorage& storage, WorkTile const& tile, int slot, int warp) {
    int const lane = threadIdx.x % 32;
    for (int i = lane; i / kTogetherRows * kTogetherRows * kEpilogueWarps < tile.rows(); i += 32) {
      int const row = (i / kTogetherRows * kEpilogueWarps + warp) * kTogetherRows + i % kTogetherRows;
      if (row >= tile.rows()) continue;
      storage.rows[slot][row] = Epilogue::factors_of(params.x, tile.m0 + row);
      if constexpr (Epilogue::kPaired) storage.pairs[slot][row] = params.x.layer.ws.order[tile.m0 + row];
    }
    for (int i = warp * 32 + lane; i < kRows; i += 32 * kEpilogueWarps) {
      storage.columns[slot][i] = __fmul_rn(params.x.b_scales[int64_t{tile.weights} * params.x.n + min(tile.n0 + i, params.x.n - 1)], Block::kShort);
    }
  }
};

// The first launch: tiles of an expert are as large as one another.
template <int kTokens, bool kCoded>
using PreparePrefill = PrepareOrdered<kTokens, kCoded, kUnitRows>;

}  // namespace gemmill::fused_moe
