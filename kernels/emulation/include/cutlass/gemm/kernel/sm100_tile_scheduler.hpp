// CUTLASS's header of this name, in emulated builds with the `clusterlaunchcontrol` of emulation/cluster_launch.cuh.
#pragma once

#define PersistentTileSchedulerSm100 HardwareTileSchedulerSm100
#include_next <cutlass/gemm/kernel/sm100_tile_scheduler.hpp>
#undef PersistentTileSchedulerSm100

#include "emulation/cluster_launch.cuh"

namespace cutlass::gemm::kernel::detail {

template <class ClusterShape_, uint32_t kStages>
class PersistentTileSchedulerSm100 : public HardwareTileSchedulerSm100<ClusterShape_, kStages> {
  using Base = HardwareTileSchedulerSm100<ClusterShape_, kStages>;

 public:
  using typename Base::CLCResponse;
  using typename Base::Pipeline;
  using typename Base::WorkTileInfo;
  using Base::Base;
  using Base::fetch_next_work;

  // The base's members are private; it tells where responses lie through this function alone.
  CUTLASS_DEVICE void set_data_ptr(CLCResponse* responses) {
    responses_ = responses;
    Base::set_data_ptr(responses);
  }

  template <class ClusterShape>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape cluster) {
    gemmill::emulation::end_if_cancelled();
    return Base::initial_work_tile_info(cluster);
  }

  CUTLASS_DEVICE PipelineState<kStages> advance_to_next_work(Pipeline& pipeline, PipelineState<kStages> state) {
    uint32_t const barrier = pipeline.producer_get_barrier(state);
    pipeline.producer_acquire(state);
    if (cute::elect_one_sync()) gemmill::emulation::try_cancel(cute::cast_smem_ptr_to_uint(responses_ + state.index()), barrier, asked_);
    ++asked_;
    ++state;
    return state;
  }

  template <class TilePipeline, class TilePipelineState>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo, TilePipeline& pipeline, TilePipelineState state) {
    pipeline.consumer_wait(state);
    uint32_t const response = cute::cast_smem_ptr_to_uint(responses_ + state.index());
    uint32_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = gemmill::emulation::shared_word(response + 4 * i);
    pipeline.consumer_release(state);
    return cute::make_tuple(this->swizzle_and_rasterize(word[1], word[2], word[3], word[0] != 0, 0, 0), true);
  }

 private:
  CLCResponse* responses_ = nullptr;
  uint32_t asked_ = 0;
};

}  // namespace cutlass::gemm::kernel::detail
