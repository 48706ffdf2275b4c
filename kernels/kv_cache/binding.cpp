// The compressed cache's ops: the arguments of a kernel.
#include <algorithm>

#include "extension/family.h"
#include "kv_cache/abi.h"
#include "kv_cache/model.h"

namespace gemmill::kv_cache {
namespace {

enum Role {
  kOut, kX, kCache, kKeys, kValues, kSlotMapping, kQ, kBlockTable, kSeqLens, kSinks, kLse, kVectors, kPacked, kScores,
  kScales, kKeyScales, kValueScales,
};
enum Value {
  kKind, kWorks, kRows, kOutStride, kXStride, kScale, kTokens, kKvHeads, kPages, kPage, kKeyToken, kKeyHead, kValueToken,
  kValueHead, kSeed, kBatch, kHeads, kPageStride, kQBatch, kQRow, kQHead, kTablePages, kTableStride, kWindow, kCausal,
  kUnbiased, kSoftcap, kOfValues, kFormatIndex, kSlotCount, kPackedSlot, kPackedHead, kVectorToken, kVectorHead, kLength,
  kKeyFormat, kValueFormat, kKeyPageStride, kKeyTokenStride, kKeyHeadStride, kValuePageStride, kValueTokenStride, kValueHeadStride,
  kRotatedOut, kSlots, kIsPlain, kRotatedKeys, kRotatedValues, kRotated, kValueAlignment,
};
enum Kind { kHadamard, kCompress, kDecode, kDecompress, kPack, kUnpack, kScoresOfKeys, kAttend, kLatent };  // as config.Kind

template <class Element>
Element* data(OpCall const& x, Role role) { return static_cast<Element*>(x.tensor(role).data); }

// Whether kernels of slots take the addresses. Twin of slots_of in families/kv_cache/call.py.
bool in_slots(OpCall const& x) {
  auto const remainder = [&](Role role, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(x.tensor(role).data) % bytes; };
  return remainder(kKeys, 4) == 0 && remainder(kValues, x.value(kValueAlignment)) == 0;
}

// Tokens of a sequence that its page table has room for, or as many as a window shows. Twin of length_of in families/kv_cache/call.py.
int64_t length_of(OpCall const& x) {
  int64_t const pages = x.value(kIsPlain) != 0 ? 1 : x.value(kTablePages);
  int64_t const length = pages * x.value(kPage), window = x.value(kWindow);
  return window > 0 ? std::min(length, window + x.value(kRows)) : length;
}

bool asks(OpCall const& x, Call& asked) {
  if (x.value(kSlots) != 0 && !in_slots(x)) asked.call_class -= x.value(kSlots);
  if (x.value(kWorks) == 0) return false;
  bool const attends = x.value(kKind) == kDecode || x.value(kKind) == kAttend || x.value(kKind) == kLatent;
  asked.sizes[kSizeBatch] = attends ? x.value(kBatch) : 1, asked.sizes[kSizeRows] = attends ? x.value(kRows) : 1;
  asked.sizes[kSizeHeads] = attends ? x.value(kHeads) : 1, asked.sizes[kSizeKvHeads] = attends ? x.value(kKvHeads) : 1;
  asked.sizes[kSizeLength] = attends ? length_of(x) : 0;
  return true;
}

void launch_hadamard(OpCall const& x, Chosen const& chosen) {
  gemmill_hadamard_args const args{x.tensor(kOut).data, x.tensor(kX).data, x.value(kRows), x.value(kOutStride),
                                   x.value(kXStride), static_cast<float>(x.real(kScale))};
  chosen.launch(&args);
}

void launch_compress(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_compress_args const args{
      data<uint8_t>(x, kCache), x.tensor(kKeys).data, x.tensor(kValues).data, data<int64_t>(x, kSlotMapping),
      x.value(kTokens), x.value(kKvHeads), x.value(kPages), x.value(kPage), x.value(kPageStride),
      x.value(kKeyToken), x.value(kKeyHead), x.value(kValueToken), x.value(kValueHead), x.value(kSeed),
      x.value(kUnbiased), x.value(kRotatedKeys), x.value(kRotatedValues)};
  chosen.launch(&args);
}

void launch_decompress(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_decompress_args const args{
      x.tensor(kKeys).data, x.tensor(kValues).data, data<uint8_t>(x, kCache), data<int64_t>(x, kSlotMapping),
      x.value(kTokens), x.value(kKvHeads), x.value(kPages), x.value(kPage), x.value(kPageStride),
      x.value(kKeyHead), x.value(kValueHead), x.value(kSeed)};
  chosen.launch(&args);
}

void launch_decode(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_attention_args const args{
      x.tensor(kOut).data, data<float>(x, kLse), x.tensor(kQ).data, data<uint8_t>(x, kCache),
      data<int32_t>(x, kBlockTable), data<int32_t>(x, kSeqLens), data<float>(x, kSinks),
      x.value(kBatch), x.value(kRows), x.value(kHeads), x.value(kKvHeads), x.value(kPages), x.value(kPage),
      x.value(kOutStride), x.value(kPageStride), x.value(kQBatch), x.value(kQRow), x.value(kQHead), x.value(kTablePages), x.value(kTableStride),
      x.value(kWindow), x.value(kCausal), x.value(kSeed), x.value(kRotatedOut), facts_of(chosen.row).half_waves, facts_of(chosen.row).slices, static_cast<float>(x.real(kScale)),
      static_cast<float>(x.real(kSoftcap))};
  chosen.launch(&args);
}

void launch_latent(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_latent_attention_args const args{
      x.tensor(kOut).data, data<float>(x, kLse), x.tensor(kQ).data, data<uint8_t>(x, kCache), data<int32_t>(x, kBlockTable),
      data<int32_t>(x, kSeqLens), x.value(kBatch), x.value(kRows), x.value(kHeads), x.value(kPages), x.value(kPage),
      x.value(kOutStride), x.value(kPageStride), x.value(kQBatch), x.value(kQRow), x.value(kQHead), x.value(kTablePages),
      x.value(kTableStride), x.value(kCausal), x.value(kSeed), x.value(kRotatedOut), facts_of(chosen.row).half_waves,
      facts_of(chosen.row).slices, static_cast<float>(x.real(kScale)), data<float>(x, kKeyScales)};
  chosen.launch(&args);
}

void launch_vectors(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_vectors_args const args{
      data<uint8_t>(x, kPacked), x.tensor(kVectors).data, data<int64_t>(x, kSlotMapping), x.value(kTokens), x.value(kHeads),
      x.value(kSlotCount), x.value(kPackedSlot), x.value(kPackedHead), x.value(kVectorToken), x.value(kVectorHead),
      x.value(kRotated) != 0 ? -1 : x.value(kSeed), x.value(kFormatIndex), x.value(kOfValues), data<float>(x, kScales)};
  chosen.launch(&args);
}

void launch_scores(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_scores_args const args{
      data<float>(x, kScores), x.tensor(kQ).data, data<uint8_t>(x, kKeys), x.value(kBatch), x.value(kRows), x.value(kHeads),
      x.value(kKvHeads), x.value(kLength), x.value(kKeyPageStride), x.value(kKeyTokenStride), x.value(kKeyHeadStride),
      x.value(kQBatch), x.value(kQRow), x.value(kQHead), x.value(kSeed), x.value(kKeyFormat), data<float>(x, kKeyScales)};
  chosen.launch(&args);
}

// On a GPU a table of no columns has no address, as no table has none: then no page is seen.
int64_t pages_seen(OpCall const& x) {
  bool const is_empty = x.value(kIsPlain) == 0 && x.value(kTablePages) == 0;
  return is_empty ? 0 : x.value(kPages);
}

void launch_attend(OpCall const& x, Chosen const& chosen) {
  gemmill_kv_packed_attention_args const args{
      x.tensor(kOut).data, data<float>(x, kLse), x.tensor(kQ).data, data<uint8_t>(x, kKeys), data<uint8_t>(x, kValues),
      data<int32_t>(x, kBlockTable), data<int32_t>(x, kSeqLens), data<float>(x, kSinks), x.value(kBatch), x.value(kRows),
      x.value(kHeads), x.value(kKvHeads), pages_seen(x), x.value(kPage), x.value(kKeyPageStride), x.value(kKeyTokenStride),
      x.value(kKeyHeadStride), x.value(kValuePageStride), x.value(kValueTokenStride), x.value(kValueHeadStride), x.value(kOutStride),
      x.value(kQBatch), x.value(kQRow), x.value(kQHead), x.value(kTablePages), x.value(kTableStride), x.value(kWindow),
      x.value(kCausal), x.value(kSeed), x.value(kRotatedOut), x.value(kKeyFormat), x.value(kValueFormat), facts_of(chosen.row).half_waves, facts_of(chosen.row).slices, static_cast<float>(x.real(kScale)),
      static_cast<float>(x.real(kSoftcap)), data<float>(x, kKeyScales), data<float>(x, kValueScales)};
  chosen.launch(&args);
}

void launch(OpCall const& x, Chosen const& chosen) {
  switch (x.value(kKind)) {
    case kHadamard: return launch_hadamard(x, chosen);
    case kCompress: return launch_compress(x, chosen);
    case kDecompress: return launch_decompress(x, chosen);
    case kPack:
    case kUnpack: return launch_vectors(x, chosen);
    case kScoresOfKeys: return launch_scores(x, chosen);
    case kAttend: return launch_attend(x, chosen);
    case kLatent: return launch_latent(x, chosen);
    default: return launch_decode(x, chosen);
  }
}

Family const family{
    "kv_cache",
    {"out", "x", "cache", "keys", "values", "slot_mapping", "q", "block_table", "seq_lens", "sinks", "lse",
     "vectors", "packed", "scores", "scales", "key_scales", "value_scales"},
    {"kind", "works", "rows", "out_stride", "x_stride", "scale", "tokens", "kv_heads", "pages", "page", "key_token", "key_head",
     "value_token", "value_head", "seed", "batch", "heads", "page_stride", "q_batch", "q_row", "q_head", "table_pages", "table_stride", "window",
     "causal", "unbiased", "softcap", "of_values", "format_index", "slot_count", "packed_slot", "packed_head", "vector_token", "vector_head",
     "length", "key_format", "value_format", "key_page_stride", "key_token_stride", "key_head_stride", "value_page_stride",
     "value_token_stride", "value_head_stride", "rotated_out", "slots", "is_plain", "rotated_keys",
     "rotated_values", "rotated", "value_alignment"},
    {},
    asks,
    launch,
    {[](Row const&, Call const&) { return true; }, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::kv_cache
