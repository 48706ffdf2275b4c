// Fused experts: three launches, of which each may start while the one before ends.
//
//   prepare  sorts pairs of token and expert, and codes x (prepare.cuh)
//   up       gathers rows of x, multiplies by W13, and stores activation(gate) up; the last CTA of a tile's group of results, or of a
//            whole row, codes them
//   down     multiplies by W2 and the router's weight; the last CTA of a token's columns sums over its experts in their order
//
// A unit of W13 is eight gates and their eight ups: a lane has both of a result, whatever the order in which a checkpoint has them.
#pragma once

#include <climits>
#include <cmath>

#include "core/together.cuh"
#include "fused_experts/expert_mm.cuh"
#include "fused_experts/prepare.cuh"
#include "coding/gating.cuh"

namespace gemmill::fused_moe {

template <class Half_, class Element_, bool kGrouped_, int kTokens_>
struct FusedExperts {
  using Half = Half_;
  using Element = Element_;
  static constexpr bool kCoded = std::is_same_v<Element, Coded>, kGrouped = kGrouped_;
  static constexpr int kTokens = kTokens_, kBytes = kCoded ? 1 : 2, kGroup = 128;
  static constexpr int kResultsOfUnit = 8, kRowsOfUnit = 16;
  using Mm = ExpertMm<Element, kGrouped, kTokens>;
  using First = Prepare<Half, kCoded, kGrouped, kTokens>;

  static_assert(kCoded || !kGrouped, "operands of 16 bits have no scales");

  static __device__ void up(Params const& p) {
    extern __shared__ __align__(128) char memory[];
    auto const& x = p.x;
    Operands const operands{static_cast<char const*>(x.w13), kCoded ? reinterpret_cast<char const*>(p.ws.codes) : static_cast<char const*>(x.x),
                            x.w13_scales, p.ws.scales, x.w13_stride_row * kBytes, x.w13_stride_expert * kBytes,
                            kCoded ? int64_t(x.hidden) : x.ldx * kBytes, x.w13_scale_stride_expert, x.w13_scale_stride_row, x.w13_scale_stride_k,
                            x.hidden * kBytes, p.groups_of_hidden};
    Mm mm(p.up, steps_of(x.hidden), memory);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    auto const aim = [&](typename Mm::Sources& from, int item) {
      Tile const tile = p.ws.tiles[item / p.up.blocks];
      int const h = mm.unit_of(item) * kResultsOfUnit, own = h + mm.place.g;
      char const* const weights = operands.weights + tile.weights * operands.expert_bytes;
      from.has[0] = from.has[1] = own < x.inner;
      int64_t const row = from.has[0] ? int64_t(own) * x.row_step : 0;
      from.weights[0] = weights + (row + x.gate_row) * operands.row_bytes, from.weights[1] = weights + (row + x.up_row) * operands.row_bytes;
#pragma unroll
      for (int part = 0; part < Mm::kParts; ++part) {
        from.activations[part] = operands.activations + token_of(p, tile, part * Mm::kColumns + mm.place.g) * operands.activation_bytes;
      }
      if constexpr (kGrouped) {
        int const block = (min(h, x.inner - 1) + (mm.place.lane == 0 ? x.gate_row : x.up_row)) / kGroup;
        from.weight_scale = operands.weight_scales + tile.weights * operands.scale_expert + block * operands.scale_row;
        from.activation_scale = operands.activation_scales + token_of(p, tile, min(mm.place.lane, kTokens - 1)) * operands.groups;
      }
    };
    quant::Gating const gating{x.activation, x.alpha, x.limit, x.beta};
    auto const finish = [&](int item, typename Mm::Sums& sums) {
      int const index = item / p.up.blocks;
      Tile const tile = p.ws.tiles[index];
      int const h = mm.unit_of(item) * kResultsOfUnit + mm.place.g;
      if (mm.place.slice == 0 && h < x.inner) activate(p, gating, tile, h, sums, mm.place.t);
      if constexpr (kCoded) {
        int const cta_results = mm.units_of_cta() * kResultsOfUnit, group = kGrouped ? item % p.up.blocks * cta_results / kGroup : 0;
        int const expected = kGrouped ? (min(kGroup, x.inner - group * kGroup) + cta_results - 1) / cta_results : p.up.blocks;
        if (is_last(p.ws.finished + int64_t(index) * p.groups_of_inner + group, expected)) code_results(p, tile, group);
      } else {
        __syncthreads();  // before the sums of the next tile
      }
    };
    mm.run(operands, *p.ws.tile_count, aim, [] {}, finish);
  }

  static __device__ void down(Params const& p) {
    extern __shared__ __align__(128) char memory[];
    auto const& x = p.x;
    Operands const operands{static_cast<char const*>(x.w2), kCoded ? reinterpret_cast<char const*>(p.ws.inner_codes) : reinterpret_cast<char const*>(p.ws.results),
                            x.w2_scales, p.ws.inner_scales, x.w2_stride_row * kBytes, x.w2_stride_expert * kBytes,
                            int64_t(x.inner) * kBytes, x.w2_scale_stride_expert, x.w2_scale_stride_row, x.w2_scale_stride_k,
                            x.inner * kBytes, p.groups_of_inner};
    Mm mm(p.down, steps_of(x.inner), memory);
    auto const aim = [&](typename Mm::Sources& from, int item) {
      Tile const tile = p.ws.tiles[item / p.down.blocks];
      int const n = mm.unit_of(item) * kRowsOfUnit;
      char const* const weights = operands.weights + tile.weights * operands.expert_bytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int const row = n + mm.place.g + 8 * i;
        from.has[i] = row < x.hidden;
        from.weights[i] = weights + (from.has[i] ? row : 0) * operands.row_bytes;
      }
#pragma unroll
      for (int part = 0; part < Mm::kParts; ++part) {
        from.activations[part] = operands.activations + row_of(tile, part * Mm::kColumns + mm.place.g) * operands.activation_bytes;
      }
      if constexpr (kGrouped) {
        int const block = min(n, x.hidden - 1) / kGroup;
        from.weight_scale = operands.weight_scales + tile.weights * operands.scale_expert + block * operands.scale_row;
        from.activation_scale = operands.activation_scales + row_of(tile, min(mm.place.lane, kTokens - 1)) * operands.groups;
      }
    };
    auto const finish = [&](int item, typename Mm::Sums& sums) {
      Tile const tile = p.ws.tiles[item / p.down.blocks];
      if (mm.place.slice == 0) store_parts(p, tile, mm.unit_of(item) * kRowsOfUnit + mm.place.g, sums, mm.place.t);
      sum_tokens(p, tile, item % p.down.blocks, mm.units_of_cta() * kRowsOfUnit);
    };
    // The output of `prepare` may be read: the launch before this one waited for it, before it let this one start.
    mm.run(operands, *p.ws.tile_count, aim, [] { asm volatile("griddepcontrol.wait;" ::: "memory"); asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }, finish);
  }

 private:
  static __device__ int steps_of(int k) { return (k * kBytes + Mm::kStepBytes - 1) / Mm::kStepBytes; }
  // Sorted row of a tile's j-th; beyond the last, the first.
  static __device__ int64_t row_of(Tile const& tile, int j) { return tile.first + (j < tile.count ? j : 0); }
  static __device__ int64_t token_of(Params const& p, Tile const& tile, int j) { return p.ws.order[row_of(tile, j)] / p.x.topk; }

  // activation(gate) up of a result of a tile's rows.
  static __device__ void activate(Params const& p, quant::Gating const& gating, Tile const& tile, int h, typename Mm::Sums const& sums, int t) {
    auto const& x = p.x;
    int64_t const rows[2] = {int64_t(h) * x.row_step + x.gate_row, int64_t(h) * x.row_step + x.up_row};
    float scales[2] = {1.0f, 1.0f}, biases[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kCoded && !kGrouped) scales[i] = x.w13_scales[tile.weights * x.w13_scale_stride_expert + rows[i] * x.w13_scale_stride_row];
      if (x.w13_bias != nullptr) biases[i] = to_float(static_cast<Half const*>(x.w13_bias)[tile.weights * (2 * int64_t(x.inner)) + rows[i]]);
    }
#pragma unroll
    for (int part = 0; part < Mm::kParts; ++part) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        int const j = part * Mm::kColumns + 2 * t + column;
        if (j >= tile.count) continue;
        int const pair = p.ws.order[tile.first + j];
        float const of_row = kCoded && !kGrouped ? p.ws.scales[pair / x.topk] : 1.0f;
        float values[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float value = sums[part][2 * i + column];
          if constexpr (kCoded && !kGrouped) value = __fmul_rn(of_row, __fmul_rn(value, scales[i]));
          if (x.w13_bias != nullptr) value = __fadd_rn(value, biases[i]);
          if (x.weight_on_input) value = __fmul_rn(value, router_weight(x, pair));
          values[i] = to_float(of_float<Half>(value));
        }
        float const result = gating(values[0], values[1]);
        int64_t const at = (tile.first + j) * int64_t(x.inner) + h;
        if constexpr (kCoded) {
          p.ws.results[at] = result;
        } else {
          reinterpret_cast<Half*>(p.ws.results)[at] = of_float<Half>(result);
        }
      }
    }
  }

  // Codes of a tile's rows: of one group of results, or of them all.
  static __device__ void code_results(Params const& p, Tile const& tile, int group) {
    for (int j = threadIdx.x / 32; j < tile.count; j += Mm::kWarps) {
      int64_t const row = tile.first + j;
      float4 const* const values = reinterpret_cast<float4 const*>(p.ws.results + row * p.x.inner);
      uint32_t* const codes = reinterpret_cast<uint32_t*>(p.ws.inner_codes + row * p.x.inner);
      auto const four = [&](int piece) { return __ldcg(values + piece); };
      if constexpr (kGrouped) {
        code_group(four, codes, p.x.inner, group, p.ws.inner_scales + row * p.groups_of_inner + group);
      } else {
        code_row<32>(four, codes, p.x.inner, p.ws.inner_scales + row);
      }
    }
  }

  // Rows n and n + 8 of W2 times a tile's rows, in the order of the sum.
  static __device__ void store_parts(Params const& p, Tile const& tile, int n, typename Mm::Sums const& sums, int t) {
    auto const& x = p.x;
#pragma unroll
    for (int part = 0; part < Mm::kParts; ++part) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        int const j = part * Mm::kColumns + 2 * t + column;
        if (j >= tile.count) continue;
        int const pair = p.ws.order[tile.first + j];
        float const of_row = kCoded && !kGrouped ? p.ws.inner_scales[tile.first + j] : 1.0f;
        float const weight = x.weight_on_input ? 1.0f : router_weight(x, pair);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int const row = n + 8 * i;
          if (row >= x.hidden) continue;
          float value = sums[part][2 * i + column];
          if constexpr (kCoded && !kGrouped) {
            value = __fmul_rn(of_row, __fmul_rn(value, x.w2_scales[tile.weights * x.w2_scale_stride_expert + row * x.w2_scale_stride_row]));
          }
          if (x.w2_bias != nullptr) value = __fadd_rn(value, to_float(static_cast<Half const*>(x.w2_bias)[tile.weights * int64_t(x.hidden) + row]));
          p.ws.parts[pair * int64_t(x.hidden) + row] = __fmul_rn(value, weight);
        }
      }
    }
  }

  // Counts a stored block of columns for a tile's rows; sums those of tokens that now have all.
  static __device__ void sum_tokens(Params const& p, Tile const& tile, int block, int columns) {
    __shared__ int whole[kTokens];  // the token, or -1
    auto const& x = p.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x < tile.count) {
      int const token = p.ws.order[tile.first + threadIdx.x] / x.topk;
      int const before = atomicAdd(p.ws.summed + int64_t(token) * p.down.blocks + block, 1);
      whole[threadIdx.x] = before + 1 == p.ws.needed[token] ? token : -1;
    }
    __syncthreads();
    __threadfence();
    for (int i = threadIdx.x; i < tile.count * columns; i += Mm::kThreads) {
      int const token = whole[i / columns], n = block * columns + i % columns;
      if (token < 0 || n >= x.hidden) continue;
      float sum = 0.0f;
      for (int slot = 0; slot < x.topk; ++slot) {
        int64_t const pair = int64_t(token) * x.topk + slot;
        if (p.ws.local[pair] >= 0) sum += __ldcg(p.ws.parts + pair * x.hidden + n);
      }
      Half* const out = static_cast<Half*>(x.out) + token * x.ldout + n;
      *out = of_float<Half>(x.adds ? __fadd_rn(to_float(*out), sum) : sum);
    }
  }
};

// Host code: three launches.

// How many tiles there are about, of rows that come to any expert alike.
template <class Kernel>
double tiles_of(gemmill_fused_experts_args const& x) {
  double const pairs = double(x.tokens) * x.topk, experts = x.weights;
  double const active = experts * -std::expm1(pairs * std::log1p(-1.0 / std::max(experts, 1.5)));
  return std::max(active, pairs / Kernel::kTokens + active / 2);
}

// By which slicing of K the CTA with most to do has least.
template <class Kernel>
Dealing deal(double tiles, int ctas, int units, int steps) {
  constexpr double kOverhead = 1.5;  // steps that a tile's end takes of a warp
  Dealing best{1, (units + Kernel::Mm::kWarps - 1) / Kernel::Mm::kWarps};
  double least = INFINITY;
  for (int slices = 1; slices <= Kernel::Mm::kWarps && slices <= steps; slices *= 2) {
    int const of_cta = Kernel::Mm::kWarps / slices, blocks = (units + of_cta - 1) / of_cta;
    double const cost = std::ceil(tiles * blocks / ctas) * ((steps + slices - 1) / slices + kOverhead);
    if (cost < least) least = cost, best = {slices, blocks};
  }
  return best;
}

template <class Kernel>
int64_t workspace_of(gemmill_fused_experts_args const& x) {
  return x.workspace != nullptr ? 0 : Workspace(x, Kernel::kCoded, nullptr).bytes;
}

template <class Kernel, auto prepare, auto up, auto down>
int32_t launch_fused_experts(gemmill_fused_experts_args const& x, gemmill_launch const& how) {
  using Mm = typename Kernel::Mm;
  if (cudaError_t error = allow_shared_memory<up>(how.device, Mm::kSharedBytes); error != cudaSuccess) return error;
  if (cudaError_t error = allow_shared_memory<down>(how.device, Mm::kSharedBytes); error != cudaSuccess) return error;
  Workspace const ws(x, Kernel::kCoded, static_cast<char*>(x.workspace != nullptr ? x.workspace : how.workspace));
  int64_t const pairs = int64_t(x.tokens) * x.topk, most_tiles = pairs / Kernel::kTokens + std::min<int64_t>(pairs, x.weights);
  if (pairs > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  auto const steps = [](int k) { return (k * Kernel::kBytes + Mm::kStepBytes - 1) / Mm::kStepBytes; };
  int const ctas = how.sm_count * Mm::kCtasOfSm;
  double const tiles = tiles_of<Kernel>(x);
  Params params{x, ws, {}, {}, (x.hidden + 127) / 128, (x.inner + 127) / 128, 0, 0};
  params.up = deal<Kernel>(tiles, ctas, (x.inner + Kernel::kResultsOfUnit - 1) / Kernel::kResultsOfUnit, steps(x.hidden));
  params.down = deal<Kernel>(tiles, ctas, (x.hidden + Kernel::kRowsOfUnit - 1) / Kernel::kRowsOfUnit, steps(x.inner));
  params.finished_count = Kernel::kCoded ? most_tiles * params.groups_of_inner : 0;
  params.summed_count = int64_t(x.tokens) * params.down.blocks;
  auto const grid = [&](int64_t items) { return dim3(static_cast<unsigned>(std::clamp<int64_t>(items, 1, ctas))); };
  int const others = std::clamp<int>(x.tokens, 1, 2 * how.sm_count);
  auto const of_product = [&](int blocks) { return LaunchShape{grid(most_tiles * blocks), dim3(Mm::kThreads), dim3(1), Mm::kSharedBytes}; };
  LaunchShape const of_first{dim3(1 + others), dim3(Kernel::First::kThreads), dim3(1), 0};
  return Together<prepare, up, down>::launch({{{of_first, params}, {of_product(params.up.blocks), params}, {of_product(params.down.blocks), params}}}, how);
}

}  // namespace gemmill::fused_moe
