// The epilogues of tiles with a large M, by warps that do not multiply (persistent_prefill.cuh): activations and codes of the first product,
// parts of the second, and sums of tokens after the last part.
#pragma once

#include "fused_experts/gate_all.cuh"
#include "fused_experts/ordered_experts.cuh"

namespace gemmill::fused_moe {

inline constexpr int kTogetherRows = 4, kLanesOfRow = 8;  // rows that a warp finishes at a time: a lane has two pieces of 16 bytes of one

// A piece of a row that the multiplying groups have left.
__device__ __forceinline__ uint4 left_piece(uint32_t ends, int row, int piece) {
  uint4 found;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "r"(ends + row * 256 + (piece ^ row % 8) * 16));
  return found;
}

// The epilogue of the first product. Results are float32 until the last columns of their rows are there; then they become codes. The warp
// that takes its number codes a share of a tile's rows, piece by piece: there are as many shares as epilogue warps store parts of tiles, in
// the order of tiles. So nobody codes for others, and comes late. inner_scales keeps a row's largest element, of which the second product
// makes the scale: other warps code other pieces of the row.
template <class Kernel>
struct PrefillGatedRows {
  using Args = PackedArgs;
  static constexpr int kCounter = 1, kTaken = 4, kUnknown = -2;
  static constexpr bool kPaired = false;
  static constexpr int kTogether = Kernel::kCtas == 1 ? 8 : 4, kPieceColumns = kTogether * 32 * 4;  // of a row, that a warp codes at a time

  int share = -1;                      // taken, and without codes yet: lane 0 knows its number
  moe::Span of_share{0, 0, kUnknown};  // the tile of its rows
  int listed = 0, failed = 0;          // tiles; turns in which the share's tile was not finished

  __device__ static bool is_plain(Args const& x) { return x.bias == nullptr && !x.layer.x.weight_on_input; }
  __device__ static auto factors_of(Args const& x, int m) {
    auto const& of = x.layer;
    return typename Kernel::RowFactors{x.a_scales[m], of.x.weight_on_input ? router_weight(of.x, of.ws.order[m]) : 1.0f};
  }

  __device__ void finish(Args const& x, uint32_t ends, int32_t const*, int first, int rows, int n0, int row, int piece) {
    if (share < 0) take(x);
    look_up(x);  // known after the store of results
    switch (x.layer.x.activation) {
      case quant::kSiluGate:
        return gate<quant::kSiluGate>(x, ends, first, rows, n0, row, piece);
      case quant::kGeluGate:
        return gate<quant::kGeluGate>(x, ends, first, rows, n0, row, piece);
      case quant::kGeluTanhGate:
        return gate<quant::kGeluTanhGate>(x, ends, first, rows, n0, row, piece);
      default:
        return gate<quant::kSwigluGate>(x, ends, first, rows, n0, row, piece);
    }
  }

  // Eight gates and their ups a lane. All lanes go through all rows: their largest result is found together.
  template <int activation>
  __device__ static void gate(Args const& x, uint32_t ends, int first, int rows, int n0, int row, int piece) {
    auto const& of = x.layer.x;
    quant::Gating const gating{activation, of.alpha, of.limit, of.beta};
    for (int i = row; i - row % kTogetherRows < rows; i += kTogetherRows * Kernel::kEpilogueWarps) {
      float gates[8], ups[8], results[8];
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint4 const pairs = left_piece(ends, min(i, rows - 1), piece + half * kLanesOfRow);
        uint32_t const words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) gates[half * 4 + j] = __uint_as_float(words[j] << 16), ups[half * 4 + j] = __uint_as_float(words[j] & 0xFFFF0000u);
      }
      gate_all<activation>(gating, gates, ups, results);
      float* const to = static_cast<float*>(x.d) + (first + i) * int64_t{x.ldd} + n0 / 2 + piece * 4;
      float largest = 0.0f;
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float const* const own = results + half * 4;
        if (i >= rows || n0 + (piece + half * kLanesOfRow) * 8 >= x.n) continue;
        *reinterpret_cast<float4*>(to + half * kLanesOfRow * 4) = make_float4(own[0], own[1], own[2], own[3]);
        largest = largest_of(make_float4(own[0], own[1], own[2], own[3]), largest);
      }
      largest = quant::reduce_lanes<kLanesOfRow>(largest, quant::Max{});
      if (piece == 0 && i < rows) atomicMax(reinterpret_cast<int*>(x.layer.ws.inner_scales + first + i), __float_as_int(largest));
    }
  }

  __device__ void stored(Args const& x, int first) {
    int const found = look(x);
    __threadfence();  // of results, and between the look and the results of others
    __syncwarp();
    if (threadIdx.x % 32 == 0) atomicAdd(x.layer.ws.finished + first, 1);
    if (!code_share(x, found)) {
      ++failed;
    } else if (failed > 0) {  // another: who was too early comes to as many
      look_up(x);
      int const next = look(x);
      __threadfence();
      __syncwarp();
      failed -= code_share(x, next);
    }
  }
  // All the rest. Other CTAs, which run, have the tiles that it waits for.
  __device__ void left(Args const& x) {
    if (share < 0) take(x);
    Patience<> patience;
    while (true) {
      look_up(x);
      if (of_share.weights < 0) return;
      int found;
      while ((found = look(x)) < shares_of(x)) {
        __nanosleep(200);
        patience.spend(x.layer.x.endless_waits);
      }
      __threadfence();
      code_share(x, found);
    }
  }
  template <int>
  __device__ static void end(Args const&) {}

  __device__ static int shares_of(Args const& x) { return ((x.n - 1) / Kernel::kRows + 1) * Kernel::kEpilogueWarps; }
  __device__ void take(Args const& x) {
    if (threadIdx.x % 32 == 0) share = atomicAdd(x.layer.ws.tile_count + kTaken, 1);
    else share = 0;
    of_share.weights = kUnknown;
  }

  // Asks for the tile of the share's rows, where it is not known.
  __device__ void look_up(Args const& x) {
    if (of_share.weights != kUnknown) return;
    if (listed == 0) listed = __ldcg(x.layer.ws.tile_count);
    share = __shfl_sync(~0u, share, 0);
    int const index = share / shares_of(x);
    of_share = {0, 0, -1};
    if (index < listed) of_share = tile_at(x, index);
  }
  // How much of that tile is stored.
  __device__ int look(Args const& x) const { return of_share.weights < 0 ? 0 : __ldcg(x.layer.ws.finished + of_share.begin); }

  // Codes the share if its tile is finished, and takes the next. `found`: after which the warp has fenced.
  __device__ bool code_share(Args const& x, int found) {
    int const shares = shares_of(x);
    if (of_share.weights < 0 || __shfl_sync(~0u, found, 0) < shares) return false;
    int const pieces = (x.layer.x.inner - 1) / kPieceColumns + 1, count = (of_share.end - of_share.begin) * pieces;
    for (int i = share % shares; i < count; i += shares) code_piece<kTogether>(x.layer, of_share.begin + i / pieces, i % pieces);
    take(x);
    return true;
  }
};

// The epilogue of the second: parts of pairs, in bf16.
template <class Kernel>
struct PrefillParts {
  using Args = PackedArgs;
  static constexpr int kCounter = 2, kStored = 3;
  static constexpr bool kPaired = true;

  __device__ static bool is_plain(Args const& x) { return x.bias == nullptr; }
  __device__ static auto factors_of(Args const& x, int m) {
    float const scale = Coding(x.layer.ws.inner_scales[m], INFINITY).scale, weight = x.layer.x.weight_on_input ? 1.0f : x.a_scales[m];
    return is_plain(x) ? typename Kernel::RowFactors{__fmul_rn(scale, weight), 1.0f} : typename Kernel::RowFactors{scale, weight};
  }

  __device__ void finish(Args const& x, uint32_t ends, int32_t const* pairs, int, int rows, int n0, int row, int piece) {
    int const n = n0 + piece * 8;
    auto* const parts = reinterpret_cast<__nv_bfloat16*>(x.layer.ws.parts) + n;
#pragma unroll 4
    for (int i = row; i < rows; i += kTogetherRows * Kernel::kEpilogueWarps) {
      auto* const to = parts + pairs[i] * int64_t{x.n};
      uint4 const first = left_piece(ends, i, piece), second = left_piece(ends, i, piece + kLanesOfRow);
      if (n < x.n) *reinterpret_cast<uint4*>(to) = first;
      if (n + kLanesOfRow * 8 < x.n) *reinterpret_cast<uint4*>(to + kLanesOfRow * 8) = second;
    }
  }
  int tiles = 0;

  __device__ void stored(Args const&, int) { ++tiles; }
  __device__ void left(Args const& x) {
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) atomicAdd(x.layer.ws.tile_count + kStored, tiles);
  }

  // The sums of tokens follow the store of all tiles. A warp that waits for that has found no tile left: CTAs that run have them all.
  template <int threads>
  __device__ static void end(Args const& x) {
    auto meet = [] { cutlass::arch::NamedBarrier::sync(threads, 1); };
    meet();
    if (threadIdx.x == 0) {
      int const expected = *x.layer.ws.tile_count * ((x.n - 1) / Kernel::kRows + 1) * Kernel::kEpilogueWarps;
      Patience<> patience;
      while (__ldcg(x.layer.ws.tile_count + kStored) < expected) {
        __nanosleep(100);
        patience.spend(x.layer.x.endless_waits);
      }
      __threadfence();
    }
    meet();
    constexpr int kMost = Kernel::kOtherRegisters < 72 ? 4 : 8;  // with more of them 64 registers spill
    int const rounds = (x.layer.x.topk + kMost - 1) / kMost, together = (x.layer.x.topk + rounds - 1) / rounds;
    if (together <= 2) return sum<threads, 2>(x.layer);
    if constexpr (kMost > 4) {
      if (together > 6) return sum<threads, 8>(x.layer);
      if (together > 5) return sum<threads, 6>(x.layer);
      if (together > 4) return sum<threads, 5>(x.layer);
    }
    sum<threads, 4>(x.layer);
  }

  // Eight numbers, which may lie in rows of whole pieces.
  __device__ static void copy(__nv_bfloat16 const* from, __nv_bfloat16* to, bool whole) {
    if (whole) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = from[i];
    }
  }

  // A token's parts, in the order of its experts. A thread has eight columns. It loads parts of some experts together, also where there
  // are none: conditional loads wait for one another.
  template <int threads, int together>
  __device__ static void sum(gemmill::fused_moe::Params const& of) {
    constexpr int kColumns = 8;
    auto const& x = of.x;
    int const pieces = x.hidden / kColumns, step = gridDim.x * threads;
    int64_t const first = int64_t{blockIdx.x} * threads + threadIdx.x;
    int64_t token = first / pieces;
    int piece = static_cast<int>(first - token * pieces);
    int const tokens = step / pieces, more = step - tokens * pieces;
    int needed = token < x.tokens ? of.ws.needed[token] : 0;
    bool const whole = (reinterpret_cast<uintptr_t>(x.out) | static_cast<uintptr_t>(x.ldout) * 2) % 16 == 0;
    while (token < x.tokens) {
      int64_t const own = token;
      int const column = piece * kColumns, experts = needed;
      token += tokens, piece += more;
      if (piece >= pieces) piece -= pieces, ++token;
      needed = token < x.tokens ? of.ws.needed[token] : 0;
      if (experts == 0) continue;  // the first launch has stored zeros
      auto const* const parts = reinterpret_cast<__nv_bfloat16 const*>(of.ws.parts) + own * x.topk * x.hidden + column;
      float sums[kColumns] = {};
#pragma unroll 1
      for (int slots = 0; slots < x.topk; slots += together) {
        uint4 found[together];
        bool has[together];
#pragma unroll
        for (int i = 0; i < together; ++i) {
          found[i] = __ldcg(reinterpret_cast<uint4 const*>(parts + int64_t{min(slots + i, x.topk - 1)} * x.hidden));
          has[i] = slots + i < x.topk;
        }
        if (experts < x.topk) {
#pragma unroll
          for (int i = 0; i < together; ++i) has[i] = has[i] && of.ws.local[own * x.topk + min(slots + i, x.topk - 1)] >= 0;
        }
#pragma unroll
        for (int i = 0; i < together; ++i) {
          uint32_t const words[4] = {found[i].x, found[i].y, found[i].z, found[i].w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[2 * j] += has[i] ? __uint_as_float(words[j] << 16) : 0.0f;
            sums[2 * j + 1] += has[i] ? __uint_as_float(words[j] & 0xFFFF0000u) : 0.0f;
          }
        }
      }
      auto* const out = static_cast<__nv_bfloat16*>(x.out) + own * x.ldout + column;
      alignas(16) __nv_bfloat16 values[kColumns] = {};
      if (x.adds) copy(out, values, whole);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] = of_float<__nv_bfloat16>(x.adds ? __fadd_rn(to_float(values[i]), sums[i]) : sums[i]);
      copy(values, out, whole);
    }
  }
};

}  // namespace gemmill::fused_moe
