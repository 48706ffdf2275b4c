// Attention of a few query rows, drafts of a model among them, whose flat rows fill a tile of 16: decode_attention's work by twelve warps
// of consumers, where its own 16 rows have eight. Their producers give registers away.
#pragma once

#include "kv_cache/pages/decode_attention.cuh"

namespace gemmill::kv_cache {

constexpr int kDraftWarps = 12;

template <int kHeadDim, int kKeyBits, int kValueBits>
struct DraftShape : DecodeShapeOfWarps<kHeadDim, kKeyBits, kValueBits, 2, kDraftWarps> {
  static constexpr bool kHasChains = true;  // twelve warps hide less of a chain's time than sixteen
};

// Host code.
template <int kHeadDim>
int64_t draft_workspace(gemmill_kv_attention_args const& args, gemmill_launch const& how) {
  return DecodePlan(args, how, 2 * kRowsOfTile).workspace<kHeadDim>(2 * kRowsOfTile, args.batch);
}

template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits>
int32_t draft_attention(gemmill_kv_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  return attend_and_combine<Variant, Element, DraftShape<kHeadDim, kKeyBits, kValueBits>>(args, how, centroids);
}

}  // namespace gemmill::kv_cache
