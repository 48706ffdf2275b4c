// The common part of the second and the third launch: rows of one expert times its weights, by mma.sync, weights as they lie in a
// checkpoint.
//
// Weights are the instruction's 16 rows, which any rows of memory may be; 8 rows of activations are its columns. A sum over K is one over
// any order of it: so a lane takes 16 bytes of a row for two instructions, the same 16 of weights and of activations. It copies them to
// shared memory asynchronously, and reads none but its own: lanes share only scales. A warp's loads run ahead of its products by kStages
// steps, across tiles too.
//
// Warps of a CTA share a unit's K in slices, whose sums add up in the order of slices: a result has the same bits whatever tile its row
// came to.
#pragma once

#include <algorithm>

#include "fused_experts/params.cuh"
#include "core/launch.cuh"
#include "core/shared_memory.cuh"

namespace gemmill::fused_moe {

struct Coded {};  // elements are e4m3

template <class Element>
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Element, Coded>) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else if constexpr (std::is_same_v<Element, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// `size` of the copied bytes are read, zeros stand for the rest.
__device__ __forceinline__ void copy_weights(uint32_t to, void const* from, int size) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size) : "memory");
}
__device__ __forceinline__ void copy_reused(uint32_t to, void const* from, int size) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size) : "memory");
}
__device__ __forceinline__ void copy_word(uint32_t to, void const* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ uint4 read_piece(uint32_t from) {
  uint4 piece;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w) : "r"(from) : "memory");
  return piece;
}

// One GEMM's operands, as its kernel finds them.
struct Operands {
  char const* weights;
  char const* activations;
  float const* weight_scales;
  float const* activation_scales;  // of rows of activations, one after the other, a group behind the other
  int64_t row_bytes, expert_bytes, activation_bytes;
  int64_t scale_expert, scale_row, scale_k;
  int32_t k_bytes, groups;
};

template <class Element, bool kGrouped, int kTokens>
struct ExpertMm {
  static constexpr int kWarps = 8, kThreads = kWarps * 32, kColumns = 8, kParts = kTokens / kColumns;
  static constexpr int kStepBytes = 128, kPieceBytes = 512;  // along K; a piece of each lane
  static constexpr int kScaleBytes = kGrouped ? 256 : 0;
  static constexpr int kStageBytes = (4 + 2 * kParts) * kPieceBytes + kScaleBytes;
  static constexpr int kCtasOfSm = kSharedOfSm < 200 * 1024 || kParts == 4 ? 1 : 2;
  static constexpr int kSumBytes = (kWarps - 1) * kParts * 4 * 32 * 4;
  static constexpr int kBytes = most_shared(kCtasOfSm) - 1024;  // and some of static shared memory
  static constexpr int kStages = std::min((kBytes - kSumBytes) / (kWarps * kStageBytes), 4);
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes + kSumBytes;

  static_assert(kTokens % kColumns == 0 && kParts <= 4, "a lane has a scale of each of 32 rows");
  static_assert(kStages >= 2, "a stage is filled while another is read");

  // Sums of a lane, for each 8 rows of activations: weights row g of columns 2 t and 2 t + 1, then row g + 8 of both.
  using Sums = float[kParts][4];

  struct Place {
    int unit, slice, g, t, lane;
    __device__ explicit Place(Dealing const& dealt) {
      int const warp = threadIdx.x / 32;
      lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
      unit = warp / dealt.slices, slice = warp % dealt.slices;
    }
  };

  // Where a lane's copies of a tile come from.
  struct Sources {
    char const* weights[2];
    char const* activations[kParts];
    float const* weight_scale;
    float const* activation_scale;
    bool has[2];
  };

  // The step to load next.
  struct Cursor {
    int item, group;
    Sources from;
  };

  char const* shared;
  uint32_t stages;  // of this warp
  Place place;
  Dealing dealt;
  int first_group, groups;  // of this warp's slice
  int begin, end;           // items of this CTA

  __device__ ExpertMm(Dealing const& dealing, int k_groups, char const* memory) : shared(memory), place(dealing), dealt(dealing) {
    stages = static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x / 32 * kStages * kStageBytes;
    first_group = k_groups * place.slice / dealing.slices;
    groups = k_groups * (place.slice + 1) / dealing.slices - first_group;
  }

  // This CTA's items: tiles of the list, and of each all blocks of rows.
  __device__ void deal(int tile_count) {
    int64_t const items = int64_t(tile_count) * dealt.blocks;
    begin = static_cast<int>(items * blockIdx.x / gridDim.x), end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  }

  __device__ int units_of_cta() const { return kWarps / dealt.slices; }
  __device__ int unit_of(int item) const { return item % dealt.blocks * units_of_cta() + place.unit; }

  template <class Aim>
  __device__ void start(Cursor& at, Aim const& aim) const {
    at.item = begin, at.group = 0;
    if (begin < end) aim(at.from, begin);
  }

  template <class Aim>
  __device__ void advance(Cursor& at, Aim const& aim) const {
    if (++at.group < groups) return;
    at.group = 0;
    if (++at.item < end) aim(at.from, at.item);
  }

  __device__ void load_weights(Cursor const& at, Operands const& x, int stage) const {
    if (at.item >= end) return;
    uint32_t const to = stages + stage * kStageBytes + place.lane * 16;
    int const group = first_group + at.group;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const offset = group * kStepBytes + i / 2 * 64 + place.t * 16;
      copy_weights(to + i * kPieceBytes, at.from.weights[i % 2] + offset, at.from.has[i % 2] && offset < x.k_bytes ? 16 : 0);
    }
    if constexpr (kGrouped) {
      uint32_t const scales = stages + stage * kStageBytes + (4 + 2 * kParts) * kPieceBytes;
      if (place.lane < 2) copy_word(scales + 128 + place.lane * 4, at.from.weight_scale + group * x.scale_k);
    }
  }

  __device__ void load_activations(Cursor const& at, Operands const& x, int stage) const {
    if (at.item >= end) return;
    uint32_t const to = stages + stage * kStageBytes + 4 * kPieceBytes + place.lane * 16;
    int const group = first_group + at.group;
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      int const offset = group * kStepBytes + i % 2 * 64 + place.t * 16;
      copy_reused(to + i * kPieceBytes, at.from.activations[i / 2] + offset, offset < x.k_bytes ? 16 : 0);
    }
    if constexpr (kGrouped) {
      uint32_t const scales = stages + stage * kStageBytes + (4 + 2 * kParts) * kPieceBytes;
      if (place.lane < kTokens) copy_word(scales + place.lane * 4, at.from.activation_scale + group);
    }
  }

  static __device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  // One step of a tile, of which the loads have come.
  __device__ void step(Sums& total, int stage) const {
    uint32_t const at = stages + stage * kStageBytes + place.lane * 16;
    uint4 const first[2] = {read_piece(at), read_piece(at + 2 * kPieceBytes)};
    uint4 const second[2] = {read_piece(at + kPieceBytes), read_piece(at + 3 * kPieceBytes)};
    float const* const scales = reinterpret_cast<float const*>(shared + (threadIdx.x / 32 * kStages + stage) * kStageBytes + (4 + 2 * kParts) * kPieceBytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float sums[4] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 const b = read_piece(at + (4 + 2 * part + i) * kPieceBytes);
        multiply<Element>(sums, first[i].x, second[i].x, first[i].y, second[i].y, b.x, b.y);
        multiply<Element>(sums, first[i].z, second[i].z, first[i].w, second[i].w, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kGrouped) {
          float const factor = __fmul_rn(scales[part * kColumns + place.t * 2 + i % 2], scales[32 + i / 2]);
          total[part][i] = __fmaf_rn(sums[i], factor, total[part][i]);
        } else {
          total[part][i] += sums[i];
        }
      }
    }
  }

  // Multiplies all tiles of this CTA. `aim(sources, item)` finds a lane's sources; `wait()` comes when weights are on their way; all
  // threads call `finish(item, sums)`, with the whole sums where the warp's slice is the first.
  template <class Aim, class Wait, class Finish>
  __device__ void run(Operands const& x, int tile_count, Aim const& aim, Wait const& wait, Finish const& finish) {
    deal(tile_count);
    Cursor at;
    start(at, aim);
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) {
      load_weights(at, x, stage);
      advance(at, aim);
    }
    wait();
    start(at, aim);
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) {
      load_activations(at, x, stage);
      commit();
      advance(at, aim);
    }
    int stage = 0;
    for (int item = begin; item < end; ++item) {
      Sums total = {};
#pragma unroll 1
      for (int i = 0; i < groups; ++i) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncwarp();  // scales are other lanes' copies, and all have read the stage that loads next
        int const next = stage == 0 ? kStages - 1 : stage - 1;
        load_weights(at, x, next);
        load_activations(at, x, next);
        commit();
        advance(at, aim);
        step(total, stage);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      add_slices(total);
      finish(item, total);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  // Gives the warps of first slices the sums of all.
  __device__ void add_slices(Sums& total) const {
    if (dealt.slices == 1) return;
    float* const parts = reinterpret_cast<float*>(const_cast<char*>(shared) + kWarps * kStages * kStageBytes);
    auto const part = [&](int unit, int slice) { return parts + (unit * (dealt.slices - 1) + slice - 1) * kParts * 4 * 32 + place.lane; };
    if (place.slice > 0) {
      float* const own = part(place.unit, place.slice);
#pragma unroll
      for (int i = 0; i < kParts * 4; ++i) own[i * 32] = total[i / 4][i % 4];
    }
    __syncthreads();
    if (place.slice == 0) {
      for (int slice = 1; slice < dealt.slices; ++slice) {
        float const* const other = part(place.unit, slice);
#pragma unroll
        for (int i = 0; i < kParts * 4; ++i) total[i / 4][i % 4] += other[i * 32];
      }
    }
  }
};

// Whether this CTA is the last of `expected` to call this: then it sees all earlier stores of the others. All threads call it; nobody
// leaves before all have come.
__device__ __forceinline__ bool is_last(int32_t* counter, int expected) {
  __shared__ int before;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) before = atomicAdd(counter, 1);
  __syncthreads();
  __threadfence();
  return before == expected - 1;
}

}  // namespace gemmill::fused_moe
