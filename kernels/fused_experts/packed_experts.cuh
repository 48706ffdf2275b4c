// Fused experts of packed 4-bit weights: three launches, of which each may start while the one before ends.
//
//   prepare  sorts pairs of token and expert (prepare.cuh), and says of sorted rows whose they are; codes x where weights are folded into
//            e4m3
//   up       gathers rows of x, multiplies by W13, and stores activation(gate) up of sorted rows; of folded weights the last CTA of a
//            tile's rows codes them
//   down     multiplies by W2 and the router's weight; the last CTA of a token's columns sums over its experts in their order
//
// Both products have the main loop of grouped GEMMs (gemm/packed_grouped_mm.cuh) and end otherwise. W13 has each gate before its up, so
// the last four sums of a thread are two results. Rows of scales are bases, of float32.
#pragma once

#include <climits>

#include "core/together.cuh"
#include "fused_experts/prepare.cuh"
#include "fused_experts/sums.cuh"
#include "gemm/packed_grouped_mm.cuh"
#include "gemm/row_products.cuh"
#include "coding/gating.cuh"

namespace gemmill::fused_moe {

using moe::WorkTile;

// A layer's workspace, and behind it the facts of sorted rows that grouped GEMMs want. Mirrored by `packed_expression` in
// gemmill.families.fused_experts.workspace.
struct PackedWorkspace {
  Workspace layer;
  int32_t* tokens;  // of sorted rows: of x
  int64_t bytes;

  PackedWorkspace(gemmill_fused_experts_args const& x, bool coded, char* base) : layer(x, coded, base) {
    constexpr int64_t kAligned = Workspace::kAligned;
    auto const up = [](int64_t size) { return (size + kAligned - 1) / kAligned * kAligned; };
    int64_t const of_tokens = up(int64_t(x.tokens) * x.topk * 4), of_stored = coded ? of_tokens : 0;
    char* const behind = base + layer.bytes + (-reinterpret_cast<intptr_t>(base + layer.bytes) & (kAligned - 1));
    tokens = reinterpret_cast<int32_t*>(behind);
    if (coded) layer.finished = reinterpret_cast<int32_t*>(behind + of_tokens);  // of tiles, by their first rows
    bytes = layer.bytes + of_tokens + of_stored + kAligned;
  }
};

struct PackedParams {
  Params layer;
  int32_t* tokens;
};

// The parameters of a grouped GEMM, and its layer.
struct PackedArgs : gemmill_grouped_mm_args {
  Params layer;
};

// A tile of the list that `prepare` made.
__device__ __forceinline__ moe::Span tile_at(PackedArgs const& x, int index) {
  static_assert(sizeof(Tile) == sizeof(int4), "weights, first and count, in this order");
  int4 const words = __ldcg(reinterpret_cast<int4 const*>(x.layer.ws.tiles + index));
  return {words.y, words.y + words.z, words.x};
}

// The same, of weights below 0 behind the last. It is read past L1: producers read it before they wait.
__device__ __forceinline__ moe::Span listed_tile(PackedArgs const& x, int index) {
  if (index >= __ldcg(x.layer.ws.tile_count)) return {0, 0, -1};
  return tile_at(x, index);
}

// The facts that loaders of the first product find without that list, for few pairs: they do not wait for `prepare`.
template <int kTokens>
struct FewSpans : FewTiles<kTokens> {
  // `sources`: where the token of each sorted row is left.
  __device__ void find(PackedArgs const& x, int32_t* sources) {
    FewTiles<kTokens>::find(x.layer.x);
    if (this->place >= 0) sources[this->place] = static_cast<int>(threadIdx.x % 32) / x.layer.x.topk;
    __syncwarp();
  }
  __device__ moe::Span tile_of(int index) const {
    Tile const tile = FewTiles<kTokens>::tile_of(index);
    return {tile.first, tile.first + tile.count, tile.weights};
  }
};

// How four columns of sums become numbers: by their bases, and with their biases.
template <class Mm>
struct Scaled {
  float factors[4], bias[4];

  __device__ Scaled(PackedArgs const& x, int weights, int n) {
    int64_t const of_expert = int64_t{weights} * x.n;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int64_t const at = of_expert + min(n + i, x.n - 1);
      factors[i] = __fmul_rn(x.b_scales[at], Mm::Block::kShort);  // a power of two
      bias[i] = x.bias == nullptr ? 0.0f : to_float(static_cast<__nv_bfloat16 const*>(x.bias)[at]);
    }
  }

  // Of columns whose bases are at hand.
  __device__ Scaled(PackedArgs const& x, int weights, int n, float4 bases)
      : factors{__fmul_rn(bases.x, Mm::Block::kShort), __fmul_rn(bases.y, Mm::Block::kShort), __fmul_rn(bases.z, Mm::Block::kShort), __fmul_rn(bases.w, Mm::Block::kShort)} {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      bias[i] = x.bias == nullptr ? 0.0f : to_float(static_cast<__nv_bfloat16 const*>(x.bias)[int64_t{weights} * x.n + min(n + i, x.n - 1)]);
    }
  }

  // `of_row`: the scale of a row of codes, 1 where there are none.
  __device__ float operator()(PackedArgs const& x, float of_row, float sum, int i) const {
    float value = __fmul_rn(sum, factors[i]);
    if constexpr (Mm::kScaled) value = __fmul_rn(of_row, value);
    return x.bias == nullptr ? value : __fadd_rn(value, bias[i]);
  }
};

// The needs of a row of results: its pair, its factor, and its scale.
struct OfRow {
  int pair;
  float weight, scale;
};

// The epilogue of the first product: two gates and their ups are two results.
template <class Mm>
struct GatedRows {
  using Args = PackedArgs;
  static constexpr int kFinishers = 0;
  static constexpr bool kListed = true, kFollows = false, kAsks = true;
  using Few = FewSpans<Mm::kTileM>;
  Scaled<Mm> scaled;
  OfRow asked;

  __device__ GatedRows(Args const& x, int weights, int n) : scaled(x, weights, n) {}
  __device__ explicit GatedRows(Scaled<Mm> const& scaled) : scaled(scaled) {}
  __device__ static moe::Span tile_of(Args const& x, int index) { return listed_tile(x, index); }

  // Of row m, which a thread may ask for before it multiplies.
  __device__ void ask(Args const& x, int m) { asked = of_row(x, m); }
  __device__ static OfRow of_row(Args const& x, int m) {
    auto const& of = x.layer.x;
    int const pair = x.layer.ws.order[m];
    return {pair, of.weight_on_input ? router_weight(of, pair) : 1.0f, Mm::kScaled ? x.layer.ws.scales[pair / of.topk] : 1.0f};
  }

  template <bool asks>
  __device__ void take(Args const& x, bool, float const (&quad)[4], int m, int, int n) const {
    OfRow const row = asks ? asked : of_row(x, m);
    put(x, quad, m, n, row.weight, row.scale);
  }

  // `weight`: the factor of gates and ups. `of_row`: the scale of the row's codes. Returns the largest result.
  __device__ float put(Args const& x, float const (&quad)[4], int m, int n, float weight, float of_row) const {
    auto const& of = x.layer.x;
    quant::Gating const gating{of.activation, of.alpha, of.limit, of.beta};
    float results[2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) {
      float values[2];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 2; ++j) {
        float const value = scaled(x, of_row, quad[2 * i + j], 2 * i + j);
        values[j] = to_float(of_float<__nv_bfloat16>(of.weight_on_input ? __fmul_rn(value, weight) : value));
      }
      results[i] = gating(values[0], values[1]);
    }
    // One store: n is a multiple of 4, a row of results of 16. Of a memcpy of two bf16 nvcc 13.0 made four stores of bytes, of which
    // one was a conversion to u8.
    if constexpr (Mm::kScaled) {
      *reinterpret_cast<float2*>(static_cast<float*>(x.d) + m * x.ldd + n / 2) = make_float2(results[0], results[1]);
    } else {
      *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(x.d) + m * x.ldd + n / 2) = __floats2bfloat162_rn(results[0], results[1]);
    }
    return fmaxf(fabsf(results[0]), fabsf(results[1]));
  }

  // Rows of results become codes after the store of their last columns.
  template <class Kernel>
  __device__ static void finish(Args const& x, int m0, int end, int) {
    if constexpr (Mm::kScaled) {
      __shared__ bool last;
      auto const meet = [] { cutlass::arch::NamedBarrier::sync(Kernel::kConsumers, 1); };
      auto const& of = x.layer;
      __threadfence();
      meet();
      if (threadIdx.x == 0) last = atomicAdd(of.ws.finished + m0, 1) == (x.n - 1) / Kernel::kRows;
      meet();
      __threadfence();
      if (!last) return;
      for (int64_t row = m0 + threadIdx.x / 32; row < min(m0 + Kernel::kTileM, end); row += Kernel::kConsumers / 32) {
        float4 const* const values = reinterpret_cast<float4 const*>(of.ws.results + row * of.x.inner);
        auto const four = [&](int piece) { return __ldcg(values + piece); };
        code_row<32>(four, reinterpret_cast<uint32_t*>(of.ws.inner_codes + row * of.x.inner), of.x.inner, of.ws.inner_scales + row);
      }
    }
  }
};

// The epilogue of the second product: parts of pairs, summed when a token has them all.
template <class Mm>
struct WeighedParts {
  using Args = PackedArgs;
  static constexpr int kFinishers = Mm::kConsumers > 128 || Mm::kTileM <= 8 ? 128 : 64;
  static constexpr bool kListed = true, kFollows = true, kAsks = true;
  struct Few {
    static constexpr int kMost = 0;
  };
  Scaled<Mm> scaled;
  OfRow asked;

  __device__ WeighedParts(Args const& x, int weights, int n) : scaled(x, weights, n) {}
  __device__ explicit WeighedParts(Scaled<Mm> const& scaled) : scaled(scaled) {}
  __device__ static moe::Span tile_of(Args const& x, int index) { return listed_tile(x, index); }

  __device__ void ask(Args const& x, int m) { asked = of_row(x, m); }
  __device__ static OfRow of_row(Args const& x, int m) {
    int const pair = x.layer.ws.order[m];
    return {pair, x.layer.x.weight_on_input ? 1.0f : router_weight(x.layer.x, pair), Mm::kScaled ? x.layer.ws.inner_scales[m] : 1.0f};
  }

  template <bool asks>
  __device__ void take(Args const& x, bool, float const (&quad)[4], int m, int, int n) const {
    OfRow const row = asks ? asked : of_row(x, m);
    put(x, quad, row.pair, n, row.weight, row.scale);
  }

  __device__ void put(Args const& x, float const (&quad)[4], int pair, int n, float weight, float of_row) const {
    float4 const part = {weighed(x, quad, 0, weight, of_row), weighed(x, quad, 1, weight, of_row), weighed(x, quad, 2, weight, of_row),
                         weighed(x, quad, 3, weight, of_row)};
    *reinterpret_cast<float4*>(x.layer.ws.parts + pair * int64_t(x.layer.x.hidden) + n) = part;  // hidden is a multiple of 16
  }

  // Rounded to bf16, as kernels of many rows store it, so that a row's bits do not depend on the tile.
  __device__ float weighed(Args const& x, float const (&quad)[4], int i, float weight, float of_row) const {
    float part;
    if constexpr (Mm::kScaled) {
      part = x.bias == nullptr ? scaled(x, __fmul_rn(of_row, weight), quad[i], i) : __fmul_rn(scaled(x, of_row, quad[i], i), weight);
    } else {
      part = __fmul_rn(scaled(x, of_row, quad[i], i), weight);
    }
    return to_float(of_float<__nv_bfloat16>(part));
  }

  template <class Kernel>
  __device__ static AskedRow ask_rows(Args const& x, int m0, int end) {
    return ask_row(x.layer, m0, min(Kernel::kTileM, end - m0));
  }
  template <class Kernel>
  __device__ static void finish(Args const& x, int m0, int end, int n0, AskedRow const& first) {
    sum_stored<__nv_bfloat16, Kernel::kRows>(x.layer, m0, min(Kernel::kTileM, end - m0), n0, first);
  }
};

// The first launch.
template <int kTokens, bool kCoded>
struct PreparePacked {
  using First = Prepare<__nv_bfloat16, kCoded, false, kTokens>;
  static constexpr int kThreads = First::kThreads;

  static __device__ void run(PackedParams const& p) { First::run(p.layer, p.tokens); }
};

// Host code: three launches.

// A product: its parameters, and its launch. `describe` makes a kernel's tensor maps, and answers whether it can be launched.
template <class Kernel, auto entry>
struct Product {
  static constexpr auto kEntry = entry;
  typename Kernel::Params params{};
  LaunchShape shape{dim3(1), dim3(Kernel::kThreads), dim3(1), Kernel::kSharedBytes};
  int32_t error = GEMMILL_CANNOT_IMPLEMENT;  // why it cannot be launched, or 0

  Product(PackedArgs const& x, gemmill_launch const& how) {
    constexpr int64_t kStage = blockscaled::kStageColumns, kBlocks = kStage / Kernel::kColumns;
    params.x = x;
    params.tiles_n = (x.n - 1) / Kernel::kRows + 1;
    params.blocks = static_cast<int32_t>((x.k + kStage - 1) / kStage * kBlocks);
    params.spread = Kernel::kSpread;
    int64_t const tiles = std::min<int64_t>(x.m, int64_t{x.m} / Kernel::kTileM + std::min(x.m, x.experts)) * params.tiles_n;
    if (tiles > INT_MAX / 2 || !Kernel::describe(params, x)) return;
    error = static_cast<int32_t>(allow_shared_memory<entry>(how.device, Kernel::kSharedBytes));
    shape.grid.x = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{how.sm_count} * Kernel::kCtas));
  }
};

// All three. `shape` and `p`: of the first.
template <auto prepare, class Params, class Up, class Down>
int32_t launch_three(LaunchShape const& shape, Params& p, Up up, Down down, gemmill_launch const& how) {
  if (up.error != 0 || down.error != 0) return up.error != 0 ? up.error : down.error;
  return Together<prepare, Up::kEntry, Down::kEntry>::launch({{{shape, p}, {up.shape, up.params}, {down.shape, down.params}}}, how);
}

// The common facts of sorted rows for both products.
inline PackedArgs product_of(PackedParams const& p, int n, int k) {
  auto const& x = p.layer.x;
  PackedArgs args{{}, p.layer};
  args.id_words = 1;
  args.m = x.tokens * x.topk, args.n = n, args.k = k;
  args.experts = args.weights = x.weights;
  args.b_scale_per_column = 1, args.b_scale_stride_expert = n;
  return args;
}

template <class Up>
int64_t packed_workspace_of(gemmill_fused_experts_args const& x) {
  return x.workspace != nullptr ? 0 : PackedWorkspace(x, Up::Mm::kScaled, nullptr).bytes;
}

// The common parameters of all three. `coded`: whether activations become codes.
template <class Down>
PackedParams packed_params(gemmill_fused_experts_args const& x, PackedWorkspace const& ws, bool coded) {
  PackedParams p{{x, ws.layer, {}, {}, 0, 0, 0, 0}, ws.tokens};
  p.layer.down = {1, (x.hidden - 1) / Down::kRows + 1};
  p.layer.summed_count = int64_t(x.tokens) * p.layer.down.blocks;
  p.layer.finished_count = coded ? int64_t(x.tokens) * x.topk : 0;
  return p;
}

// The first product, of rows by their numbers, and the second.
inline PackedArgs first_of(PackedParams const& p, bool coded) {
  auto const& x = p.layer.x;
  PackedArgs first = product_of(p, 2 * x.inner, x.hidden);
  first.a = coded ? p.layer.ws.codes : x.x, first.b = x.w13, first.d = p.layer.ws.results, first.b_scales = x.w13_scales, first.bias = x.w13_bias;
  first.token_ids = p.tokens, first.tokens = x.tokens, first.lda = coded ? x.hidden : x.ldx, first.ldd = x.inner, first.b_stride_expert = x.w13_stride_expert;
  return first;
}

inline PackedArgs second_of(PackedParams const& p, bool coded) {
  auto const& x = p.layer.x;
  PackedArgs second = product_of(p, x.hidden, x.inner);
  second.a = coded ? static_cast<void const*>(p.layer.ws.inner_codes) : p.layer.ws.results, second.b = x.w2, second.b_scales = x.w2_scales, second.bias = x.w2_bias;
  second.tokens = second.m, second.lda = x.inner, second.b_stride_expert = x.w2_stride_expert;
  return second;
}

template <class First, class Up, class Down, auto prepare, auto up, auto down>
int32_t launch_packed_experts(gemmill_fused_experts_args const& x, gemmill_launch const& how) {
  if (int64_t(x.tokens) * x.topk > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  constexpr bool kCoded = Up::Mm::kScaled;
  PackedWorkspace const ws(x, kCoded, static_cast<char*>(x.workspace != nullptr ? x.workspace : how.workspace));
  PackedParams p = packed_params<Down>(x, ws, kCoded);
  int const others = std::clamp<int>(x.tokens, 1, 2 * how.sm_count);
  LaunchShape const of_first{dim3(1 + others), dim3(First::kThreads), dim3(1), 0};
  return launch_three<prepare>(of_first, p, Product<Up, up>(first_of(p, kCoded), how), Product<Down, down>(second_of(p, kCoded), how), how);
}

}  // namespace gemmill::fused_moe
