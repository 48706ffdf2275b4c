// Fused experts of e4m3 with scales in groups, by the tensor core of 128 threads (WGMMA): launches, lists and workspace are those of
// fused_experts.cuh.
//
// Weights fill the tensor core's rows, an expert's rows are its columns: so few rows waste little, and weights go from memory to shared
// memory by TMA. CTAs are persistent. One thread loads weights, stage after stage and tile after tile; other warps copy codes and scales
// of 16 rows each. Two groups of 128 threads multiply: each step of 128 along K has sums of its own, which join the others with their
// scales in float32. The loader reads a tile's first data while it loads the one before.
//
//   up    a stage has 128 gates and their 128 ups. A thread has both of a result, and a tile has a whole group of 128 results: its CTA
//         codes it. Of tiles of 8 rows, of which there may be few, two CTAs have half of the results each, and exchange their
//         maxima
//   down  a stage has 256 rows of W2. More warps take turns to report stores and to sum, while others multiply the next tiles
//
// It loads weights of `down` before `up` has ended, and so reads the list of tiles, past L1. For few pairs it loads weights of `up`
// before that list is there: each CTA counts the pairs of experts itself.
#pragma once

#include <climits>
#include <cuda.h>

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/arch/mma_sm90.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/reg_reconfig.h"
#include "core/together.cuh"
#include "fused_experts/expert_mm.cuh"
#include "fused_experts/prepare.cuh"
#include "coding/gating.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/tensor_map.h"

namespace gemmill::fused_moe {

struct StreamedParams {
  CUtensorMap weights;  // rows of all experts; boxes of 128 bytes of some
  Params p;
  int32_t blocks, steps;  // blocks of rows of a tile; steps along K
  uint64_t policy;        // of weights in L2
};

template <class Half_, int kTokens_, bool kFirst_>
struct StreamedMm {
  using Half = Half_;
  static constexpr int kTokens = kTokens_;
  static constexpr bool kFirst = kFirst_;  // whether it is the product with W13
  static constexpr int kGroup = 128, kConsumers = 256, kConsumerWarps = kConsumers / 32, kThreads = kConsumers + 256;
  static constexpr int kRowsEach = kTokens < 16 ? kTokens : 16, kGatherers = kTokens / kRowsEach;  // rows that a warp copies, and warps
  static constexpr int kLoader = kConsumerWarps, kGatherer = kLoader + 1, kSummer = kGatherer + kGatherers;
  static constexpr int kSummers = kThreads / 32 - kSummer;
  static constexpr bool kPaired = kFirst && kTokens == 8;  // whether two CTAs share a tile
  static constexpr int kCtas = kPaired ? 2 : 1, kShare = kGroup / kCtas;  // of a tile; results of one
  static constexpr int kBoxRows = kPaired ? 64 : 128, kBoxBytes = kBoxRows * 128, kBoxes = 2;
  static constexpr int kOwnBoxes = kPaired ? 1 : 2;  // sets of 64 rows that a group of threads multiplies
  static constexpr int kBlockRows = kFirst ? kGroup : kBoxes * kBoxRows;  // results of a tile, or its rows of W2
  static constexpr int kSums = kTokens / 2, kColumns = kTokens / 4;       // of a thread, for 64 rows of weights
  static constexpr int kPitch = kGroup + 4;
  static constexpr int kFewPairs = 4 * kThreads, kMostFewTiles = kFewPairs / kTokens + kMostWeights;
  static constexpr int kStageBytes = kBoxes * kBoxBytes + kTokens * 128 + kTokens * 12 + 64;
  static constexpr int kEndBytes = 1024 + 1024 + (kFirst ? kTokens * kPitch * 4 + kMostWeights * 4 + kMostFewTiles * 2 : 0);
  static constexpr int kMostStages = (227 * 1024 - kEndBytes) / kStageBytes, kStages = kMostStages < 12 ? kMostStages : 12;

  static_assert(kTokens % 8 == 0 && kTokens <= 64, "a thread has two sets of sums of 64 rows of weights");
  static_assert(kStages >= 3, "loads run ahead of products");
  static_assert(kThreads == kMostWeights, "a thread counts the rows of one expert");

  using Mma = decltype(cute::SM90::GMMA::ss_op_selector<cutlass::float_e4m3_t, cutlass::float_e4m3_t, float,
                                                        cute::Shape<cute::_64, cute::Int<kTokens>, cute::_32>>());
  using Sums = float[kOwnBoxes][kSums];
  using Stages = PipelineState<kStages>;

  struct SharedStorage {
    alignas(1024) uint8_t weights[kStages][kBoxes * kBoxBytes];
    alignas(1024) uint8_t codes[kStages][kTokens * 128];
    alignas(16) uint32_t results[kFirst ? kTokens : 1][kPitch];  // gate and up, rounded
    float scales[kStages][kTokens];     // of rows
    float of_weights[kStages][2];       // of gates and of ups, or of the rows of either group of threads
    int pairs[kStages][kTokens];        // next to a tile's last step, as the rest
    float router[kStages][kTokens];
    int count[kStages];
    float maxima[2][kTokens];           // of the other CTA's results
    int counts[kFirst ? kMostWeights : 1], tiles;
    uint16_t experts[kFirst ? kMostFewTiles : 1];  // of tiles
    cutlass::arch::ClusterTransactionBarrier filled[kStages], met[2];
    cutlass::arch::ClusterBarrier freed[kStages];
    cutlass::arch::ClusterBarrier stored[kSummers], seen[kSummers];  // of tiles, by their summing warp
  };
  static constexpr int kSharedBytes = sizeof(SharedStorage) + 1024;  // room to align the base
  static_assert(kSharedBytes + 256 <= 227 * 1024, "a multiprocessor has so much, and deal_tiles has some of its own");

  __device__ static void run(StreamedParams const& params, char* shared) {
    auto& storage = *reinterpret_cast<SharedStorage*>((reinterpret_cast<uintptr_t>(shared) + 1023) & ~uintptr_t(1023));
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
      for (auto& barrier : storage.filled) barrier.init(1 + kGatherers * 33);
      for (auto& barrier : storage.freed) barrier.init(kConsumerWarps);
      for (auto& barrier : storage.stored) barrier.init(kConsumerWarps);
      for (auto& barrier : storage.seen) barrier.init(1);
      for (auto& barrier : storage.met) barrier.init(1);
      cutlass::arch::fence_barrier_init();
    }
    meet();
    if constexpr (kFirst) list_experts(params, storage);
    if (warp >= kLoader) {
      if constexpr (kTokens == 64) cutlass::arch::warpgroup_reg_dealloc<56>();
      if (warp == kLoader) {
        load_weights(params, storage);
      } else if (warp < kSummer) {
        gather(params, storage, warp - kGatherer);
      } else if constexpr (!kFirst) {
        sum(params, storage, warp - kSummer);
      }
    } else {
      if constexpr (kTokens == 64) cutlass::arch::warpgroup_reg_alloc<200>();
      if constexpr (kFirst) asm volatile("griddepcontrol.wait;" ::: "memory");
      consume(params, storage);
    }
    if constexpr (kPaired) meet();  // nobody leaves while the other writes to it
  }

 private:
  // All threads of a tile's CTAs.
  __device__ static void meet() {
    if constexpr (kPaired) {
      __syncwarp();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  // This CTA's tiles are every ctas()-th, from the cta()-th on.
  __device__ static int cta() { return blockIdx.x / kCtas; }
  __device__ static int ctas() { return gridDim.x / kCtas; }
  __device__ static int rank() { return blockIdx.x % kCtas; }

  __device__ static int items_of(StreamedParams const& params) { return __ldcg(params.p.ws.tile_count) * params.blocks; }
  __device__ static Tile tile_of(StreamedParams const& params, int item) {
    int4 const found = __ldcg(reinterpret_cast<int4 const*>(params.p.ws.tiles) + item / params.blocks);
    return {found.x, found.y, found.z, found.w};
  }

  // Whose tiles there are: of few pairs every CTA finds that itself, before the first launch has listed them.
  __device__ static bool is_few(StreamedParams const& params) { return int64_t(params.p.x.tokens) * params.p.x.topk <= kFewPairs; }
  __device__ static void list_experts(StreamedParams const& params, SharedStorage& storage) {
    if (!is_few(params)) return;
    if (FewTiles<kTokens>::serves(params.p.x)) {
      if (threadIdx.x < 32) {
        FewTiles<kTokens> few;
        few.find(params.p.x);
        for (int i = 0; i < few.tiles; ++i) storage.experts[few.before + i] = static_cast<uint16_t>(few.weights);
        if (threadIdx.x == 0) storage.tiles = few.all;
      }
      __syncthreads();
    } else {
      count_experts(params, storage);
    }
  }
  __device__ static void count_experts(StreamedParams const& params, SharedStorage& storage) {
    int const pairs = params.p.x.tokens * params.p.x.topk;
    auto& counts = storage.counts;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += kThreads) {
      int const weights = weights_of(params.p.x, pair);
      if (weights >= 0) atomicAdd(&counts[weights], 1);
    }
    int const tiles = deal_tiles<kTokens>(counts, [&](int index, Tile const& tile) { storage.experts[index] = static_cast<uint16_t>(tile.weights); });
    if (threadIdx.x == kThreads - 1) storage.tiles = tiles;
    __syncthreads();
  }

  __device__ static void load_weights(StreamedParams const& params, SharedStorage& storage) {
    auto const& x = params.p.x;
    int const lane = threadIdx.x % 32;
    if (lane == 0) cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&params.weights));
    bool const few = kFirst && is_few(params);
    if (kFirst && !few) asm volatile("griddepcontrol.wait;" ::: "memory");
    auto const expert_of = [&](int item) { return few ? int(storage.experts[item / params.blocks]) : tile_of(params, item).weights; };
    Stages ring;
    int next = expert_of(cta());  // which there is room for, should there be no such tile
    int const items = few ? storage.tiles * params.blocks : items_of(params);
    for (int item = cta(); item < items; item += ctas()) {
      int const expert = next, block = item % params.blocks;
      if (item + ctas() < items) next = expert_of(item + ctas());
      int rows[kBoxes];
      if constexpr (kFirst) {
        int const first = expert * 2 * x.inner + block * kGroup + rank() * kShare;
        rows[0] = first + x.gate_row, rows[1] = first + x.up_row;
      } else {
        rows[0] = expert * x.hidden + block * kBlockRows, rows[1] = rows[0] + kBoxRows;
      }
      for (int step = 0; step < params.steps; ++step, ring.next()) {
        storage.freed[ring.stage].wait(ring.phase ^ 1);
        if (lane != 0) continue;
        auto& filled = storage.filled[ring.stage];
        filled.arrive_and_expect_tx(kBoxes * kBoxBytes);
        for (int i = 0; i < kBoxes; ++i) {
          cute::SM90_TMA_LOAD_2D::copy(&params.weights, reinterpret_cast<uint64_t*>(&filled), params.policy,
                                       storage.weights[ring.stage] + i * kBoxBytes, step * 128, rows[i]);
        }
      }
    }
  }

  // Where a lane's copies of a tile come from.
  struct Source {
    int count;     // of this warp's rows
    int64_t row;   // of codes and scales, that of lane % kRowsEach
    float router;  // its factor at the end
    float const* weight_scale;  // of lanes 0 and 1

    __device__ Source(StreamedParams const& params, Tile const& tile, int pair, int item, int first, int lane) : count(tile.count - first) {
      auto const& x = params.p.x;
      row = kFirst ? pair / x.topk : tile.first + min(first + lane % kRowsEach, tile.count - 1);
      router = (x.weight_on_input != 0) == kFirst ? router_weight(x, pair) : 1.0f;
      int const block = item % params.blocks;
      if constexpr (kFirst) {
        int const row_block = block + (lane == 0 ? x.gate_row : x.up_row) / kGroup;
        weight_scale = x.w13_scales + tile.weights * x.w13_scale_stride_expert + row_block * x.w13_scale_stride_row;
      } else {
        int const row_block = min(block * kBoxes + lane, (x.hidden - 1) / kGroup);
        weight_scale = x.w2_scales + tile.weights * x.w2_scale_stride_expert + row_block * x.w2_scale_stride_row;
      }
    }
  };

  // Copies rows of tile after tile, from a tile's `part`-th 16 on. It requests the tile after the next and the next one's pairs before it
  // needs them.
  __device__ static void gather(StreamedParams const& params, SharedStorage& storage, int part) {
    int const lane = threadIdx.x % 32, first = part * kRowsEach;
    if constexpr (kFirst) begin();
    int item = cta();
    Tile tile = tile_of(params, item);  // which there is room for, should there be no such tile
    int const items = items_of(params);
    bool begun = kFirst;
    auto const tile_at = [&](int item) { return tile_of(params, item < items ? item : 0); };
    auto const pair_of = [&](Tile const& tile) { return __ldcg(params.p.ws.order + tile.first + min(first + lane % kRowsEach, tile.count - 1)); };
    Stages ring;
    if (item < items) {
      Tile next = tile_at(item + ctas());
      int pair = pair_of(tile);
      while (item < items) {
        Tile const after = tile_at(item + 2 * ctas());
        int const next_pair = pair_of(next);
        Source const source(params, tile, pair, item, first, lane);
        if (!begun) begin(), begun = true;  // the list is known before the codes
        for (int step = 0; step < params.steps; ++step, ring.next()) {
          storage.freed[ring.stage].wait(ring.phase ^ 1);
          copy_step(params.p, storage, source, step, ring.stage, first, lane);
          if (step == params.steps - 1) {
            if (lane < kRowsEach) storage.pairs[ring.stage][first + lane] = pair, storage.router[ring.stage][first + lane] = source.router;
            if (part == 0 && lane == 0) storage.count[ring.stage] = tile.count;
          }
          uint32_t const filled = cute::cast_smem_ptr_to_uint(&storage.filled[ring.stage]);
          asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(filled) : "memory");
          __syncwarp();
          if (lane == 0) storage.filled[ring.stage].arrive();
        }
        item += ctas(), tile = next, next = after, pair = next_pair;
      }
    }
    if (!begun) begin();
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // The launch before has ended; the next one may begin.
  __device__ static void begin() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }

  // Codes of a warp's rows for one step, to where TMA would put them, and scales. Bytes beyond the rows stay as they were: a column of
  // the product is of one row alone.
  __device__ static void copy_step(Params const& p, SharedStorage& storage, Source const& source, int step, int stage, int first, int lane) {
    int const length = kFirst ? p.x.hidden : p.x.inner, groups = kFirst ? p.groups_of_hidden : p.groups_of_inner;
    uint8_t const* const codes = kFirst ? p.ws.codes : p.ws.inner_codes;
    float const* const scales = kFirst ? p.ws.scales : p.ws.inner_scales;
    int const piece = lane % 8, offset = step * 128 + piece * 16, inside = offset < length;
    uint32_t const to = cute::cast_smem_ptr_to_uint(storage.codes[stage]) + first * 128;
#pragma unroll
    for (int i = 0; i < kRowsEach / 4; ++i) {
      if (i * 4 >= source.count) break;
      int const j = i * 4 + lane / 8;
      int64_t const row = __shfl_sync(~0u, source.row, j);
      if (j < source.count) copy_weights(to + j * 128 + (piece ^ j % 8) * 16, codes + row * length + (inside ? offset : 0), inside ? 16 : 0);
    }
    if (lane < kRowsEach && lane < source.count) {
      copy_word(cute::cast_smem_ptr_to_uint(&storage.scales[stage][first + lane]), scales + source.row * groups + step);
    }
    int64_t const stride_k = kFirst ? p.x.w13_scale_stride_k : p.x.w2_scale_stride_k;
    if (first == 0 && lane < 2) copy_word(cute::cast_smem_ptr_to_uint(&storage.of_weights[stage][lane]), source.weight_scale + step * stride_k);
  }

  // A thread's data of its columns at the end of a tile.
  struct Epilogue {
    int count, pairs[kColumns];
    float router[kColumns];
  };

  __device__ static void consume(StreamedParams const& params, SharedStorage& storage) {
    int const group = threadIdx.x / 128, items = items_of(params);
    Stages ring;
    PipelineState<kSummers> ends;
    PipelineState<2> meetings;
    for (int item = cta(); item < items; item += ctas()) {
      Tile const tile = tile_of(params, item);
      int const block = item % params.blocks;
      Sums total = {};
      Epilogue epilogue;
#pragma unroll 1
      for (int step = 0; step < params.steps; ++step, ring.next()) add_step(storage, total, epilogue, ring, group, step == params.steps - 1);
      if constexpr (kFirst) {
        gate(params.p, storage, total, epilogue, tile, block, meetings);
      } else {
        store_parts(params.p, total, epilogue, tile.weights, block, group);
        storage.seen[ends.stage].wait(ends.phase ^ 1);
        __syncwarp();
        if (threadIdx.x % 32 == 0) storage.stored[ends.stage].arrive();
        ends.next();
      }
    }
  }

  // A step's products, and their scales.
  __device__ static void add_step(SharedStorage& storage, Sums& total, Epilogue& epilogue, Stages const& ring, int group, bool is_last) {
    int const stage = ring.stage, t = threadIdx.x % 4;
    storage.filled[stage].wait(ring.phase);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor core reads bytes that threads have copied
    Sums sums;
    uint64_t const codes = descriptor_of(storage.codes[stage]);
    fence(sums);
    cute::warpgroup_arrive();
#pragma unroll
    for (int box = 0; box < kOwnBoxes; ++box) {
      // Either group has 64 gates and their ups, or 128 rows of W2; of a shared tile one has gates and one ups.
      int const at = kFirst && !kPaired ? box * kBoxBytes + group * kBoxBytes / 2 : group * kBoxBytes + box * kBoxBytes / 2;
      uint64_t const weights = descriptor_of(storage.weights[stage] + at);
#pragma unroll
      for (int k = 0; k < 4; ++k) multiply(sums[box], weights + k * 2, codes + k * 2, k > 0, std::make_index_sequence<kSums>{});
    }
    cute::warpgroup_commit_batch();
    float scales[kColumns], of_weights[kOwnBoxes];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) scales[i] = storage.scales[stage][i / 2 * 8 + t * 2 + i % 2];
#pragma unroll
    for (int box = 0; box < kOwnBoxes; ++box) of_weights[box] = storage.of_weights[stage][kFirst && !kPaired ? box : group];
    if (is_last) {
      epilogue.count = storage.count[stage];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        epilogue.pairs[i] = storage.pairs[stage][i / 2 * 8 + t * 2 + i % 2], epilogue.router[i] = storage.router[stage][i / 2 * 8 + t * 2 + i % 2];
      }
    }
    cute::warpgroup_wait<0>();
    fence(sums);
    __syncwarp();
    if (threadIdx.x % 32 == 0) storage.freed[stage].arrive();
#pragma unroll
    for (int box = 0; box < kOwnBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float const factor = __fmul_rn(scales[i / 4 * 2 + i % 2], of_weights[box]);
        total[box][i] = __fmaf_rn(sums[box][i], factor, total[box][i]);
      }
    }
  }

  __device__ static void fence(Sums& sums) {
#pragma unroll
    for (int box = 0; box < kOwnBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) cute::warpgroup_fence_operand(sums[box][i]);
    }
  }

  template <size_t... i>
  __device__ static void multiply(float (&sums)[kSums], uint64_t weights, uint64_t codes, bool adds, std::index_sequence<i...>) {
    Mma::fma(weights, codes, sums[i]..., adds ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero);
  }

  // Rows of 128 bytes, swizzled by as many, eight of them in 1,024 bytes.
  __device__ static uint64_t descriptor_of(uint8_t const* from) {
    uint64_t const address = cute::cast_smem_ptr_to_uint(from);
    return (address & 0x3FFFF) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
  }

  // Row of a thread's i-th of two, among 64.
  __device__ static int row_of(int i) { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i; }

  // activation(gate) up of a tile's rows, and their codes. First gates and ups round, in shared memory.
  __device__ static void gate(Params const& p, SharedStorage& storage, Sums const& total, Epilogue const& epilogue, Tile const& tile, int block,
                                PipelineState<2>& meetings) {
    auto const& x = p.x;
    int const group = threadIdx.x / 128, t = threadIdx.x % 4, first = kPaired ? 0 : group * 64;
    float biases[kOwnBoxes][2] = {};
    if (x.w13_bias != nullptr) {
      Half const* const bias = static_cast<Half const*>(x.w13_bias) + tile.weights * (2 * int64_t(x.inner)) + block * kGroup + rank() * kShare + first;
#pragma unroll
      for (int box = 0; box < kOwnBoxes; ++box) {
        bool const is_up = kPaired ? group : box;
        for (int i = 0; i < 2; ++i) biases[box][i] = to_float(bias[(is_up ? x.up_row : x.gate_row) + row_of(i)]);
      }
    }
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);  // codes of the tile before are made
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      int const j = column / 2 * 8 + t * 2 + column % 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t halves[kOwnBoxes];
#pragma unroll
        for (int box = 0; box < kOwnBoxes; ++box) {
          float value = rounded(total[box][column / 2 * 4 + 2 * i + column % 2]);
          if (x.w13_bias != nullptr) value = __fadd_rn(value, biases[box][i]);
          if (x.weight_on_input) value = __fmul_rn(value, epilogue.router[column]);
          halves[box] = bits_of(of_float<Half>(value));
        }
        if (j >= epilogue.count) continue;
        if constexpr (kPaired) {
          reinterpret_cast<uint16_t*>(&storage.results[j][row_of(i)])[group] = static_cast<uint16_t>(halves[0]);
        } else {
          storage.results[j][first + row_of(i)] = halves[0] | halves[1] << 16;
        }
      }
    }
    if constexpr (kPaired) {
      if (threadIdx.x == 0) storage.met[meetings.stage].arrive_and_expect_tx(kTokens * sizeof(float));
    }
    cutlass::arch::NamedBarrier::sync(kConsumers, 1);
    if constexpr (kPaired) {
      code_share(p, storage, epilogue, tile, block, meetings);
      meetings.next();
    } else {
      for (int j = threadIdx.x / 32; j < epilogue.count; j += kConsumerWarps) {
        int64_t const row = tile.first + j;
        auto const four = [&](int) { return results_of(p.x, storage, j); };
        code_group(four, reinterpret_cast<uint32_t*>(p.ws.inner_codes + row * x.inner), x.inner, block, p.ws.inner_scales + row * p.groups_of_inner + block);
      }
    }
  }

  // A lane's four results of a row.
  __device__ static float4 results_of(gemmill_fused_experts_args const& x, SharedStorage const& storage, int j) {
    quant::Gating const gating{x.activation, x.alpha, x.limit, x.beta};
    uint4 const words = *reinterpret_cast<uint4 const*>(&storage.results[j][threadIdx.x % 32 * 4]);
    auto const result = [&](uint32_t word) { return gating(half_of(word & 0xFFFF), half_of(word >> 16)); };
    return {result(words.x), result(words.y), result(words.z), result(words.w)};
  }

  // Codes of this CTA's half of a group, a row by each warp, with the scale of the whole group.
  __device__ static void code_share(Params const& p, SharedStorage& storage, Epilogue const& epilogue, Tile const& tile, int block, PipelineState<2> const& meetings) {
    static_assert(!kPaired || kTokens == kConsumerWarps, "a warp has a row");
    int const j = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool const own = j < epilogue.count && lane < kShare / 4;
    float4 const values = own ? results_of(p.x, storage, j) : float4{};
    float const largest = quant::reduce_lanes<32>(largest_of(values, 0.0f), quant::Max{});
    auto& met = storage.met[meetings.stage];
    if (lane == 0) tell_other(&storage.maxima[meetings.stage][j], largest, reinterpret_cast<uint64_t*>(&met));
    met.wait(meetings.phase);
    Coding const coding(fmaxf(largest, storage.maxima[meetings.stage][j]), INFINITY);
    uint32_t const word = word_of(coding, values);
    int64_t const row = tile.first + j;
    if (own) reinterpret_cast<uint32_t*>(p.ws.inner_codes + row * p.x.inner + block * kGroup + rank() * kShare)[lane] = word;
    if (own && lane == 0 && rank() == 0) p.ws.inner_scales[row * p.groups_of_inner + block] = coding.scale;
  }

  // Stores to where the other CTA has `to`, and counts it there at `barrier`.
  __device__ static void tell_other(float* to, float value, uint64_t* barrier) {
    uint32_t there, counted;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(cute::cast_smem_ptr_to_uint(to)), "r"(rank() ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(cute::cast_smem_ptr_to_uint(barrier)), "r"(rank() ^ 1));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there), "r"(__float_as_uint(value)), "r"(counted) : "memory");
  }

  __device__ static uint32_t bits_of(__nv_bfloat16 value) { return __bfloat16_as_ushort(value); }
  __device__ static uint32_t bits_of(__half value) { return __half_as_ushort(value); }
  __device__ static float half_of(uint32_t bits) {
    if constexpr (std::is_same_v<Half, __half>) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    } else {
      return __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(bits)));
    }
  }

  // A product as grouped GEMMs leave it, so that few tokens by these kernels and many by those have the same bits.
  __device__ static float rounded(float product) { return to_float(of_float<Half>(product)); }

  // Rows of W2 times a tile's rows, in the order of the sum.
  __device__ static void store_parts(Params const& p, Sums const& total, Epilogue const& epilogue, int expert, int block, int group) {
    auto const& x = p.x;
    int const t = threadIdx.x % 4;
#pragma unroll
    for (int box = 0; box < 2; ++box) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int const n = block * kBlockRows + group * kBoxRows + box * 64 + row_of(i);
        if (n >= x.hidden) continue;
        float const bias = x.w2_bias != nullptr ? to_float(static_cast<Half const*>(x.w2_bias)[expert * int64_t(x.hidden) + n]) : 0.0f;
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          if (column / 2 * 8 + t * 2 + column % 2 >= epilogue.count) continue;
          float value = rounded(total[box][column / 2 * 4 + 2 * i + column % 2]);
          if (x.w2_bias != nullptr) value = __fadd_rn(value, bias);
          p.ws.parts[epilogue.pairs[column] * int64_t(x.hidden) + n] = __fmul_rn(value, epilogue.router[column]);
        }
      }
    }
  }

  // Reports every kSummers-th tile as stored, and sums rows of tokens that now have all parts, in the order of their experts. It reads
  // the counters to report to before the store.
  __device__ static void sum(StreamedParams const& params, SharedStorage& storage, int which) {
    constexpr int kEach = (kTokens + 31) / 32;
    Params const& p = params.p;
    int const lane = threadIdx.x % 32;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int const items = items_of(params);
    uint32_t phase = 0;
    for (int item = blockIdx.x + which * gridDim.x; item < items; item += kSummers * gridDim.x, phase ^= 1) {
      Tile const tile = tile_of(params, item);
      int const block = item % params.blocks, n0 = block * kBlockRows;
      int tokens[kEach], needed[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        int const j = lane + 32 * i;
        tokens[i] = j < tile.count ? __ldcg(p.ws.order + tile.first + j) / p.x.topk : -1;
        needed[i] = j < tile.count ? __ldcg(p.ws.needed + tokens[i]) : 0;
      }
      storage.stored[which].wait(phase);
      __syncwarp();
      if (lane == 0) storage.seen[which].arrive();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (tokens[i] >= 0 && add_one(p.ws.summed + int64_t(tokens[i]) * p.down.blocks + block) + 1 < needed[i]) tokens[i] = -1;
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        for (unsigned whole = __ballot_sync(~0u, tokens[i] >= 0); whole != 0; whole &= whole - 1) {
          int const token = __shfl_sync(~0u, tokens[i], __ffs(whole) - 1);
          sum_columns(p, token, n0, lane);
        }
      }
    }
  }

  // A token's sum over its experts, of a tile's columns, by a warp. It loads parts of several experts before it adds the first, also of
  // those whose weights are elsewhere, whose values it does not add.
  __device__ static void sum_columns(Params const& p, int64_t token, int n0, int lane) {
    constexpr int kAhead = kTokens == 64 ? 4 : 8;  // whose warps have 56 registers a thread
    auto const& x = p.x;
    int columns[kBoxes];
    float4 sums[kBoxes] = {};
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) columns[box] = n0 + box * kBoxRows + lane * 4;
    for (int first = 0; first < x.topk; first += kAhead) {
      bool has[kAhead];
      float4 parts[kAhead][kBoxes];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        int64_t const pair = token * x.topk + min(first + i, x.topk - 1);
        has[i] = first + i < x.topk && __ldcg(p.ws.local + pair) >= 0;
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          parts[i][box] = __ldcg(reinterpret_cast<float4 const*>(p.ws.parts + pair * x.hidden + (columns[box] < x.hidden ? columns[box] : 0)));
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          auto& sum = sums[box];
          auto const& part = parts[i][box];
          if (has[i]) sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
      }
    }
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (columns[box] >= x.hidden) continue;
      Half* const out = static_cast<Half*>(x.out) + token * x.ldout + columns[box];
      float const values[4] = {sums[box].x, sums[box].y, sums[box].z, sums[box].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[i]), values[i]) : values[i]);
    }
  }

  // Reports all stores so far, and reads those of others.
  __device__ static int add_one(int32_t* counter) {
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
  }
};

template <class Half_, int kTokens_>
struct StreamedExperts {
  using Half = Half_;
  static constexpr bool kCoded = true;
  static constexpr int kTokens = kTokens_;
  using First = Prepare<Half, true, true, kTokens>;
  using Up = StreamedMm<Half, kTokens, true>;
  using Down = StreamedMm<Half, kTokens, false>;
};

// Host code: three launches.

// Rows of e4m3 weights for boxes of 128 bytes.
inline bool describe_weights(CUtensorMap& map, void const* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
  return encode_tensor_map<2>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)},
                              {static_cast<cuuint64_t>(stride)}, {128, static_cast<cuuint32_t>(box_rows)}, true);
}

template <class Kernel>
int64_t streamed_workspace_of(gemmill_fused_experts_args const& x) {
  return x.workspace != nullptr ? 0 : Workspace(x, true, nullptr).bytes;
}

template <class Kernel, auto prepare, auto up, auto down>
int32_t launch_streamed_experts(gemmill_fused_experts_args const& x, gemmill_launch const& how) {
  using Up = typename Kernel::Up;
  using Down = typename Kernel::Down;
  if (cudaError_t error = allow_shared_memory<up>(how.device, Up::kSharedBytes); error != cudaSuccess) return error;
  if (cudaError_t error = allow_shared_memory<down>(how.device, Down::kSharedBytes); error != cudaSuccess) return error;
  Workspace const ws(x, true, static_cast<char*>(x.workspace != nullptr ? x.workspace : how.workspace));
  int64_t const pairs = int64_t(x.tokens) * x.topk, most_tiles = pairs / Kernel::kTokens + std::min<int64_t>(pairs, x.weights);
  int64_t const rows_up = int64_t(x.weights) * 2 * x.inner, rows_down = int64_t(x.weights) * x.hidden;
  if (pairs > INT_MAX / 2 || std::max(rows_up, rows_down) > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  Params params{x, ws, {}, {}, (x.hidden + 127) / 128, (x.inner + 127) / 128, 0, 0};
  params.down.blocks = (x.hidden + Down::kBlockRows - 1) / Down::kBlockRows;
  params.summed_count = int64_t(x.tokens) * params.down.blocks;
  // Weights with a single use leave L2 to data with more.
  using Policy = cute::TMA::CacheHintSm90;
  auto const policy = static_cast<uint64_t>(pairs * 2 <= int64_t(x.weights) * Kernel::kTokens ? Policy::EVICT_FIRST : Policy::EVICT_NORMAL);
  StreamedParams of_up{{}, params, x.inner / Up::kBlockRows, params.groups_of_hidden, policy};
  StreamedParams of_down{{}, params, params.down.blocks, params.groups_of_inner, policy};
  if (!describe_weights(of_up.weights, x.w13, rows_up, x.hidden, x.w13_stride_row, Up::kBoxRows) ||
      !describe_weights(of_down.weights, x.w2, rows_down, x.inner, x.w2_stride_row, Down::kBoxRows)) {
    return GEMMILL_CANNOT_IMPLEMENT;
  }
  if (most_tiles * std::max(of_up.blocks, of_down.blocks) > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  auto const grid = [&](int64_t items, int ctas) { return dim3(static_cast<unsigned>(std::clamp<int64_t>(items, 1, std::max(how.sm_count / ctas, 1)) * ctas)); };
  int const others = std::clamp<int>(x.tokens, 1, 2 * how.sm_count);
  LaunchShape const of_first{dim3(1 + others), dim3(Kernel::First::kThreads), dim3(1), 0};
  LaunchShape const of_second{grid(most_tiles * of_up.blocks, Up::kCtas), dim3(Up::kThreads), dim3(Up::kCtas), Up::kSharedBytes};
  LaunchShape const of_third{grid(most_tiles * of_down.blocks, 1), dim3(Down::kThreads), dim3(1), Down::kSharedBytes};
  return Together<prepare, up, down>::launch({{{of_first, params}, {of_second, of_up}, {of_third, of_down}}}, how);
}

}  // namespace gemmill::fused_moe
