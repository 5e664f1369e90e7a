#pragma once
// PowerSGD (reduction.h) in GPU memory: matrices are sent as two thin factors, and another
// reduction sums the rest of the array. Calls enqueue work in the order of the link's queue; the
// host does not wait. Factors are summed in rank order, whatever the rest uses. So with the same
// kernels the bits and sent bytes equal those of the reduction on the CPU.
#include "parallel/reduction/device/reduction.h"
#include "parallel/reduction/powersgd/job.h"

namespace espalier::parallel {

/// Panel size of its LowRank: each panel is two kernel launches.
inline constexpr int64_t kDevicePanel = int64_t{1} << 22;

class DeviceLowRankReduction final : public DeviceSum {
 public:
  /// All must outlive it; the stream of `low_rank` is the link's. `rest` alone runs a job without
  /// matrices or of `Phases::gather`.
  DeviceLowRankReduction(DeviceLink& link, LowRank& low_rank, DeviceSum& rest)
      : link_(link),
        job_(low_rank),
        factors_(link, low_rank.kernels(), DeviceReduction::Order::by_rank),
        rest_(rest) {}

  using DeviceSum::run;
  void run(const SliceJob& job, std::string_view doing) override;

 private:
  DeviceLink& link_;
  LowRankJob job_;
  DeviceReduction factors_;
  DeviceSum& rest_;
};

}  // namespace espalier::parallel
