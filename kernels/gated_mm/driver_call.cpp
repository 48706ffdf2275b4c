// The parameters of generator/gemmill/families/gated_mm/dsl, gated_mm.py and expert_mm.py, in the order of their kernels'.
#include "gated_mm/driver_call.h"

namespace gemmill {

int32_t launch_gemm(gemmill_driver_kernel& kernel, GatedFacts const& told, gemmill_gated_mm_args const& args, gemmill_launch const& how) {
  void* const none = nullptr;
  int32_t const groups = args.n / (2 * told.result_group);
  int64_t const columns = args.n / 2;
  int32_t const rows_of_a = told.by_expert ? args.tokens : args.m;
  auto const add_vectors = [&](Parameters& all) {
    all.add(args.a_scales, args.b_scales, none, none, none, rows_of_a, args.n, args.k, args.a_scale_per_row, args.b_scale_per_column);
    if (told.by_expert) all.add(args.b_scale_stride_expert);
  };
  auto const add_ending = [&](Parameters& all) {
    all.add(args.static_scale, args.out_scales, args.out_scale_stride_m, args.out_scale_stride_g, groups, args.alpha, args.limit, args.beta);
  };
  if (told.by_expert) return launch_experts(kernel, told.expert, args, how, columns, add_vectors, add_ending);

  GemmFacts const& facts = told.expert.gemm;
  bool const swap = facts.swap_ab;
  int64_t const size_x = swap ? args.n : args.m, size_y = swap ? args.m : args.n;
  Operand x, y, d;
  int32_t error = x.make(facts, swap ? args.b : args.a, size_x, args.k, swap ? args.ldb : args.lda, facts.tile_x / facts.cluster_y);
  if (error == 0) error = y.make(facts, swap ? args.a : args.b, size_y, args.k, swap ? args.lda : args.ldb, facts.tile_y / facts.cluster_x);
  d.extent = {args.m, static_cast<int32_t>(columns)};
  if (error == 0) error = make_map(d.map, {args.d, args.m, columns, args.ldd, told.expert.store_rows, facts.store_columns, facts.result});
  if (error != 0) return error;

  int64_t const tiles_x = ceil_div(size_x, int64_t{facts.tile_x} * facts.cluster_x);
  int64_t const tiles_y = ceil_div(size_y, int64_t{facts.tile_y} * facts.cluster_y);
  int32_t const cluster = facts.cluster_x * facts.cluster_y;
  int64_t const ctas = std::min(int64_t{how.sm_count} * facts.ctas_of_sm / cluster, tiles_x * tiles_y) * cluster;
  Walk const walk(tiles_x, tiles_y, 0, 1);

  Parameters all;
  all.add(x.map, x.extent, y.map, y.extent, d.map, d.extent);
  add_vectors(all);
  if (told.grouped) add_group_scales(all, args);
  add_ending(all);
  add_walk(all, walk);
  all.add(how.constant_weights);
  return launch(kernel, ctas, cluster, how, all.data());
}

}  // namespace gemmill
