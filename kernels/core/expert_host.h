// Host code: the launch of kernels of rows that belong to experts (generator/gemmill/gemm/expert_mm.py).
#pragma once

#include "core/gemm_host.h"

namespace gemmill {

struct ExpertFacts {
  GemmFacts gemm;
  int32_t store_rows;  // rows of D in a box, where boxes hold rows of D whichever operand these belong to; else 0
  int32_t indexed;     // whether threads gather rows of A
  int32_t biased;      // whether a sum ends with alpha and bias
};

// Tiles of rows that share a sweep over all columns.
constexpr int64_t kExpertBand = 16;

struct ExpertExtent {
  int32_t rows, columns, experts;
};

// Parameters of one call. D is [m, columns of D]; Ending adds the further inputs of the family's consumers.
template <class Args, class AddVectors, class AddEnding>
int32_t launch_experts(gemmill_driver_kernel& kernel, ExpertFacts const& told, Args const& args, gemmill_launch const& how, int64_t columns,
                       AddVectors const& add_vectors, AddEnding const& add_ending) {
  GemmFacts const& facts = told.gemm;
  bool const swap = facts.swap_ab;
  int32_t const tile_m = swap ? facts.tile_y : facts.tile_x, tile_n = swap ? facts.tile_x : facts.tile_y;
  int32_t const cluster = facts.cluster_x * facts.cluster_y;
  int32_t const bytes = facts.operand == MapType::kBytes ? 1 : 2;

  Operand a, d;
  TensorMap b;
  ExpertExtent const b_extent{args.n, args.k, args.weights};
  int32_t error = make_map(b, {args.b, args.n, args.k, args.ldb, tile_n, kLineBytes / bytes, facts.operand, args.weights, args.b_stride_expert});
  if (error == 0 && !told.indexed) error = a.make(facts, args.a, args.tokens, args.k, args.lda, tile_m / cluster);
  bool const by_rows = told.store_rows > 0 || !swap;
  int32_t const box_rows = told.store_rows > 0 ? told.store_rows : swap ? facts.store_columns : kSlab;
  int32_t const box_columns = told.store_rows > 0 || !swap ? facts.store_columns : kSlab;
  d.extent = {static_cast<int32_t>(by_rows ? args.m : columns), static_cast<int32_t>(by_rows ? columns : args.m)};
  if (error == 0) error = make_map(d.map, {args.d, args.m, columns, args.ldd, box_rows, box_columns, facts.result});
  if (error != 0) return error;

  int64_t const tiles_n = ceil_div(args.n, int64_t{tile_n} * cluster);
  int64_t tiles_m = args.m / tile_m + std::min(args.m, args.experts);  // of segments that follow one another, at most
  if (args.slot != 0) tiles_m = ceil_div(args.slot, tile_m) * args.experts;
  int64_t const ctas = std::min(int64_t{how.sm_count} * facts.ctas_of_sm / cluster, tiles_m * tiles_n) * cluster;
  int32_t const sweep = static_cast<int32_t>(tiles_n);
  Divisor const band(kExpertBand * tiles_n);

  Parameters all;
  if (told.indexed) {
    all.add(b, b_extent);  // in vain
  } else {
    all.add(a.map, a.extent);
  }
  all.add(b, b_extent, d.map, d.extent);
  add_vectors(all);
  add_group_scales(all, args);
  all.add(args.b_scale_stride_expert);
  add_ending(all);
  all.add(args.offsets, args.offset_words, args.expert_map, args.experts, args.weights, args.slot, args.m);
  all.add(args.token_ids, args.id_words, args.m, args.tokens, args.a, args.lda);
  all.add(sweep);
  all.add(band);
  all.add(args.d, args.ldd);
  return launch(kernel, ctas, cluster, how, all.data());
}

}  // namespace gemmill
