// The parameters of generator/gemmill/families/scaled_mm/dsl/scaled_mm.py, in the order of its kernel's.
#include "scaled_mm/driver_call.h"

#include "core/cutedsl.h"

namespace gemmill {
namespace {

// The inputs of a user's epilogue: of each kind the first so many of four.
void add_own(Parameters& all, ScaledMmFacts const& told, gemmill_scaled_mm_args const& args) {
  auto const add = [&](int32_t count, auto const&... of_kind) {
    int32_t i = 0;
    ((i++ < count ? all.add(of_kind) : void()), ...);
  };
  add(told.own_rows, args.row0, args.row1, args.row2, args.row3);
  add(told.own_columns, args.column0, args.column1, args.column2, args.column3);
  add(told.own_rows, args.row0_step, args.row1_step, args.row2_step, args.row3_step);
  add(told.own_columns, args.column0_step, args.column1_step, args.column2_step, args.column3_step);
  add(told.own_scalars, args.scalar0, args.scalar1, args.scalar2, args.scalar3);
  all.add(args.m, args.n, args.k);
}

}  // namespace

int32_t launch_gemm(gemmill_driver_kernel& kernel, ScaledMmFacts const& told, gemmill_scaled_mm_args const& args, gemmill_launch const& how) {
  GemmFacts const& facts = told.gemm;
  bool const own = told.own_rows >= 0;
  bool const swap = facts.swap_ab;
  int64_t const size_x = swap ? args.n : args.m, size_y = swap ? args.m : args.n;
  void const* const x_at = swap ? args.b : args.a;
  void const* const y_at = swap ? args.a : args.b;
  int64_t const ldx = swap ? args.ldb : args.lda, ldy = swap ? args.lda : args.ldb;

  Operand x, y, box, d;
  int32_t error = x.make(facts, x_at, size_x, args.k, ldx, facts.tile_x / facts.cluster_y);
  if (error == 0) error = y.make(facts, y_at, size_y, args.k, ldy, facts.tile_y / facts.cluster_x);
  if (error == 0 && facts.box_rows) error = box.make(facts, y_at, size_y, args.k, ldy, facts.box_rows);
  // D is [m, n] in memory, whichever operand X is.
  d.extent = {static_cast<int32_t>(size_x), static_cast<int32_t>(size_y)};
  int32_t const rows = swap ? facts.store_columns : kSlab, columns = swap ? kSlab : facts.store_columns;
  if (error == 0) error = make_map(d.map, {args.d, args.m, args.n, args.ldd, rows, columns, facts.result});
  if (error != 0) return error;

  int64_t const tiles_x = ceil_div(size_x, int64_t{facts.tile_x} * facts.cluster_x);
  int64_t const tiles_y = ceil_div(size_y, int64_t{facts.tile_y} * facts.cluster_y);
  int32_t cluster = facts.cluster_x * facts.cluster_y;
  int64_t ctas = std::min(int64_t{how.sm_count} * facts.ctas_of_sm / cluster, tiles_x * tiles_y) * cluster, slices = cluster;
  if (facts.split_k) {
    cluster = args.splits;
    slices = cluster;
    ctas = tiles_x * tiles_y * cluster;
  } else if (facts.split_k_parallel) {
    slices = std::max<int64_t>(1, std::min<int64_t>(args.splits, ceil_div(args.k, facts.slice_step)));  // none is empty
    ctas = tiles_x * tiles_y * slices * cluster;
  } else if (facts.restarts) {
    slices = args.splits;
  }
  Walk const walk(tiles_x, tiles_y, args.raster_order, args.swizzle);
  Divisor const by_slices(slices);
  int64_t const ticket = facts.split_k_parallel ? gemmill_ticket() : 0;

  Parameters all;
  all.add(x.map, x.extent, y.map, y.extent);
  if (facts.box_rows) all.add(box.map, box.extent);
  all.add(d.map, d.extent);
  void* const none = nullptr;
  int64_t const zero = 0;
  if (own) {
    add_own(all, told, args);
    all.add(none, none, zero, zero, zero, zero);
  } else {
    all.add(args.a_scales, args.b_scales, args.bias, args.azp_adj, args.azp, args.m, args.n, args.k, args.a_scale_per_row, args.b_scale_per_column);
    add_group_scales(all, args);
  }
  add_walk(all, walk);
  all.add(how.constant_weights, args.d, args.ldd);
  all.add(by_slices);
  all.add(own ? none : how.workspace, ticket);
  return launch(kernel, ctas, cluster, how, all.data());
}

}  // namespace gemmill
