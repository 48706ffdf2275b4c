// The second part of a gated GEMM: activation(gate) up of a stored product, as bf16 or as codes.
//
// The product's columns are packed as weights are (gemmill.formats.gate_up): of 16 bytes each, a piece of eight gates, their ups, the next
// gates; or, where weights have scales of blocks, a block of gates, its ups, the next gates. Values, and the order in which they round, are
// those of the kernels that multiply and activate at once.
#pragma once

#include <algorithm>
#include <climits>
#include <cstring>
#include <cuda_bf16.h>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "coding/activation.cuh"
#include "coding/coding.cuh"
#include "coding/gating.cuh"
#include "coding/memory.cuh"
#include "coding/reduce.cuh"
#include "gated_mm/parts.h"

namespace gemmill::gated_mm {

// Each replaces the gates of a piece by activation(gate) up: for one activation, or for all.
struct Silu {
  template <int kElements>
  static __device__ __forceinline__ void gate(gemmill_gated_mm_args const&, float (&gates)[kElements], float const (&ups)[kElements]) {
    quant::gate_and_multiply<quant::Silu>(gates, ups);
  }
};

struct Swiglu {
  template <int kElements>
  static __device__ __forceinline__ void gate(gemmill_gated_mm_args const& x, float (&gates)[kElements], float const (&ups)[kElements]) {
    quant::Gating const gating{quant::kSwigluGate, x.alpha, x.limit, x.beta};
#pragma unroll
    for (int i = 0; i < kElements; ++i) gates[i] = gating(gates[i], ups[i]);
  }
};

struct AnyActivation {
  template <int kElements>
  static __device__ __forceinline__ void gate(gemmill_gated_mm_args const& x, float (&gates)[kElements], float const (&ups)[kElements]) {
    switch (x.activation) {
      case quant::kSiluGate:
        return Silu::gate(x, gates, ups);
      case quant::kGeluGate:
        return quant::gate_and_multiply<quant::GeluErf>(gates, ups);
      case quant::kGeluTanhGate:
        return quant::gate_and_multiply<quant::GeluTanh>(gates, ups);
      default:
        return Swiglu::gate(x, gates, ups);
    }
  }
};

// kCoded: results are codes of e4m3, whose scale kGroup results of a row share; of a given one where it is 0. kBlock: gates, or ups,
// that are neighbouring columns; 0 where pieces of gates and of ups take turns.
template <bool kCoded, int kGroup, int kBlock>
struct ActivatePacked {
  static constexpr int kThreads = 256, kThreadsOfMany = 128, kPiece = 8, kUnrollOfMany = 4, kLanesOfWarp = 32, kResultBytes = kCoded ? 1 : 2;
  static constexpr int kPiecesOfGroup = kGroup != 0 ? kGroup / kPiece : 1, kPiecesOfBlock = kBlock != 0 ? kBlock / kPiece : 1;

  // Of rows that one launch has.
  struct Params {
    void const* product;
    uint32_t first_row, pieces_of_row, pieces;
    uint32_t multiplier, shift;  // piece / pieces_of_row is piece * multiplier >> shift, for pieces below 2^31
    gemmill_gated_mm_args x;
  };

  // A thread has kUnroll pieces, of which kParts are of one group: the more, the fewer shuffles and scales it computes. Of many pieces
  // the last CTAs' come first: the end of the product is in L2 still.
  template <class Activation, int kUnroll>
  static __device__ __forceinline__ void run(Params const& p) {
    constexpr int kParts = kGroup != 0 ? quant::parts_of_group(kUnroll, kPiecesOfGroup) : 1, kSets = kUnroll / kParts;
    uint32_t const cta = kUnroll == kUnrollOfMany ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    uint32_t const warps = blockDim.x / 32, first = cta * kSets * warps + threadIdx.x / 32;
    auto const piece_of = [&](int set) { return first_piece<kParts>(first + set * warps); };
    Place place = place_of(p, piece_of(0));
    if constexpr (kUnroll == 1) place.keep();
    wait_for_predecessor();
    uint4 gates[kSets][kParts], ups[kSets][kParts];
#pragma unroll
    for (int s = 0; s < kSets; ++s) load<kUnroll == 1>(p, piece_of(s), gates[s], ups[s]);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if constexpr (kUnroll > 1) place = place_of(p, piece_of(s));
      activate<Activation>(p, place, gates[s], ups[s]);
    }
  }

 private:
  // Where a lane's first piece of a set goes.
  struct Place {
    uint32_t piece, row, at;
    uint8_t* out;
    float* scale;
    int is_of_experts;

    // Arguments, of which the first to read a line waits for it, are read here, before the product has been made.
    __device__ __forceinline__ void keep() { asm volatile("" : "+l"(out), "+l"(scale), "+r"(is_of_experts)); }
  };

  static __device__ __forceinline__ Place place_of(Params const& p, uint32_t piece) {
    auto const& x = p.x;
    uint32_t const row = static_cast<uint32_t>(uint64_t{piece} * p.multiplier >> p.shift), at = piece - row * p.pieces_of_row;
    uint8_t* const out = static_cast<uint8_t*>(x.d) + (int64_t{row} * x.ldd + int64_t{at} * kPiece) * kResultBytes;
    return {piece, row, at, out, x.out_scales + row * x.out_scale_stride_m + at / kPiecesOfGroup * x.out_scale_stride_g, x.offsets != nullptr};
  }

  // Lanes that share a group, and a lane's first piece of those that warp `warp` has; its others follow by that many.
  template <int kParts>
  static constexpr int kLanes = kPiecesOfGroup / kParts;
  template <int kParts>
  static __device__ uint32_t first_piece(uint32_t warp) {
    uint32_t const lane = threadIdx.x % kLanesOfWarp;
    return warp * kLanesOfWarp * kParts + lane / kLanes<kParts> * kPiecesOfGroup + lane % kLanes<kParts>;
  }

  static __device__ int offset_at(gemmill_gated_mm_args const& x, int i) { return __ldg(x.offsets + int64_t{i} * x.offset_words); }

  // Whether the product has been made for a row.
  static __device__ bool has_expert(gemmill_gated_mm_args const& x, int row) {
    int expert = 0;
    if (x.slot != 0) {
      expert = row / x.slot;
      if (row - expert * x.slot >= offset_at(x, expert)) return false;
    } else if (x.expert_map == nullptr) {
      return row >= offset_at(x, 0) && row < offset_at(x, x.experts);
    } else {
      int begun = 0;  // experts whose rows begin at this one or before it
      for (int end = x.experts + 1; begun < end;) {
        int const middle = (begun + end) / 2;
        if (offset_at(x, middle) <= row) {
          begun = middle + 1;
        } else {
          end = middle;
        }
      }
      if (begun == 0 || begun > x.experts) return false;
      expert = begun - 1;
    }
    return x.expert_map == nullptr || __ldg(x.expert_map + expert) >= 0;
  }

  static __device__ void unpack(uint4 const& words, float (&values)[kPiece]) {
    __nv_bfloat16 elements[kPiece];
    memcpy(elements, &words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values[i] = __bfloat162float(elements[i]);
  }

  // The gates of a piece; of one behind the last row, those of its end. Their ups are kPiecesOfBlock behind.
  static __device__ __forceinline__ uint4 const* gates_at(Params const& p, uint32_t piece) {
    uint32_t const own = min(piece, p.pieces - 1);
    return static_cast<uint4 const*>(p.product) + (own + own / kPiecesOfBlock * kPiecesOfBlock);
  }

  // Gates and ups of a lane's pieces, by loads of neighbouring lanes. Where pieces take turns, a load
  // has every second 16 bytes, so L1 keeps lines for the other one; else it does for many pieces, as the op does.
  template <bool kFew, int kParts>
  static __device__ __forceinline__ void load(Params const& p, uint32_t piece, uint4 (&gates)[kParts], uint4 (&ups)[kParts]) {
    constexpr bool kStream = kFew && kBlock != 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      uint4 const* const gate = gates_at(p, piece + i * kLanes<kParts>);
      gates[i] = kStream ? quant::load_stream(gate) : quant::load_reused(gate);
      ups[i] = kStream ? quant::load_stream(gate + kPiecesOfBlock) : quant::load_reused(gate + kPiecesOfBlock);
    }
  }

  // All lanes come here, those behind the last row without an effect; groups and pairs of pieces lie within a row. Without blocks a pair
  // has 32 columns, 16 results: an even piece the first two of each four, the next piece, of the next lane, the last two.
  template <class Activation, int kParts>
  static __device__ __forceinline__ void activate(Params const& p, Place const& place, uint4 const (&gates)[kParts], uint4 const (&of_ups)[kParts]) {
    auto const& x = p.x;
    bool const is_odd = threadIdx.x % 2;
    bool const is_wanted = place.piece < p.pieces && (place.is_of_experts == 0 || has_expert(x, static_cast<int>(p.first_row + place.row)));
    float values[kParts * kPiece];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float of_part[kPiece], ups[kPiece];
      unpack(gates[part], of_part), unpack(of_ups[part], ups);
      Activation::gate(x, of_part, ups);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) values[part * kPiece + i] = of_part[i];
    }
    if constexpr (!kCoded) {
      uint32_t words[kPiece / 2];
#pragma unroll
      for (int i = 0; i < kPiece / 2; ++i) {
        __nv_bfloat16 const pair[] = {__float2bfloat16_rn(values[2 * i]), __float2bfloat16_rn(values[2 * i + 1])};
        memcpy(words + i, pair, sizeof(pair));
      }
      uint4 results = make_uint4(words[0], words[1], words[2], words[3]);
      if constexpr (kBlock == 0) {
        uint32_t const first_word = other(is_odd ? words[0] : words[2]), second = other(is_odd ? words[1] : words[3]);
        results = is_odd ? make_uint4(first_word, words[2], second, words[3]) : make_uint4(words[0], first_word, words[1], second);
      }
      if (is_wanted) *reinterpret_cast<uint4*>(place.out) = results;
    } else {
      uint32_t words[kParts * kPiece / 4];
      if constexpr (kGroup == 0) {
        float const by = quant::reciprocal_of(__ldg(x.static_scale));
#pragma unroll
        for (int i = 0; i < kPiece; ++i) values[i] = __fmul_rn(values[i], by);
#pragma unroll
        for (int i = 0; i < kPiece; i += 4) words[i / 4] = quant::encode4(values[i], values[i + 1], values[i + 2], values[i + 3], quant::E4M3{});
      } else {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < kParts * kPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));  // NaN does not count
        quant::SymmetricCoding<quant::E4M3, quant::Silu> const coding(quant::reduce_lanes<kLanes<kParts>>(largest, quant::Max{}), INFINITY);
        coding.encode(values, words);
        if (is_wanted && place.at % kPiecesOfGroup == 0) *place.scale = coding.scale;
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t const first_word = words[2 * part], second = words[2 * part + 1];
        uint2 codes = make_uint2(first_word, second);
        if constexpr (kBlock == 0) {
          uint32_t const found = other(is_odd ? first_word : second);
          uint32_t const even = is_odd ? found : first_word, odd = is_odd ? second : found;
          codes = make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
        }
        if (is_wanted) *reinterpret_cast<uint2*>(place.out + part * kLanes<kParts> * kPiece) = codes;
      }
    }
  }

  // The word of the other piece of a pair.
  static __device__ uint32_t other(uint32_t word) { return __shfl_xor_sync(~0u, word, 1); }
};

template <class Variant, class Activated, class Activation, int kUnroll>
__global__ void __launch_bounds__(Activated::kThreads) activate_packed_kernel(__grid_constant__ typename Activated::Params const params) {
  Activated::template run<Activation, kUnroll>(params);
}

template <class Variant, class Activated, class Activation, int kUnroll>
int32_t launch_pieces(typename Activated::Params params, gemmill_launch const& how) {
  constexpr int kThreads = kUnroll == Activated::kUnrollOfMany ? Activated::kThreadsOfMany : Activated::kThreads;
  constexpr int64_t kPieces = int64_t{kThreads} * kUnroll;
  void* parameters[] = {&params};
  LaunchShape const shape{dim3(static_cast<unsigned>((params.pieces + kPieces - 1) / kPieces)), dim3(kThreads), dim3(1), 0};
  return launch_kernel<&activate_packed_kernel<Variant, Activated, Activation, kUnroll>>(shape, how, parameters);
}

// Host code: the second launch, or one for each 2^30 pieces. From as many pieces on as in the op that reads the same bytes
// (quant/group_quant.cuh) a thread has two or four, of the activations that layers mostly have; SiLU's kernel has no other code for few.
template <class Variant, bool kCoded, int kGroup, int kBlock>
int32_t launch_activate_packed(gemmill_gated_parts_args const& x, gemmill_launch const& how) {
  using Activated = ActivatePacked<kCoded, kGroup, kBlock>;
  constexpr int64_t kMostPieces = int64_t{1} << 30, kSmall = 1024, kLarge = 8192;
  int64_t const of_row = x.call.n / 2 / Activated::kPiece;
  if (x.call.m == 0 || of_row == 0) return 0;
  int64_t const slice = std::max<int64_t>(kMostPieces / of_row, 1);
  typename Activated::Params params{};
  params.x = x.call;
  params.pieces_of_row = static_cast<uint32_t>(of_row);
  uint32_t bits = 0;
  while ((int64_t{1} << bits) < of_row) ++bits;
  params.shift = 31 + bits, params.multiplier = static_cast<uint32_t>(((uint64_t{1} << params.shift) + of_row - 1) / of_row);
  for (int64_t row = 0; row < x.call.m; row += slice) {
    int64_t const pieces = std::min<int64_t>(slice, x.call.m - row) * of_row;
    params.first_row = static_cast<uint32_t>(row), params.pieces = static_cast<uint32_t>(pieces);
    params.product = static_cast<__nv_bfloat16 const*>(x.product) + row * x.call.n;
    params.x.d = static_cast<uint8_t*>(x.call.d) + row * x.call.ldd * Activated::kResultBytes;
    if (x.call.out_scales != nullptr) params.x.out_scales = x.call.out_scales + row * x.call.out_scale_stride_m;
    bool const many = pieces > how.sm_count * kSmall, large = pieces > how.sm_count * kLarge;
    int32_t const activation = x.call.activation;
    int32_t const error = activation == quant::kSiluGate             ? large  ? launch_pieces<Variant, Activated, Silu, 4>(params, how)
                                                                       : many ? launch_pieces<Variant, Activated, Silu, 2>(params, how)
                                                                              : launch_pieces<Variant, Activated, Silu, 1>(params, how)
                          : activation == quant::kSwigluGate && many ? large ? launch_pieces<Variant, Activated, Swiglu, 4>(params, how)
                                                                             : launch_pieces<Variant, Activated, Swiglu, 2>(params, how)
                                                                     : launch_pieces<Variant, Activated, AnyActivation, 1>(params, how);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace gemmill::gated_mm
