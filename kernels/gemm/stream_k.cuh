// CUTLASS 4.2's stream-K scheduler does not compile where programmatic dependent launch is on: its `is_last_tile` is
// const and hands a member to a function that would change it. This one answers without that call.
#pragma once

#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace gemmill {

struct StreamKScheduler {};

template <class TileShape, class ClusterShape>
class StreamKTiles : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK<TileShape, ClusterShape> {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK<TileShape, ClusterShape>;

 public:
  using Base::Base;
  StreamKTiles() = default;

  // Only a hint: dependents may be launched early, they wait for this grid's memory in any case.
  CUTLASS_DEVICE bool is_last_tile(typename Base::WorkTileInfo const&, uint32_t = 1) const { return true; }
};

}  // namespace gemmill

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class ClusterShape, uint32_t Stages>
struct TileSchedulerSelector<gemmill::StreamKScheduler, arch::Sm90, TileShape, ClusterShape, Stages> {
  using Scheduler = gemmill::StreamKTiles<TileShape, ClusterShape>;
};

}  // namespace cutlass::gemm::kernel::detail
