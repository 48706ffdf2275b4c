// Host code: the arguments of the compressed cache's kernels. Strides are in elements; strides within a row are 1.
#pragma once

#include "core/abi.h"

extern "C" {

// out = scale H x, H being Sylvester's matrix of as many columns as a row has.
struct gemmill_hadamard_args {
  void* out;
  void const* x;                // bf16 or f16, as the variant's
  int64_t rows;
  int64_t out_stride, x_stride;
  float scale;
};

// Keys and values of new tokens to their slots: page * page_size + place.
struct gemmill_kv_compress_args {
  uint8_t* cache;               // [pages, kv_heads, bytes of a head's page], pages at a stride of their own
  void const* keys;             // [tokens, kv_heads, head dim]
  void const* values;           // the same
  int64_t const* slots;         // [tokens]; outside of the cache: not stored
  int64_t tokens, kv_heads, pages, page_size;
  int64_t page_stride;          // bytes, a multiple of 16
  int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
  int64_t seed;                 // of the rotation's signs
  int64_t unbiased;             // whether norms are eden's scales
  int64_t rotated_keys;         // whether keys come rotated
  int64_t rotated_values;
};

// Stored keys and values of such slots to plain vectors.
struct gemmill_kv_decompress_args {
  void* keys;                   // [tokens, kv_heads, head dim]
  void* values;                 // the same
  uint8_t const* cache;         // as above
  int64_t const* slots;         // [tokens]; outside of the cache: zeros
  int64_t tokens, kv_heads, pages, page_size;
  int64_t page_stride;
  int64_t key_stride, value_stride;  // of vectors, which follow one another
  int64_t seed;                 // of the rotation's signs
};

// Attention of the last tokens of each sequence over all of it.
struct gemmill_kv_attention_args {
  void* out;                    // [batch, rows, heads, head dim], of q's type, vectors at one stride
  float* lse;                   // [batch, heads, rows], natural; null where nobody asks
  void const* q;                // [batch, rows, heads, head dim]
  uint8_t const* cache;         // as above
  int32_t const* block_table;   // [batch, table_pages]
  int32_t const* seq_lens;      // [batch]
  float const* sinks;           // [heads], logits; null for none
  int64_t batch, rows, heads, kv_heads, pages, page_size;
  int64_t out_stride, page_stride;
  int64_t q_batch_stride, q_row_stride, q_head_stride;
  int64_t table_pages, table_stride;
  int64_t window;               // keys up to itself that a row sees; 0 for all
  int64_t causal;
  int64_t seed;                 // of the rotation's signs; below 0: q comes rotated, out stays so
  int64_t rotated_out;          // out stays rotated, whatever q does
  int64_t half_waves;           // of the device's blocks, that slices of the tokens are to fill (slices.h)
  int64_t slices;               // of each sequence, whatever fills the device; 0: by half waves
  float scale;
  float softcap;                // scores stay below it in magnitude; 0 for none
};

// Keys or values and packed vectors, either from the other. A packed vector is its fields, one after the other.
struct gemmill_kv_vectors_args {
  uint8_t* packed;              // [slots, heads, bytes of a vector], at any byte
  void* vectors;                // [tokens, heads, head dim]
  int64_t const* slots;         // [tokens]; a token without a slot: not stored, or zeros. Null: token t's is t
  int64_t tokens, heads, slot_count;
  int64_t packed_slot_stride, packed_head_stride;
  int64_t token_stride, head_stride;
  int64_t seed;                 // of rotation and projection; below 0, for packed outputs: vectors come rotated
  int64_t format;               // its place among those of keys, or of values
  int64_t of_values;
  float const* scales;          // [heads], of e4m3; null for ones
};

// Attention of the last tokens of each sequence over packed vectors of any format.
struct gemmill_kv_packed_attention_args {
  void* out;                    // as above
  float* lse;
  void const* q;
  uint8_t const* keys;          // [pages, page, kv_heads, bytes of a key], at any byte
  uint8_t const* values;        // the same of values
  int32_t const* block_table;   // [batch, table_pages]; null: sequence b has page b alone
  int32_t const* seq_lens;      // [batch]
  float const* sinks;
  int64_t batch, rows, heads, kv_heads, pages, page_size;
  int64_t key_page_stride, key_token_stride, key_head_stride;
  int64_t value_page_stride, value_token_stride, value_head_stride;
  int64_t out_stride;
  int64_t q_batch_stride, q_row_stride, q_head_stride;
  int64_t table_pages, table_stride;
  int64_t window, causal;
  int64_t seed;                 // of rotations and projections; below 0: q comes rotated, out stays so
  int64_t rotated_out;
  int64_t key_format, value_format;
  int64_t half_waves, slices;
  float scale;
  float softcap;
  float const* key_scales;      // [kv_heads], of e4m3; null for ones
  float const* value_scales;
};

// Inner products of queries and packed keys.
struct gemmill_kv_scores_args {
  float* scores;                // [batch, heads, rows, length], without gaps
  void const* q;                // [batch, rows, heads, head dim]
  uint8_t const* keys;          // [batch, length, kv_heads, bytes of a key], at any byte
  int64_t batch, rows, heads, kv_heads, length;
  int64_t key_page_stride, key_token_stride, key_head_stride;
  int64_t q_batch_stride, q_row_stride, q_head_stride;
  int64_t seed;
  int64_t key_format;
  float const* key_scales;      // as above
  int64_t reserved;             // 0: `gemmill export` knows a struct by its size, and gemmill_kv_compress_args has that without it
};

// Attention of the last tokens of each sequence over latents, which are keys and values of all heads.
struct gemmill_kv_latent_attention_args {
  void* out;                    // [batch, rows, heads, 512], of q's type, vectors at one stride
  float* lse;                   // [batch, heads, rows], natural; null where nobody asks
  void const* q;                // [batch, rows, heads, 512 + 64]: of the latent, then of the rotary part
  uint8_t const* cache;         // [pages, page_size, bytes of a token], pages at a stride of their own
  int32_t const* block_table;   // [batch, table_pages]
  int32_t const* seq_lens;      // [batch]
  int64_t batch, rows, heads, pages, page_size;
  int64_t out_stride, page_stride;
  int64_t q_batch_stride, q_row_stride, q_head_stride;
  int64_t table_pages, table_stride;
  int64_t causal;
  int64_t seed;                 // of the rotation's signs; below 0: q's latent part comes rotated, out stays so
  int64_t rotated_out;          // out stays rotated, whatever q does
  int64_t half_waves, slices;   // as of gemmill_kv_attention_args
  float scale;
  float const* key_scales;      // [1], of rotary parts in e4m3; null for one
};

}  // extern "C"
