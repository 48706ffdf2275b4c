// Fused experts whose two products are grouped GEMMs (family grouped_mm): launches of their own, on the GEMMs' main loops, for experts with a
// large M. Kernels here stand before, between and behind them.
//
//   permute   sorts pairs of token and expert by expert, and puts rows of x in that order; then W13 gives gates and ups
//   activate  activation(gate) up of each sorted row; then W2 gives parts
//   combine   sums the parts of a token's experts, in the order of topk
//
// With weights of e4m3 both kinds of rows are codes with scales, with weights of x's type they have that type. Products round to x's
// type, then biases and the router's weight follow in float32. No launch waits within itself: each CTA of the first counts pairs of all
// experts, as in ordered_experts.cuh. Each may start while the one before ends.
#pragma once

#include <climits>

#include "core/launch.cuh"
#include "fused_experts/apart_workspace.h"
#include "fused_experts/gate_all.cuh"
#include "fused_experts/ordered_experts.cuh"

namespace gemmill::fused_moe {

struct ApartParams {
  gemmill_fused_experts_args x;
  ApartWorkspace ws;
};

// kGroup elements of a row share a scale; all of them where it is 0.
template <class Half, bool kIsCoded, int kGroup>
struct ApartExperts {
  static constexpr bool kCoded = kIsCoded, kGrouped = kGroup != 0;
  static constexpr int kThreads = 512, kWarps = kThreads / 32;
  static constexpr int kPiece = 8, kLanes = (kGrouped ? kGroup : 128) / kPiece;  // elements that a lane takes at once, and lanes of a group that shares a scale
  static constexpr int kPieces = 2;                        // of a lane, in flight together
  static constexpr int kAhead = 8, kTokensAtOnce = 64;     // ids that a thread asks for at once, and tokens whose largest elements are kept
  static constexpr int kMostRows = INT_MAX / 2 + 1;        // of an expert

  static __device__ void permute(ApartParams const& p) {
    wait();
    auto const& x = p.x;
    int const each = (x.tokens + gridDim.x - 1) / gridDim.x;
    int const first = min(static_cast<int>(blockIdx.x) * each, x.tokens), count = min(each, x.tokens - first);
    place(p, first, count);
    int const shares = (x.hidden / kPiece + 32 * kPieces - 1) / (32 * kPieces);  // of a row, a warp each
    if constexpr (!kCoded) {
      for (int i = warp(); i < count * shares; i += kWarps) put_rows(p, first + i / shares, i % shares);
    } else if constexpr (kGrouped) {
      for (int i = warp(); i < count * shares; i += kWarps) put_codes(p, first + i / shares, i % shares, 0.0f);
    } else {
      __shared__ float largest[kTokensAtOnce];
      for (int begin = first; begin < first + count; begin += kTokensAtOnce) {
        int const some = min(kTokensAtOnce, first + count - begin);
        for (int i = warp(); i < some; i += kWarps) {
          float const of_row = largest_of_row(x, begin + i);
          if (lane() == 0) largest[i] = of_row;
        }
        __syncthreads();
        for (int i = warp(); i < some * shares; i += kWarps) put_codes(p, begin + i / shares, i % shares, largest[i / shares]);
        __syncthreads();
      }
    }
  }

  static __device__ void activate(ApartParams const& p) {
    wait();
    switch (p.x.activation) {
      case quant::kSiluGate:
        return activate_by<quant::kSiluGate>(p);
      case quant::kGeluGate:
        return activate_by<quant::kGeluGate>(p);
      case quant::kGeluTanhGate:
        return activate_by<quant::kGeluTanhGate>(p);
      default:
        return activate_by<quant::kSwigluGate>(p);
    }
  }

  static __device__ void combine(ApartParams const& p) {
    wait();
    auto const& x = p.x;
    int const pieces = x.hidden / kPiece;
    int64_t const step = int64_t{gridDim.x} * kThreads, end = int64_t{x.tokens} * pieces;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += step) {
      int const token = static_cast<int>(i / pieces);
      sum_piece(p, token, static_cast<int>(i - int64_t{token} * pieces));
    }
  }

 private:
  template <int activation>
  static __device__ void activate_by(ApartParams const& p) {
    auto const& x = p.x;
    int64_t const pairs = pairs_of(x);
    int const rows = __ldcg(p.ws.offsets + x.weights), pieces = x.inner / kPiece;
    for (int row = blockIdx.x * kWarps + warp(); row < rows; row += gridDim.x * kWarps) {
      Activation const of(p, row);
      // All lanes together, each with several pieces, whose loads are in flight together.
      auto const visit = [&](auto const& use) {
        for (int first = lane(); first - lane() < pieces; first += 32 * kPieces) {
          typename Activation::Asked asked[kPieces];
          float values[kPiece];
#pragma unroll
          for (int i = 0; i < kPieces; ++i) asked[i] = of.ask(min(first + i * 32, pieces - 1));
#pragma unroll
          for (int i = 0; i < kPieces; ++i) of.template end<activation>(asked[i], min(first + i * 32, pieces - 1), values), use(first + i * 32, values);
        }
      };
      if constexpr (!kCoded) {
        uint4* const to = static_cast<uint4*>(p.ws.inner_rows) + int64_t{row} * pieces;
        visit([&](int piece, float(&values)[kPiece]) {
          if (piece < pieces) to[piece] = packed(values);
        });
        continue;
      }
      uint2* const codes = static_cast<uint2*>(p.ws.inner_rows) + int64_t{row} * pieces;
      float largest = 0.0f;
      if constexpr (!kGrouped) {
        visit([&](int, float(&values)[kPiece]) { largest = largest_of(values, largest); });
        largest = quant::reduce_lanes<32>(largest, quant::Max{});
        if (lane() == 0) p.ws.inner_scales[row] = Coding(largest, INFINITY).scale;
      }
      visit([&](int piece, float(&values)[kPiece]) {
        if constexpr (kGrouped) largest = quant::reduce_lanes<kLanes>(largest_of(values, 0.0f), quant::Max{});
        Coding const coding(largest, INFINITY);
        uint32_t words[2];
        coding.encode(values, words);
        if (piece >= pieces) return;
        codes[piece] = make_uint2(words[0], words[1]);
        if (kGrouped && lane() % kLanes == 0) p.ws.inner_scales[piece / kLanes * pairs + row] = coding.scale;
      });
    }
  }

  static __device__ int warp() { return threadIdx.x / 32; }
  static __device__ int lane() { return threadIdx.x % 32; }
  static __device__ int64_t pairs_of(gemmill_fused_experts_args const& x) { return int64_t{x.tokens} * x.topk; }

  // In this order: kernels that follow may read the caller's inputs.
  static __device__ void wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }

  static __device__ void unpack(uint4 const& words, float (&values)[kPiece]) {
    Half elements[kPiece];
    memcpy(elements, &words, 16);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = to_float(elements[i]);
  }

  static __device__ uint4 packed(float const (&values)[kPiece]) {
    Half elements[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) elements[i] = of_float<Half>(values[i]);
    uint4 words;
    memcpy(&words, elements, 16);
    return words;
  }

  static __device__ float largest_of(float const (&values)[kPiece], float largest) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));  // NaN does not count
    return largest;
  }

  // By a warp.
  static __device__ float largest_of_row(gemmill_fused_experts_args const& x, int token) {
    uint4 const* const row = reinterpret_cast<uint4 const*>(static_cast<Half const*>(x.x) + token * x.ldx);
    float largest = 0.0f, values[kPiece];
#pragma unroll 4
    for (int piece = lane(); piece < x.hidden / kPiece; piece += 32) unpack(row[piece], values), largest = largest_of(values, largest);
    return quant::reduce_lanes<32>(largest, quant::Max{});
  }

  // Gives the pairs of `count` tokens from `first` on their places among sorted rows.
  static __device__ void place(ApartParams const& p, int first, int count) {
    __shared__ int next[kMostWeights], counts[kMostWeights];
    auto const& x = p.x;
    int const thread = threadIdx.x, own = first * x.topk, end = own + count * x.topk;
    next[thread] = 0, counts[thread] = 0;
    __syncthreads();
    visit_weights<kThreads, kAhead>(x, thread, [&](int pair, int weights) { atomicAdd((pair < own ? next : counts) + weights, 1); });
    __syncthreads();
    int const rows = counts[thread] + next[thread];
    counts[thread] = rows;
    deal_tiles<kMostRows>(counts, [](int, Tile const&) {});  // where an expert's rows begin
    next[thread] += counts[thread];
    if (blockIdx.x == 0 && thread == 0) p.ws.offsets[0] = 0;
    if (blockIdx.x == 0 && thread < x.weights) p.ws.offsets[thread + 1] = counts[thread] + rows;
    __syncthreads();
    for (int pair = own + thread; pair < end; pair += kThreads) {
      int const weights = weights_of(x, pair), at = weights >= 0 ? atomicAdd(next + weights, 1) : -1;
      p.ws.places[pair] = at;
      if (at >= 0) p.ws.order[at] = pair;
    }
    __syncthreads();
  }

  // A warp's share of a token: its codes to all its places. `largest` is the row's, where a row has one scale.
  static __device__ void put_codes(ApartParams const& p, int token, int share, float largest) {
    auto const& x = p.x;
    int const pieces = x.hidden / kPiece, first = share * 32 * kPieces + lane();
    uint4 const* const row = reinterpret_cast<uint4 const*>(static_cast<Half const*>(x.x) + token * x.ldx);
    uint4 own[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) own[i] = row[min(first + i * 32, pieces - 1)];
    uint2 codes[kPieces];
    float scales[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float values[kPiece];
      unpack(own[i], values);
      if constexpr (kGrouped) largest = quant::reduce_lanes<kLanes>(largest_of(values, 0.0f), quant::Max{});
      Coding const coding(largest, INFINITY);
      uint32_t words[2];
      coding.encode(values, words);
      codes[i] = make_uint2(words[0], words[1]), scales[i] = coding.scale;
    }
    visit_places(p, token, [&](int at) {
      if (!kGrouped && share == 0 && at >= 0) p.ws.scales[at] = scales[0];
    }, [&](int to) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        int const piece = first + i * 32;
        if (piece >= pieces) continue;
        static_cast<uint2*>(p.ws.rows)[int64_t{to} * pieces + piece] = codes[i];
        if (kGrouped && lane() % kLanes == 0) p.ws.scales[piece / kLanes * pairs_of(x) + to] = scales[i];
      }
    });
  }

  // The same of elements as they are.
  static __device__ void put_rows(ApartParams const& p, int token, int share) {
    auto const& x = p.x;
    int const pieces = x.hidden / kPiece, first = share * 32 * kPieces + lane();
    uint4 const* const row = reinterpret_cast<uint4 const*>(static_cast<Half const*>(x.x) + token * x.ldx);
    uint4 own[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) own[i] = row[min(first + i * 32, pieces - 1)];
    visit_places(p, token, [](int) {}, [&](int to) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (first + i * 32 < pieces) static_cast<uint4*>(p.ws.rows)[int64_t{to} * pieces + first + i * 32] = own[i];
      }
    });
  }

  // Hands each lane the place of one of a token's pairs, -1 for none, and then all lanes together each place that there is.
  template <class Own, class Each>
  static __device__ void visit_places(ApartParams const& p, int token, Own&& own, Each&& each) {
    int const topk = p.x.topk;
    for (int slots = 0; slots < topk; slots += 32) {
      int const at = slots + lane() < topk ? p.ws.places[int64_t{token} * topk + slots + lane()] : -1;
      own(at);
      for (unsigned left = __ballot_sync(~0u, at >= 0); left != 0; left &= left - 1) each(__shfl_sync(~0u, at, __ffs(left) - 1));
    }
  }

  // Results of a sorted row, in float32.
  struct Activation {
    gemmill_fused_experts_args const& x;
    Half const *products, *bias;  // [2 inner]; no bias is null
    float weight;                 // the router's, where it belongs to the input

    // Of a piece, as they are.
    struct Asked {
      uint4 words[2];
    };

    __device__ Activation(ApartParams const& p, int row) : x(p.x), bias(nullptr), weight(1.0f) {
      products = static_cast<Half const*>(p.ws.products) + int64_t{row} * 2 * x.inner;
      if (x.w13_bias == nullptr && !x.weight_on_input) return;
      int const pair = __ldcg(p.ws.order + row);
      if (x.w13_bias != nullptr) bias = static_cast<Half const*>(x.w13_bias) + int64_t{weights_of(x, pair)} * 2 * x.inner;
      if (x.weight_on_input) weight = router_weight(x, pair);
    }

    __device__ Asked ask(int piece) const {
      return {{__ldcg(reinterpret_cast<uint4 const*>(products + place(piece, 0))), __ldcg(reinterpret_cast<uint4 const*>(products + place(piece, 1)))}};
    }

    template <int activation>
    __device__ void end(Asked const& asked, int piece, float (&values)[kPiece]) const {
      float gates[kPiece], ups[kPiece];
      gates_and_ups(asked, gates, ups);
      if (bias != nullptr) {
        float of_gates[kPiece], of_ups[kPiece];
        gates_and_ups({{eight_of(bias + place(piece, 0)), eight_of(bias + place(piece, 1))}}, of_gates, of_ups);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) gates[i] = __fadd_rn(gates[i], of_gates[i]), ups[i] = __fadd_rn(ups[i], of_ups[i]);
      }
#pragma unroll
      for (int i = 0; i < kPiece; ++i) gates[i] = ended(gates[i]), ups[i] = ended(ups[i]);
      gate_all<activation>({activation, x.alpha, x.limit, x.beta}, gates, ups, values);
    }

   private:
    __device__ float ended(float value) const { return to_float(of_float<Half>(x.weight_on_input ? __fmul_rn(value, weight) : value)); }

    // Where eight of the elements [2 inner] of a row lie of which a piece's results are made: its gates and its ups, or both halves of
    // them woven.
    __device__ int place(int piece, int half) const {
      return x.row_step == 1 ? (half == 0 ? x.gate_row : x.up_row) + piece * kPiece : (2 * piece + half) * kPiece;
    }

    __device__ void gates_and_ups(Asked const& asked, float (&gates)[kPiece], float (&ups)[kPiece]) const {
      if (x.row_step == 1) {
        unpack(asked.words[0], gates);
        unpack(asked.words[1], ups);
        return;
      }
      float woven[2][kPiece];
#pragma unroll
      for (int i = 0; i < 2; ++i) unpack(asked.words[i], woven[i]);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) gates[i] = woven[i / 4][i % 4 * 2], ups[i] = woven[i / 4][i % 4 * 2 + 1];
    }
  };

  // Of a bias, which a caller may have at any address of its type.
  static __device__ uint4 eight_of(Half const* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return __ldcg(reinterpret_cast<uint4 const*>(from));
    Half elements[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) elements[i] = from[i];
    uint4 words;
    memcpy(&words, elements, 16);
    return words;
  }

  // A token's sum over its experts, of eight columns. It loads parts of some experts together: in place of a missing one another's, for
  // of conditional loads nvcc 13.0 has each wait for the one before.
  static __device__ void sum_piece(ApartParams const& p, int token, int piece) {
    constexpr int kTogether = 4;
    auto const& x = p.x;
    int const pieces = x.hidden / kPiece;
    int64_t const first = int64_t{token} * x.topk;
    float const* const weights = x.topk_weights + int64_t{token} * x.ld_weights;
    float sums[kPiece] = {};
    bool any = false;
    for (int slots = 0; slots < x.topk; slots += kTogether) {
      int places[kTogether];
      float factors[kTogether];
      uint4 parts[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        places[i] = slots + i < x.topk ? __ldcg(p.ws.places + first + min(slots + i, x.topk - 1)) : -1;
        factors[i] = x.weight_on_input ? 1.0f : __ldcg(weights + min(slots + i, x.topk - 1));
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) parts[i] = __ldcg(static_cast<uint4 const*>(p.ws.parts) + int64_t{max(places[i], 0)} * pieces + piece);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (places[i] < 0) continue;
        float values[kPiece];
        unpack(parts[i], values);
        end_part(x, static_cast<int>(first) + slots + i, piece, factors[i], values);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) sums[j] = __fadd_rn(sums[j], values[j]);
        any = true;
      }
    }
    if (!any && x.adds) return;
    Half* const out = static_cast<Half*>(x.out) + token * x.ldout + piece * kPiece;
    Half results[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) results[j] = of_float<Half>(x.adds ? __fadd_rn(to_float(out[j]), sums[j]) : sums[j]);
    if (reinterpret_cast<uintptr_t>(out) % 16 == 0) {
      uint4 words;
      memcpy(&words, results, 16);
      *reinterpret_cast<uint4*>(out) = words;
    } else {
#pragma unroll
      for (int j = 0; j < kPiece; ++j) out[j] = results[j];
    }
  }

  // Adds the bias of eight columns of a pair's part, and multiplies by the router's weight, or by one.
  static __device__ void end_part(gemmill_fused_experts_args const& x, int pair, int piece, float factor, float (&values)[kPiece]) {
    if (x.w2_bias != nullptr) {
      float bias[kPiece];
      unpack(eight_of(static_cast<Half const*>(x.w2_bias) + int64_t{weights_of(x, pair)} * x.hidden + piece * kPiece), bias);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) values[i] = __fadd_rn(values[i], bias[i]);
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = __fmul_rn(values[i], factor);
  }
};

// Host code: one of the three launches.

template <class Kernel, int kGroup>
int64_t apart_workspace_of(gemmill_fused_experts_args const& x) {
  return x.workspace != nullptr ? 0 : ApartWorkspace(x, Kernel::kCoded, kGroup, nullptr).bytes;
}

template <class Kernel, int kGroup, auto permute, auto activate, auto combine>
int32_t launch_apart_experts(gemmill_apart_experts_args const& args, gemmill_launch const& how) {
  constexpr int kCtasOfSm = 2;  // as many as fit
  auto const& x = args.layer;
  int64_t const pairs = int64_t(x.tokens) * x.topk, sums = int64_t(x.tokens) * (x.hidden / Kernel::kPiece);
  if (pairs >= Kernel::kMostRows) return GEMMILL_CANNOT_IMPLEMENT;
  ApartParams params{x, ApartWorkspace(x, Kernel::kCoded, kGroup, static_cast<char*>(x.workspace != nullptr ? x.workspace : how.workspace))};
  void* parameters[] = {&params};
  auto const shape = [&](int64_t items, int64_t of_cta, int ctas_of_sm) {
    int64_t const ctas = std::clamp<int64_t>((items + of_cta - 1) / of_cta, 1, int64_t(how.sm_count) * ctas_of_sm);
    return LaunchShape{dim3(static_cast<unsigned>(ctas)), dim3(Kernel::kThreads), dim3(1), 0};
  };
  switch (args.stage) {
    case GEMMILL_PERMUTE: return launch_kernel<permute>(shape(x.tokens, 1, kCtasOfSm), how, parameters);
    case GEMMILL_ACTIVATE: return launch_kernel<activate>(shape(pairs, Kernel::kWarps, kCtasOfSm), how, parameters);
    case GEMMILL_COMBINE: return launch_kernel<combine>(shape(sums, Kernel::kThreads, kCtasOfSm), how, parameters);
    default: return GEMMILL_CANNOT_IMPLEMENT;
  }
}

}  // namespace gemmill::fused_moe
