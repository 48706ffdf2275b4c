// Where each part of a call's workspace lies. Mirrors gemmill.families.fused_experts.workspace: a caller reserves for any kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fused_experts/abi.h"

namespace gemmill::fused_moe {

// Rows of one expert that a CTA takes together.
struct Tile {
  int32_t weights, first, count, spare;
};

struct Workspace {
  static constexpr int64_t kAligned = 256, kGroup = 128, kFewestTileRows = 8, kFewestColumns = 16;

  Tile* tiles;
  int32_t* tile_count;
  int32_t* order;     // of rows sorted by expert: the pair, token * topk + slot
  int32_t* local;     // of pairs: the weights, -1 for none
  int32_t* needed;    // of tokens: pairs that have weights
  int32_t* finished;  // of tiles and groups of results: CTAs that have stored theirs
  int32_t* summed;    // of tokens and blocks of columns: stored pairs
  uint8_t* codes;     // of x
  float* scales;
  float* results;     // activation(gate) up of sorted rows
  uint8_t* inner_codes;
  float* inner_scales;
  float* parts;       // of pairs: addends of the sums, [pairs, hidden]
  int64_t bytes;

  Workspace() = default;
  Workspace(gemmill_fused_experts_args const& x, bool coded, char* base) {
    int64_t const pairs = int64_t(x.tokens) * x.topk, groups = (int64_t(x.inner) + kGroup - 1) / kGroup;
    int64_t const most_tiles = pairs / kFewestTileRows + std::min<int64_t>(pairs, x.weights);
    int64_t at = -reinterpret_cast<intptr_t>(base) & (kAligned - 1);  // a caller's may begin anywhere
    auto const take = [&](int64_t size) {
      char* const part = base + at;
      at += (size + kAligned - 1) / kAligned * kAligned;
      return static_cast<void*>(part);
    };
    tile_count = static_cast<int32_t*>(take(4));
    tiles = static_cast<Tile*>(take(most_tiles * 16));
    order = static_cast<int32_t*>(take(pairs * 4));
    local = static_cast<int32_t*>(take(pairs * 4));
    needed = static_cast<int32_t*>(take(int64_t(x.tokens) * 4));
    finished = static_cast<int32_t*>(take(most_tiles * groups * 4));
    summed = static_cast<int32_t*>(take(int64_t(x.tokens) * ((int64_t(x.hidden) + kFewestColumns - 1) / kFewestColumns) * 4));
    results = static_cast<float*>(take(pairs * x.inner * (coded ? 4 : 2)));
    parts = static_cast<float*>(take(pairs * x.hidden * 4));
    codes = nullptr, scales = nullptr, inner_codes = nullptr, inner_scales = nullptr;
    if (coded) {
      codes = static_cast<uint8_t*>(take(int64_t(x.tokens) * x.hidden));
      scales = static_cast<float*>(take(int64_t(x.tokens) * ((int64_t(x.hidden) + kGroup - 1) / kGroup) * 4));
      inner_codes = static_cast<uint8_t*>(take(pairs * x.inner));
      inner_scales = static_cast<float*>(take(pairs * groups * 4));
    }
    bytes = at + kAligned;
  }
};

}  // namespace gemmill::fused_moe
