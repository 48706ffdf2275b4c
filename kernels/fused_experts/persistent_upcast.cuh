// Fused experts of packed 4-bit weights with bf16, with rows in order (ordered_experts.cuh) and a main loop of its own.
//
// Where experts have few rows, weights are most of the bytes. Where they have tens, rows that every tile loads again weigh as much on the
// way from L2. So a tile of 64 rows has 256 rows of weights, one of 32 and of 16 rows has 128, and rows come in boxes of eight, as many as a tile has. The tensor core multiplies only
// those: up to 16 by warps (mma.sync), more by groups of 128 threads (WGMMA) with instructions of 32, 40, 48 or 64.
//
// Where experts have hundreds of rows, conversion of weights binds, which each tile does again: in the logic unit it takes about as long as the
// tensor core takes for 64 rows. A tile of 128 rows, with instructions of 32, 64, 96 or 128, has 192 rows of weights: the sums of more do not fit.
//
// A warp has 16 rows of weights from their beginning to their end: it stores by itself, and waits for no other. The data for its epilogue
// come with a tile's first stage. After the last part is stored, all warps sum tokens. Warps that wait for that have stored all of their
// tiles: an unstored tile belongs to a CTA that runs. So a call ends wherever some of its CTAs run.
#pragma once

#include "fused_experts/ordered_experts.cuh"
#include "gemm/wgmma.cuh"

namespace gemmill::fused_moe {

// How a group multiplies a block of 64 rows and 64 columns by rows in shared memory, where `at` describes them. Sparse weights do otherwise
// (sparse_upcast.cuh).
template <class Block>
struct UpcastProducts {
  static constexpr int kWords = 16;  // made of a block

  __device__ static void make(Block const& block, uint32_t told, uint32_t (&words)[kWords]) {
    block.template operand<0>(told, words);
    block.template operand<1>(told, words + 8);
  }
  template <int rows, int count>
  __device__ static void multiply_many(float (&sums)[count], uint32_t const (&words)[kWords], uint64_t at) {
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 4; ++step) Wgmma<cutlass::bfloat16_t, rows>::add(sums, words + 4 * step, at + 2 * step);
  }
};

// Of few pairs a warp finds all tiles of rows in the order in which PrepareOrdered lists them, a lane for each pair.
template <int kTokens>
struct FewExperts {
  static constexpr int kMost = 32;
  int weights, first, count, before;  // of the expert of this lane's pair, where that is its first: its rows and tiles
  int all;                            // tiles

  __device__ static bool serves(gemmill_fused_experts_args const& x) { return int64_t(x.tokens) * x.topk <= kMost; }

  __device__ void find(gemmill_fused_experts_args const& x) {
    int const lane = threadIdx.x % 32;
    weights = lane < x.tokens * x.topk ? weights_of(x, lane) : -1;
    unsigned const same = __match_any_sync(~0u, weights);
    count = weights >= 0 && __ffs(same) - 1 == lane ? __popc(same) : 0;
    int const tiles = (count + kTokens - 1) / kTokens;
    first = 0, before = 0, all = 0;
#pragma unroll 4
    for (int i = 0; i < 32; ++i) {
      int const other = __shfl_sync(~0u, weights, i), others = __shfl_sync(~0u, count | tiles << 16, i);
      if (other < weights) first += others & 0xFFFF, before += others >> 16;
      all += others >> 16;
    }
  }

  // Asked by all lanes.
  __device__ WorkTile tile_of(int index, int n0) const {
    int const lane = __ffs(__ballot_sync(~0u, index >= before && (index - before) * kTokens < count)) - 1;
    int const skipped = (index - __shfl_sync(~0u, before, lane)) * kTokens, m0 = __shfl_sync(~0u, first, lane) + skipped;
    return {__shfl_sync(~0u, weights, lane), m0, m0 + min(kTokens, __shfl_sync(~0u, count, lane) - skipped), n0};
  }
};

// `row_groups` times 64 rows of weights.
template <class Products, class Output, template <class> class Epilogue_, int row_groups>
struct UpcastMm {
  using Mm = blockscaled::PackedMm<Products, Output, row_groups, 1>;
  using Epilogue = Epilogue_<Mm>;
  using Args = PackedArgs;
  using Input = typename Products::Input;
  using Block = typename Products::Block;
  using Multiplies = UpcastProducts<Block>;
  using Stages = PipelineState<Products::kStages>;

  static constexpr uint32_t kSpread = Mm::kSpread;
  static constexpr int kRows = Mm::kRows, kTileM = Mm::kTileM, kStages = Mm::kStages, kColumns = Mm::kColumns, kBlocks = Mm::kBlocks;
  static constexpr int kBoxRows = 8, kManyRows = 32, kGroups = row_groups;  // of boxes, smaller and larger
  static constexpr int kBandElements = 1 << 22;                             // of rows that L2 holds: their tiles share a sweep over the columns
  static constexpr bool kMany = kTileM > 16;                                // rows, so that groups of 128 threads multiply
  static constexpr int kConsumers = Mm::kConsumers, kThreads = kConsumers + (kMany ? 128 : 32);  // the first warp of these others loads
  static constexpr int kSums = std::max(kTileM / 2, 8);                                          // of a thread
  // K has two stages at least. So when the first stage of a tile is free for the last of so many tiles after it, all have ended it.
  static constexpr int kEnds = (kStages + 1) / 2 + 1;       // tiles whose epilogue data are there
  static constexpr int kOfEnd = std::max(kTileM, 32);       // rows of these
  static constexpr int kPitch = 20;                         // of sums that a warp passes on, from one row to the next: banks apart
  static constexpr int kBoxesAtOnce = kTileM > 64 ? 4 : 1;  // of eight rows of sums that a warp passes on
  static constexpr int kCtas = 4 / row_groups;              // on a multiprocessor
  static constexpr int kEvenRegisters = 65536 / kCtas / kThreads / 8 * 8, kOtherRegisters = 64;
  static constexpr int kSumRegisters = (kEvenRegisters * kThreads - kOtherRegisters * 128) / kConsumers / 8 * 8;  // where many begin

  static_assert(kBlocks == 2 && !Products::kGrouped && !Mm::kScaled && (kTileM == 128 || kTileM == 64 || kTileM == 32 || kTileM == 16), "stages of 128 columns, and rows for which there are instructions");
  struct Params {
    CUtensorMap few, many;  // boxes of rows of 128 bytes, swizzled by as many
    CUtensorMap weights;    // 64 rows of a stage's columns lie together, in pieces of 128 bytes
    Args x;
    int32_t tiles_n;  // of an expert's weights
    int32_t blocks;   // of weights along K
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing
  };
  struct OfEnd {
    float bases[kRows];
    int32_t pairs[kOfEnd];
    float router[kOfEnd];
  };
  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][Mm::kTokenBytes];
    alignas(128) char weights[kStages][Mm::kWeightBytes];
    alignas(16) float sums[kConsumers / 32][kBoxesAtOnce][kBoxRows * kPitch];
    alignas(16) OfEnd of_ends[kEnds];
    WorkTile tiles[kEnds];
    Filled filled[kStages];
    Freed freed[kStages];
    Filled told[kEnds];  // for the epilogue's data
    int32_t all;         // tiles
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static_assert(kSharedBytes <= (228 / kCtas - 1) * 1024, "as much as a multiprocessor has");

  // Pieces of tokens are numbered, too.
  static bool describe(Params& params, Args const& x) {
    return int64_t{x.m} * ((x.n - 1) / 128 + 1) <= INT_MAX / 2 && describe_rows<Input>(params.few, x, kBoxRows) &&
           describe_rows<Input>(params.many, x, kManyRows) && describe_weights(params, x);
  }

  // Some 64 rows and the columns of a stage, in pieces of 128 bytes.
  static bool describe_weights(Params& params, Args const& x) {
    constexpr int kPiece = 128, kPieces = Block::kBytes / kPiece;
    static_assert(Block::kBytes % kPiece == 0, "a block is whole pieces");
    cuuint64_t const blocks = params.blocks, groups = (x.n + 63) / 64, experts = x.weights;
    return encode_tensor_map<4>(params.weights, CU_TENSOR_MAP_DATA_TYPE_UINT64, x.b, {kPiece / 8, blocks * kPieces, groups, experts},
                       {kPiece, blocks * Block::kBytes, static_cast<cuuint64_t>(x.b_stride_expert)}, {kPiece / 8, kBlocks * kPieces, kGroups, 1}, false);
  }

  __device__ static void run(Params const& params, char* shared) {
    auto& storage = *reinterpret_cast<SharedStorage*>(shared + (-cute::cast_smem_ptr_to_uint(shared) & 1023));
    if (threadIdx.x == kConsumers) {
      for (auto* map : {&params.few, &params.many, &params.weights}) cute::prefetch_tma_descriptor(map);
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.told) barrier.init(32);
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < kConsumers) {
      if constexpr (kMany) cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
      int const count = multiply_tiles(params, storage);
      if constexpr (Epilogue::kFollows) {
        meet_all(params, storage, count);
        Epilogue::template sum_tokens<kConsumers / 32>(params.x.layer);
      }
    } else {
      if constexpr (kMany) cutlass::arch::warpgroup_reg_dealloc<kOtherRegisters>();
      if (threadIdx.x < kConsumers + 32) produce(params, storage);
    }
  }

  // By a warp: stages of tile after tile. Behind the last tile comes a stage of none. Tiles of the same weights are neighbours, so that these come
  // from memory once. So do rows, of which those of a band of tiles meet all columns before the next band's. Tiles are taken as CTAs come to them.
  __device__ static void produce(Params const& params, SharedStorage& storage) {
    bool const leads = cute::elect_one_sync();
    auto const& ws = params.x.layer.ws;
    FewExperts<kTileM> few;
    bool const finds = !Epilogue::kFollows && few.serves(params.x.layer.x);
    if (finds) {
      few.find(params.x.layer.x);
    } else if (!Epilogue::kFollows) {
      wait_and_launch_dependents();
    }
    int const of_rows = finds ? few.all : __ldcg(ws.tile_count), all = of_rows * params.tiles_n;
    int const band = max(kBandElements / (params.blocks * kColumns) / kTileM, 1);
    auto const tile_at = [&](int index) -> WorkTile {
      if (index >= all) return {-1, 0, 0, 0};
      int const begin = index / (band * params.tiles_n) * band, rows = min(band, of_rows - begin), in_band = index - begin * params.tiles_n;
      int const n = in_band / rows, row = begin + in_band - n * rows;
      if (finds) return few.tile_of(row, n * kRows);
      int4 const words = __ldcg(reinterpret_cast<int4 const*>(ws.tiles + row));  // weights, first and count
      return {words.x, words.y, words.y + words.z, n * kRows};
    };
    // For the sums of tokens even its first tile is not a CTA's before it runs.
    int const dealt = Epilogue::kFollows ? 0 : gridDim.x;
    auto const take = [&] {
      int taken = 0;
      if (threadIdx.x % 32 == 0) taken = dealt + take_number(params.x, Epilogue::kCounter);
      return __shfl_sync(~0u, taken, 0);
    };
    WorkTile tile = tile_at(Epilogue::kFollows ? take() : static_cast<int>(blockIdx.x));
    int const stages = params.blocks / kBlocks;
    Stages ring;
    int slot = 0, early = 0;
    if (Epilogue::kFollows || finds) {
      if (tile.weights >= 0) {
        early = min(stages, kStages);
        if (leads) storage.tiles[slot] = tile;  // before its first stage is there
        for (int t = 0; t < early && leads; ++t) load_weights(params, storage, tile, t, t);
      }
      __syncwarp();
      wait_and_launch_dependents();
    }
    for (int index = take(); tile.weights >= 0;) {
      WorkTile const next = tile_at(index);  // while this one's stages load
      index = take();
      for (int t = 0; t < stages; ++t, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        if (t == 0) begin_tile(params, storage, tile, slot);
        if (leads) {
          if (t >= early) load_weights(params, storage, tile, t, ring.stage);
          load_rows(params, storage, tile, t, ring.stage);
        }
        __syncwarp();
      }
      early = 0;
      tile = next;
      slot = (slot + 1) % kEnds;
    }
    storage.freed[ring.stage].wait(ring.phase ^ 1);
    if (leads) {
      storage.tiles[slot] = tile, storage.all = all;
      storage.filled[ring.stage].arrive();
    }
    __syncwarp();
  }

  // A tile's loaded rows: as boxes of eight, or of 32.
  __device__ static int loaded_of(WorkTile const& tile) {
    int const rows = tile.end - tile.m0;
    return rows > 16 && rows <= kManyRows ? kManyRows : rows > kTileM - kBoxRows ? kTileM : (rows + kBoxRows - 1) / kBoxRows * kBoxRows;
  }

  // The tile, and the data of its epilogue.
  __device__ static void begin_tile(Params const& params, SharedStorage& storage, WorkTile const& tile, int slot) {
    int const lane = threadIdx.x % 32;
    if (lane == 0) storage.tiles[slot] = tile;
    __syncwarp();
    auto& of_end = storage.of_ends[slot];
    auto const copy = [](void* to, void const* from) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(cute::cast_smem_ptr_to_uint(to)), "l"(from) : "memory");
    };
    float const* const bases = params.x.b_scales + int64_t{tile.weights} * params.x.n;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRows / 32; ++i) copy(of_end.bases + i * 32 + lane, bases + min(tile.n0 + i * 32 + lane, params.x.n - 1));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfEnd / 32; ++i) {
      int const m = min(tile.m0 + i * 32 + lane, tile.end - 1);
      copy(of_end.pairs + i * 32 + lane, params.x.layer.ws.order + m);
      copy(of_end.router + i * 32 + lane, params.x.a_scales + m);
    }
    arrive_after_copies(storage.told[slot]);
  }

  // Announces all bytes of a stage, and loads its weights.
  __device__ static void load_weights(Params const& params, SharedStorage& storage, WorkTile const& tile, int t, int stage) {
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(Mm::kWeightBytes + loaded_of(tile) * kBlocks * 128);
    cute::SM90_TMA_LOAD_4D::copy(&params.weights, reinterpret_cast<uint64_t*>(&filled), static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                 storage.weights[stage], 0, t * (Mm::kGroupBytes / 128), tile.n0 / 64, tile.weights);
  }

  // Boxes of rows.
  __device__ static void load_rows(Params const& params, SharedStorage& storage, WorkTile const& tile, int t, int stage) {
    for (int m = 0, loaded = loaded_of(tile); m < loaded;) {
      bool const many = loaded - m >= kManyRows;
      CUtensorMap const& map = many ? params.many : params.few;
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        load_box(map, storage.filled[stage], storage.tokens[stage] + b * Mm::kBoxBytes + m * 128, (t * kBlocks + b) * kColumns, tile.m0 + m);
      }
      m += many ? kManyRows : kBoxRows;
    }
  }

  // Returns how many there were.
  __device__ static int multiply_tiles(Params const& params, SharedStorage& storage) {
    Stages ring;
    PipelineState<kEnds> slots;
    int const group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    for (int tiles = 0;; ++tiles, slots.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      WorkTile const tile = storage.tiles[slots.stage];
      if (tile.weights < 0) return tiles;
      int const rows = __shfl_sync(~0u, tile.end - tile.m0, 0), count = params.blocks / kBlocks;
      float sums[kSums] = {};
      if (rows <= 8) {
        multiply_few<1>(storage, params.spread, ring, count, group, sums);
      } else if (!kMany || rows <= 16) {
        multiply_few<2>(storage, params.spread, ring, count, group, sums);
      } else if constexpr (kMany) {
        multiply_many(storage, params.spread, ring, count, group, rows, sums);
      }
      storage.told[slots.stage].wait(slots.phase);
      store(params, storage, slots.stage, tile, rows, sums);
    }
  }

  // Waits until all CTAs have stored all tiles, of which this one had `count`.
  __device__ static void meet_all(Params const& params, SharedStorage& storage, int count) {
    auto const meet = [] { cutlass::arch::NamedBarrier::sync(kConsumers, 1); };
    cutlass::arch::wait_on_dependent_grids();  // without it an L1 cache may answer with older lists
    meet();
    if (threadIdx.x == 0) {
      int32_t* const stored = params.x.layer.ws.tile_count + Epilogue::kStoredCounter;
      __threadfence();
      if (count > 0) atomicAdd(stored, count);
      Patience<> patience;
      while (__ldcg(stored) < storage.all) {
        __nanosleep(20);
        patience.spend(params.x.layer.x.endless_waits);
      }
      __threadfence();
    }
    meet();
  }

  // A warp's 16 rows of weights by 8 or 16 rows. A stage is free as soon as it is in registers.
  template <int eights>
  __device__ static void multiply_few(SharedStorage& storage, uint32_t told, Stages& ring, int count, int group, float (&sums)[kSums]) {
    using Few = blockscaled::WarpProducts<Block, kBlocks, kBlocks, 8 * eights, kStages, false>;
    int const thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    uint32_t const weights = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + group * Mm::kGroupBytes;
    uint32_t const tokens = cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]) + lane % 8 * 128;
    for (int t = 0; t < count; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      Block blocks[kBlocks];
      typename Few::Tokens of_blocks[kBlocks];
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) blocks[b].load(weights + ring.stage * Mm::kWeightBytes + b * Block::kBytes, thread);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) Few::load_tokens(of_blocks[b], tokens + ring.stage * Mm::kTokenBytes + b * Mm::kBoxBytes, 0, lane);
      __syncwarp();
      if (lane == 0) storage.freed[ring.stage].arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) blockscaled::multiply_rows(sums, told, blocks[b], of_blocks[b]);
    }
  }

  // A group's 64 rows of weights by more rows. While the tensor core multiplies one block, the group makes the next.
  __device__ static void multiply_many(SharedStorage& storage, uint32_t told, Stages& ring, int count, int group, int rows, float (&sums)[kSums]) {
    int const thread = threadIdx.x % 128;
    uint32_t const weights = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + group * Mm::kGroupBytes;
    uint32_t const tokens = cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]);
    uint32_t words[kBlocks][Multiplies::kWords] = {};
    int before = ring.stage;
    for (int t = 0; t < count; ++t, ring.next()) {
      storage.filled[ring.stage].wait(ring.phase);
      Block blocks[kBlocks];
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) blocks[b].load(weights + ring.stage * Mm::kWeightBytes + b * Block::kBytes, thread);
      uint32_t const at = (tokens + ring.stage * Mm::kTokenBytes) >> 4;
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        Multiplies::make(blocks[b], told, words[b]);
        multiply_block(words[b], at + b * (Mm::kBoxBytes / 16), rows, sums);
        cute::warpgroup_wait<1>();  // the other block's words are free again
        if (b == 0 && t > 0 && thread % 32 == 0) storage.freed[before].arrive();
      }
      before = ring.stage;
    }
    cute::warpgroup_wait<0>();
    fence(sums);
    if (thread % 32 == 0) storage.freed[before].arrive();
  }

  // `at`: where rows of a block begin, as a descriptor has it; the swizzle spans rows of 128 bytes, and eight of them lie 1024 bytes
  // after eight.
  __device__ static void multiply_block(uint32_t (&words)[Multiplies::kWords], uint32_t at, int rows, float (&sums)[kSums]) {
    constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 / 16} << 32;
    fence(words);
    fence(sums);
    // All is said in each case: else ptxas says it once more, or has every product wait for the one before.
    auto const by = [&](auto size) {
      cute::warpgroup_arrive();
      Multiplies::template multiply_many<size>(sums, words, kLayout | at);
      cute::warpgroup_commit_batch();
    };
    if (kTileM == kManyRows || rows <= kManyRows) {
      by(cute::Int<32>{});
    } else if constexpr (kTileM > kManyRows) {
      constexpr int kSecond = kTileM == 128 ? 64 : 40, kThird = kTileM == 128 ? 96 : 48;  // rows of the instructions between
      if (rows <= kSecond) {
        by(cute::Int<kSecond>{});
      } else if (rows <= kThird) {
        by(cute::Int<kThird>{});
      } else {
        by(cute::Int<kTileM>{});
      }
    }
  }
  template <class Numbers>
  __device__ static void fence(Numbers& numbers) {
    CUTLASS_PRAGMA_UNROLL
    for (auto& number : numbers) cute::warpgroup_fence_operand(number);
  }

  // A warp's 16 columns of a tile, eight rows at a time.
  __device__ static void store(Params const& params, SharedStorage& storage, int slot, WorkTile const& tile, int rows, float (&sums)[kSums]) {
    int const lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 + lane % 4 * 4, n = tile.n0 + own;
    auto const& of_end = storage.of_ends[slot];
    auto& buffers = storage.sums[threadIdx.x / 32];
    float4 const bases = *reinterpret_cast<float4 const*>(of_end.bases + own);
    Epilogue const epilogue(params.x, tile.weights, n, bases);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int row = lane / 4; ; row += kBoxRows * kBoxesAtOnce) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4 * kBoxesAtOnce; ++i) buffers[i / 4][(lane % 4 * 2 + i % 2) * kPitch + lane / 4 + i % 4 / 2 * 8] = sums[i];
      __syncwarp();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBoxesAtOnce; ++i) {
        int const m = row + i * kBoxRows;
        float4 const found = *reinterpret_cast<float4 const*>(buffers[i] + lane / 4 * kPitch + lane % 4 * 4);
        float const quad[4] = {found.x, found.y, found.z, found.w};
        if (m < rows && n < params.x.n) epilogue.put_row(params.x, quad, tile.m0 + m, n, of_end.pairs[m], of_end.router[m]);
      }
      if (row - lane / 4 + kBoxRows * kBoxesAtOnce >= rows) break;
      __syncwarp();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i + 4 * kBoxesAtOnce < kSums; ++i) sums[i] = sums[i + 4 * kBoxesAtOnce];
    }
  }
};

// The epilogue of the first product.
template <class Mm>
struct UpcastGatedRows : GatedRows<Mm> {
  static constexpr int kCounter = 1;

  __device__ UpcastGatedRows(PackedArgs const& x, int weights, int n, float4 bases) : GatedRows<Mm>(Scaled<Mm>(x, weights, n, bases)) {}

  __device__ void put_row(PackedArgs const& x, float const (&quad)[4], int m, int n, int, float router) const {
    this->put(x, quad, m, n, x.layer.x.weight_on_input ? router : 1.0f, 1.0f);
  }
};

// The epilogue of the second: parts of bf16, half of the bytes.
template <class Mm>
struct UpcastParts : WeighedParts<Mm> {
  static constexpr int kCounter = 2, kStoredCounter = 3;

  __device__ UpcastParts(PackedArgs const& x, int weights, int n, float4 bases) : WeighedParts<Mm>(Scaled<Mm>(x, weights, n, bases)) {}

  __device__ void put_row(PackedArgs const& x, float const (&quad)[4], int, int n, int pair, float router) const {
    float const weight = x.layer.x.weight_on_input ? 1.0f : router;
    __nv_bfloat162 const part[2] = {__floats2bfloat162_rn(this->weighed(x, quad, 0, weight, 1.0f), this->weighed(x, quad, 1, weight, 1.0f)),
                                    __floats2bfloat162_rn(this->weighed(x, quad, 2, weight, 1.0f), this->weighed(x, quad, 3, weight, 1.0f))};
    uint2 words;
    memcpy(&words, part, sizeof(words));
    *reinterpret_cast<uint2*>(reinterpret_cast<__nv_bfloat16*>(x.layer.ws.parts) + pair * int64_t(x.layer.x.hidden) + n) = words;
  }

  // Sums all tokens, by all CTAs' first `warps` warps: 128 columns of one at a time, with common loads of its parts.
  template <int warps>
  __device__ static void sum_tokens(Params const& p) {
    constexpr int kColumns = 128, kTogether = 10;
    int const lane = threadIdx.x % 32, pieces = (p.x.hidden + kColumns - 1) / kColumns, step = gridDim.x * warps, all = p.x.tokens * pieces;
    for (int next = blockIdx.x * warps + threadIdx.x / 32; next < all; next += step * 32) {
      int const own = next + lane * step;  // of 32 pieces that come next
      int const asked = own < all ? p.ws.needed[own / pieces] : 0;
      for (int i = 0; i < 32 && next + i * step < all; ++i) {
        int const piece = next + i * step, token = piece / pieces, needed = __shfl_sync(~0u, asked, i);
        if (needed > 0) sum_token<__nv_bfloat16, kColumns, kTogether, __nv_bfloat16>(p, token, needed == p.x.topk, (piece - token * pieces) * kColumns, lane);
      }
    }
  }
};

}  // namespace gemmill::fused_moe
