// Fused experts of packed 4-bit weights that fold, for tiles of up to 16 rows, where the time of a call is that of reading weights. Rows
// are in order as in ordered_experts.cuh.
//
// CTAs are persistent. A tile's rows come in TMA boxes of eight. Two groups of 128 threads multiply 64 rows of weights each, a block of 128
// columns at a time, two of them a stage: while the tensor core multiplies one, they make the next. Then they hand the tile's sums over in
// shared memory, and go on. Three epilogue warps make results, codes of rows, sums of whole tokens.
//
// Memory is read from the first launch's beginning to the last one's end. Loaders of the first product count pairs themselves, so they
// know their first tile before the list has it; those of the second read the list while the first product ends. Both load weights of as
// many stages as there are.
#pragma once

#include "fused_experts/ordered_experts.cuh"
#include "fused_experts/fold_block.cuh"

namespace gemmill::fused_moe {

template <class Products, class Output, template <class> class Epilogue_>
struct DecodeMm {
  using Mm = blockscaled::PackedMm<Products, Output, 2, 1>;
  using Epilogue = Epilogue_<Mm>;
  using Args = PackedArgs;
  using Input = typename Products::Input;
  using Block = QuickBlock<typename Products::Block>;
  using Stages = PipelineState<Products::kStages>;

  static constexpr uint32_t kSpread = Block::kSpread;
  static constexpr int kRows = Mm::kRows, kTileM = Mm::kTileM, kStages = Mm::kStages, kColumns = Mm::kColumns;
  static constexpr int kBoxRows = 8, kBoxBytes = kBoxRows * 128;
  static constexpr int kCtas = 2;  // on a multiprocessor
  static constexpr int kConsumers = Mm::kConsumers, kEpilogueWarps = 3, kThreads = kConsumers + 32 * (1 + kEpilogueWarps);
  static constexpr int kPitch = kRows + 4;  // sums from one row to the next: 16-byte rows, banks apart
  static constexpr int kSumStages = kTileM <= 8 ? 4 : 3;  // tiles whose sums wait for their epilogue
  static constexpr int kPairBytes = 2 * Block::kBytes, kPairColumns = 2 * kColumns;  // of 64 rows of weights in a stage
  static constexpr int kMostCounted = 1024;  // pairs that a warp counts sooner than the list has them
  static constexpr int kUnknown = -2;        // the weights of a tile that is not yet taken

  static_assert(Mm::kBlocks == 1 && !Products::kGrouped && Mm::kScaled && kConsumers == 256, "two groups, and codes of rows");
  static_assert(kTileM % kBoxRows == 0, "a tile is boxes of rows");
  static_assert(kSumStages >= kEpilogueWarps, "a warp's next tile is in the next phase of its barrier at most");

  struct Params {
    CUtensorMap tokens;  // boxes of rows of 128 bytes, swizzled by as many
    Args x;
    int32_t tiles_n;  // of an expert's weights
    int32_t blocks;   // of weights along K
    uint32_t spread;  // Block::kSpread, of which the compiler must know nothing
  };
  struct alignas(1024) SharedStorage {
    alignas(1024) char tokens[kStages][2][kTileM * 128];
    alignas(128) char weights[kStages][2][kPairBytes];
    alignas(16) float sums[kSumStages][kTileM * kPitch];
    alignas(16) uint2 tables[Block::kEntries];
    WorkTile tiles[kStages];  // of those whose first stage is that
    Filled filled[kStages];
    Freed freed[kStages];
    Freed summed[kSumStages], stored[kSumStages];  // between the groups that multiply tiles and the epilogue warps
    WorkTile summed_tiles[kSumStages];
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static_assert(kSharedBytes <= (228 / kCtas - 1) * 1024, "as much as a multiprocessor has");
  static_assert(kMostWeights * 4 <= sizeof(SharedStorage::sums), "pairs are counted where sums come to lie");

  static bool describe(Params& params, Args const& x) { return params.tiles_n <= Epilogue::kMostTiles && describe_rows<Input>(params.tokens, x, kBoxRows); }

  __device__ static void run(Params const& params, char* shared) {
    auto base = reinterpret_cast<uintptr_t>(shared);
    auto& storage = *reinterpret_cast<SharedStorage*>((base + 1023) & ~uintptr_t(1023));
    if (threadIdx.x == kConsumers) {
      cute::prefetch_tma_descriptor(&params.tokens);
      for (auto& barrier : storage.filled) barrier.init(1);
      for (auto& barrier : storage.freed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.summed) barrier.init(kConsumers / 32);
      for (auto& barrier : storage.stored) barrier.init(1);
      cutlass::arch::fence_barrier_init();
    }
    for (int i = threadIdx.x; i < Block::kEntries; i += kThreads) storage.tables[i] = Block::table(i);
    __syncthreads();
    int const warp = (static_cast<int>(threadIdx.x) - kConsumers) / 32;
    if (threadIdx.x >= kConsumers) {
      if (warp == 0) return produce(params, storage);
      wait_and_launch_dependents();
      return run_epilogues(params, storage, warp - 1);
    }
    wait_and_launch_dependents();
    multiply_tiles(params, storage);
  }

  __device__ static WorkTile find(Params const& params, int index) { return listed_work_tile<kRows>(params, index); }
  __device__ static int boxes_of(WorkTile const& tile) { return (tile.rows() + kBoxRows - 1) / kBoxRows; }

  // The number of a CTA's next tile. CTAs take tiles as they come: one that codes or sums for others takes fewer.
  __device__ static int take(Params const& params) { return gridDim.x + take_number(params.x, Epilogue::kCounter); }

  // Stages of tile after tile, by one lane of a warp: of an elected one all operands of copies are the same for all, and each is one
  // instruction. A stage's tile is named next to the tile's first stage; behind the last tile comes a stage of none. A loader takes a
  // tile when the one before has as many stages left as there are: a CTA that comes late takes fewer.
  __device__ static void produce(Params const& params, SharedStorage& storage) {
    int early = 0;  // stages whose weights are on their way
    if constexpr (!Epilogue::kFollows) {
      if (params.x.m <= kMostCounted) {
        WorkTile const first = count_first(params, reinterpret_cast<int*>(storage.sums));
        if (first.weights >= 0) early = min(kStages, params.blocks / 2);
        if (cute::elect_one_sync()) load_early(params, storage, first, 0);
      }
      __syncwarp();
      wait_and_launch_dependents();
    }
    if (!cute::elect_one_sync()) return;
    WorkTile tile = find(params, blockIdx.x), next{kUnknown, 0, 0, 0};
    if constexpr (Epilogue::kFollows) {
      early = load_early(params, storage, tile, 0);
      if (early == params.blocks / 2 && early < kStages) {
        next = find(params, take(params));
        early = load_early(params, storage, next, early);
      }
      wait_and_launch_dependents();
    }
    Stages ring;
    while (tile.weights >= 0) {
      moe::prefetch_scales<kRows>(params.x, tile);
      int const stages = params.blocks / 2, boxes = boxes_of(tile);
      uint32_t const bytes = 2 * (kPairBytes + boxes * kBoxBytes);
      char const* const weights[2] = {weights_of(params, tile, 0), weights_of(params, tile, 1)};
      int index = 0;
      bool const takes = next.weights == kUnknown;
#pragma unroll 1
      for (int t = 0; t < stages; ++t, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        if (t == 0) storage.tiles[ring.stage] = tile;
        if (takes && t == max(stages - kStages, 0)) index = take(params);
        if (early-- <= 0) load_weights(storage, weights, bytes, t, ring.stage);
        for (int b = 0; b < 2; ++b) {
#pragma unroll 1
          for (int box = 0; box < boxes; ++box) {
            load_box(params.tokens, storage.filled[ring.stage], storage.tokens[ring.stage][b] + box * kBoxBytes, t * kPairColumns + b * kColumns, tile.m0 + box * kBoxRows);
          }
        }
      }
      tile = takes ? find(params, index) : next, next.weights = kUnknown;
    }
    storage.freed[ring.stage].wait(ring.phase ^ 1);
    storage.tiles[ring.stage] = tile;
    storage.filled[ring.stage].arrive();
  }

  // Weights of a tile's first stages into those from `stage` on. Returns the first stage that is left.
  __device__ static int load_early(Params const& params, SharedStorage& storage, WorkTile const& tile, int stage) {
    if (tile.weights < 0) return stage;
    int const count = min(kStages - stage, params.blocks / 2);
    char const* const weights[2] = {weights_of(params, tile, 0), weights_of(params, tile, 1)};
    storage.tiles[stage] = tile;
    for (int t = 0; t < count; ++t) load_weights(storage, weights, 2 * (kPairBytes + boxes_of(tile) * kBoxBytes), t, stage + t);
    return stage + count;
  }

  // A tile's first or second 64 rows of weights.
  __device__ static char const* weights_of(Params const& params, WorkTile const& tile, int g) {
    return moe::packed_rows<Block>(params.x, tile, g, params.blocks);
  }

  // Announces all bytes of a stage, and loads its weights.
  __device__ static void load_weights(SharedStorage& storage, char const* const (&weights)[2], uint32_t bytes, int t, int stage) {
    auto& filled = storage.filled[stage];
    filled.arrive_and_expect_tx(bytes);
    for (int g = 0; g < 2; ++g) load_bulk(cute::cast_smem_ptr_to_uint(storage.weights[stage][g]), weights[g] + t * kPairBytes, kPairBytes, filled);
  }

  // This CTA's first tile, by a warp that counts pairs of each expert as the launch ahead does.
  __device__ static WorkTile count_first(Params const& params, int* counts) {
    constexpr int kOwn = kMostWeights / 32, kAhead = 10;
    int const lane = threadIdx.x % 32;
    for (int i = 0; i < kOwn / 4; ++i) reinterpret_cast<int4*>(counts)[i * 32 + lane] = make_int4(0, 0, 0, 0);
    __syncwarp();
    visit_weights<32, kAhead>(params.x.layer.x, lane, [&](int, int weights) { atomicAdd(counts + weights, 1); });
    __syncwarp();
    int own[kOwn], rows = 0, tiles = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwn / 4; ++i) {
      int4 const four = reinterpret_cast<int4 const*>(counts)[lane * (kOwn / 4) + i];
      own[4 * i] = four.x, own[4 * i + 1] = four.y, own[4 * i + 2] = four.z, own[4 * i + 3] = four.w;
    }
    auto const tiles_of = [](int count) { return (count + kTileM - 1) / kTileM; };
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwn; ++i) rows += own[i], tiles += tiles_of(own[i]);
    int up_to = rows | tiles << 16;
    CUTLASS_PRAGMA_UNROLL
    for (int offset = 1; offset < 32; offset *= 2) {
      int const others = __shfl_up_sync(~0u, up_to, offset);
      if (lane >= offset) up_to += others;
    }
    int row = (up_to & 0xFFFF) - rows, before = (up_to >> 16) - tiles;
    int const wanted = blockIdx.x / params.tiles_n;
    WorkTile tile{-1, 0, 0, static_cast<int>(blockIdx.x) % params.tiles_n * kRows};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      int const skipped = (wanted - before) * kTileM;
      if (skipped >= 0 && skipped < own[i]) tile.weights = lane * kOwn + i, tile.m0 = row + skipped, tile.end = row + min(own[i], skipped + kTileM);
      row += own[i], before += tiles_of(own[i]);
    }
    unsigned const owner = __ballot_sync(~0u, tile.weights >= 0);
    int const from = owner == 0 ? 0 : __ffs(owner) - 1;
    return {__shfl_sync(~0u, tile.weights, from), __shfl_sync(~0u, tile.m0, from), __shfl_sync(~0u, tile.end, from), tile.n0};
  }

  __device__ static void multiply_tiles(Params const& params, SharedStorage& storage) {
    Stages ring;
    PipelineState<kSumStages> slot;
    while (true) {
      storage.filled[ring.stage].wait(ring.phase);
      WorkTile const tile = storage.tiles[ring.stage];
      if (tile.weights < 0) break;
      multiply(params, storage, ring, slot);
      hand_over(storage, slot, tile);
    }
    for (int i = 0; i < kEpilogueWarps; ++i) {
      storage.stored[slot.stage].wait(slot.phase ^ 1);
      hand_over(storage, slot, {-1, 0, 0, 0});
    }
  }

  __device__ static void hand_over(SharedStorage& storage, PipelineState<kSumStages>& slot, WorkTile const& tile) {
    if (threadIdx.x == 0) storage.summed_tiles[slot.stage] = tile;
    __syncwarp();
    if (threadIdx.x % 32 == 0) storage.summed[slot.stage].arrive();
    slot.next();
  }

  // A tile. K has whole pairs of blocks.
  __device__ static void multiply(Params const& params, SharedStorage& storage, Stages& ring, PipelineState<kSumStages> const& slot) {
    using namespace cute;
    using Op = decltype(GMMA::rs_op_selector<Input, Input, float, Shape<_64, Int<kTileM>, Int<Products::kSpan>>>());
    decltype(make_tiled_mma(Op{})) mma;
    auto tokens = make_tensor(make_smem_ptr(reinterpret_cast<Input*>(&storage.tokens)), typename Products::TokenLayout{});
    int const thread = threadIdx.x % 128, row_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    auto thread_mma = typename Products::TiledMma{}.get_thread_slice(thread);
    auto const fragment_t = thread_mma.make_fragment_B(thread_mma.partition_B(tokens))(_, _, 0, 0);
    auto sums = partition_fragment_C(mma, Shape<_64, Int<kTileM>>{});
    clear(sums);
    using Fragment = decltype(make_tensor<Input>(typename Products::Fragment{}));
    Fragment fragments[2][2];
    uint32_t const tables = cast_smem_ptr_to_uint(storage.tables), own = cast_smem_ptr_to_uint(&storage.weights) + row_group * kPairBytes;
    uint32_t const first_rows = fragment_t.data().desc_.reg32_[0];
    constexpr int kBlockRows = kTileM * 8;  // rows of a block, in pieces of 16 bytes

    // The first or the second block of a stage. `at`: the beginning of descriptors of its rows.
    auto take = [&](Fragment (&fragment)[2], int i, uint32_t at) {
      Block block;
      block.load(own + ring.stage * static_cast<uint32_t>(sizeof(storage.weights[0])) + i * Block::kBytes, thread);
      block.operands(tables, params.spread, reinterpret_cast<uint32_t*>(&fragment[0](0)), reinterpret_cast<uint32_t*>(&fragment[1](0)));
      warpgroup_fence_operand(fragment[0]);
      warpgroup_fence_operand(fragment[1]);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 4; ++step) {
        auto data = fragment_t.data();
        data.desc_.reg32_[0] = at + i * kBlockRows + step * 2;
        gemm(mma, fragment[step / 2](_, _, step % 2), make_tensor(data, fragment_t.layout()), sums);
      }
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the other fragments are free again
    };
    int before = 0;
    for (int t = 0; t < params.blocks; t += 2) {
      // A maximum is known to be the same for all, so descriptors cost threads no instructions.
      uint32_t const at = __reduce_max_sync(~0u, first_rows + ring.stage * (2 * kBlockRows));
      storage.filled[ring.stage].wait(ring.phase);
      take(fragments[0], 0, at);
      if (t > 0 && thread % 32 == 0) storage.freed[before].arrive();  // its last products have been waited for
      take(fragments[1], 1, at);
      before = ring.stage;
      ring.next();
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
    if (thread % 32 == 0) storage.freed[before].arrive();

    storage.stored[slot.stage].wait(slot.phase ^ 1);
    int const lane = threadIdx.x % 32;
    float* const to = storage.sums[slot.stage] + threadIdx.x / 32 * 16 + lane / 4;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTileM / 2; ++i) to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kPitch + i / 2 % 2 * 8] = sums(i);
  }

  // Epilogues of this CTA's tiles: warps take turns.
  __device__ static void run_epilogues(Params const& params, SharedStorage& storage, int warp) {
    int const lane = threadIdx.x % 32;
    typename Epilogue::State state;
    for (int i = warp;; i += kEpilogueWarps) {
      int const place = i % kSumStages;
      storage.summed[place].wait(i / kSumStages % 2);
      WorkTile const tile = storage.summed_tiles[place];
      if (tile.weights < 0) break;
      int const count = min(tile.end - tile.m0, kTileM), n = tile.n0 + lane * 4;
      auto const own = Epilogue::row_of(params.x, tile.m0 + min(lane, count - 1));
      Epilogue const epilogue(params.x, tile.weights, n);
      auto const asked = Epilogue::ask(params.x, tile.m0, count);
      for (int row = 0; row < count; ++row) {
        float4 const found = *reinterpret_cast<float4 const*>(storage.sums[place] + row * kPitch + lane * 4);
        float const quad[4] = {found.x, found.y, found.z, found.w};
        auto const of_row = Epilogue::row_of_lane(own, row);
        epilogue.put_row(params.x, quad, tile.m0 + row, n, of_row);
      }
      __syncwarp();
      if (lane == 0) storage.stored[place].arrive();
      Epilogue::template finish_tile<DecodeMm>(params.x, tile.m0, count, tile.n0, asked, state);
    }
    Epilogue::template end<DecodeMm>(params.x, state);
  }
};

// The epilogue of the first product. Rows that a warp can hold are coded by the warp that stores their last part. Others are coded in
// pieces, which warps take by their numbers, in the order of rows: a warp codes its piece when it has stored a part of a tile and finds the
// piece's row finished. So no CTA comes late because it codes for others. At the end warps take the rest. None waits for a CTA that may
// not run: it leaves its piece to the warp that finishes the row.
template <class Mm>
struct DecodeGatedRows : GatedRows<Mm> {
  using Args = PackedArgs;
  static constexpr int kCounter = 1, kTaken = 4;                        // of tile_count: taken tiles, taken pieces
  static constexpr int kHeld = 16, kMostHeld = kHeld * 128;             // columns of a row that a warp holds
  static constexpr int kFewTokens = 4;                                  // whose rows are held: a warp codes few one after another
  static constexpr int kTogether = 8, kPieceColumns = kTogether * 128;  // of a piece
  static constexpr int kLeft = 1 << 16, kMostTiles = kLeft / 2 - 1;     // a row's count: its parts, and by kLeft the pieces that are left
  static constexpr int kLooks = 100;                                    // at an unfinished row, at the end
  using GatedRows<Mm>::GatedRows;
  struct Row {
    float weight, scale;
  };
  // The piece that a warp codes next.
  struct State {
    int number = -1;          // lane 0's
    int end = 0, failed = 0;  // of all pieces; turns in which its row was not finished
  };

  __device__ static bool is_held(Args const& x) { return x.layer.x.inner <= kMostHeld && x.layer.x.tokens <= kFewTokens; }
  __device__ static Row row_of(Args const& x, int m) {
    auto const& of = x.layer.x;
    return {of.weight_on_input ? router_weight(of, x.layer.ws.order[m]) : 1.0f, x.a_scales[m]};
  }
  __device__ static Row row_of_lane(Row const& own, int lane) { return {__shfl_sync(~0u, own.weight, lane), __shfl_sync(~0u, own.scale, lane)}; }
  __device__ void put_row(Args const& x, float const (&quad)[4], int m, int n, Row const& row) const {
    float largest = 0.0f;
    if (n < x.n) largest = this->put(x, quad, m, n, row.weight, row.scale);
    if (is_held(x)) return;
    largest = quant::reduce_lanes<32>(largest, quant::Max{});
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(x.layer.ws.inner_scales + m), __float_as_int(largest));
  }
  __device__ static int ask(Args const&, int, int) { return 0; }

  template <class Kernel>
  __device__ static void finish_tile(Args const& x, int m0, int count, int, int, State& state) {
    if (is_held(x)) {
      __threadfence();
      int last = 0;
      if (threadIdx.x % 32 == 0) last = atomicAdd(x.layer.ws.finished + m0, 1) == parts_of<Kernel>(x) - 1;
      __threadfence();
      if (__shfl_sync(~0u, last, 0) == 0) return;
      for (int row = m0; row < m0 + count; ++row) code(x.layer, row);
    } else {
      int number = next_piece(x, state), found = look(x, state, number);
      __threadfence();
      __syncwarp();
      int before = 0;
      if (int const lane = threadIdx.x % 32; lane < count) before = atomicAdd(x.layer.ws.finished + m0 + lane, 1);
#pragma unroll 1
      for (int turn = 0; turn < 2; ++turn) {
        bool const coded = code_piece_of<Kernel>(x, state, number, found);
        state.failed += coded ? -turn : 1 - turn;
        if (!coded || state.failed == 0) break;
        number = next_piece(x, state), found = look(x, state, number);  // another: who was too early comes to as many
      }
      for (unsigned rows = __ballot_sync(~0u, before / kLeft > 0 && before % kLeft == parts_of<Kernel>(x) - 1); rows != 0; rows &= rows - 1) {
        __threadfence();
        for (int i = 0; i < pieces_of(x); ++i) code_piece<kTogether>(x.layer, m0 + __ffs(rows) - 1, i);
      }
    }
  }

  template <class Kernel>
  __device__ static void end(Args const& x, State& state) {
    if (is_held(x)) return;
    int looks = 0;
    for (int number; (number = next_piece(x, state)) < state.end;) {
      if (code_piece_of<Kernel>(x, state, number, look(x, state, number))) continue;
      if (++looks < kLooks) {
        __nanosleep(200);
        continue;
      }
      int const row = number / pieces_of(x);
      int before = 0;
      if (threadIdx.x % 32 == 0) before = atomicAdd(x.layer.ws.finished + row, kLeft);
      if (__shfl_sync(~0u, before, 0) % kLeft < parts_of<Kernel>(x)) take(x, state);  // else it is finished now
    }
  }

  template <class Kernel>
  __device__ static int parts_of(Args const& x) {
    return (x.n - 1) / Kernel::kRows + 1;
  }
  __device__ static int pieces_of(Args const& x) { return (x.layer.x.inner - 1) / kPieceColumns + 1; }

  // Takes a number, which is known later.
  __device__ static void take(Args const& x, State& state) {
    state.number = threadIdx.x % 32 == 0 ? atomicAdd(x.layer.ws.tile_count + kTaken, 1) : 0;
  }
  __device__ static int next_piece(Args const& x, State& state) {
    if (state.number < 0) {
      take(x, state);
      int const tiles = __ldcg(x.layer.ws.tile_count);
      state.end = tiles > 0 ? tile_at(x, tiles - 1).end * pieces_of(x) : 0;
    }
    return __shfl_sync(~0u, state.number, 0);
  }

  // The count of the piece's row, 0 behind the last.
  __device__ static int look(Args const& x, State const& state, int number) {
    int found = 0;
    if (number < state.end) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(x.layer.ws.finished + number / pieces_of(x)) : "memory");
    }
    return found;
  }

  // Codes the piece if its row is finished, and takes the next. `found`: the row's count.
  template <class Kernel>
  __device__ static bool code_piece_of(Args const& x, State& state, int number, int found) {
    if (!__all_sync(~0u, found % kLeft >= parts_of<Kernel>(x))) return false;
    take(x, state);
    code_piece<kTogether>(x.layer, number / pieces_of(x), number % pieces_of(x));
    return true;
  }

  // A row's results to codes, by a warp that holds it.
  __device__ static void code(gemmill::fused_moe::Params const& of, int64_t row) {
    int const lane = threadIdx.x % 32, pieces = of.x.inner / 4;
    float4 const* const values = reinterpret_cast<float4 const*>(of.ws.results + row * of.x.inner);
    auto* const codes = reinterpret_cast<uint32_t*>(of.ws.inner_codes + row * of.x.inner);
    float4 held[kHeld];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) held[i] = __ldcg(values + min(lane + i * 32, pieces - 1));
    float largest = 0.0f;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) largest = largest_of(held[i], largest);
    largest = quant::reduce_lanes<32>(largest, quant::Max{});
    Coding const coding(largest, INFINITY);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      if (lane + i * 32 < pieces) codes[lane + i * 32] = word_of(coding, held[i]);
    }
    if (lane == 0) of.ws.inner_scales[row] = largest;
  }
};

// The epilogue of the second.
template <class Mm>
struct DecodeParts : WeighedParts<Mm> {
  using Args = PackedArgs;
  static constexpr int kCounter = 2, kMostTiles = INT_MAX;
  using WeighedParts<Mm>::WeighedParts;
  using Row = OfRow;
  struct State {};

  __device__ static Row row_of(Args const& x, int m) {
    return {x.layer.ws.order[m], x.layer.x.weight_on_input ? 1.0f : x.a_scales[m], Coding(x.layer.ws.inner_scales[m], INFINITY).scale};
  }
  __device__ static Row row_of_lane(Row const& own, int lane) {
    return {__shfl_sync(~0u, own.pair, lane), __shfl_sync(~0u, own.weight, lane), __shfl_sync(~0u, own.scale, lane)};
  }
  __device__ void put_row(Args const& x, float const (&quad)[4], int, int n, Row const& row) const {
    if (n < x.n) this->put(x, quad, row.pair, n, row.weight, row.scale);
  }
  __device__ static AskedRow ask(Args const& x, int m0, int count) { return ask_row(x.layer, m0, count); }
  template <class Kernel>
  __device__ static void finish_tile(Args const& x, int m0, int count, int n0, AskedRow const& asked, State&) {
    sum_stored<__nv_bfloat16, Kernel::kRows>(x.layer, m0, count, n0, asked);
  }
  template <class Kernel>
  __device__ static void end(Args const&, State&) {}
};

}  // namespace gemmill::fused_moe
