#pragma once
// What reduction.h does, in the memory of GPUs: matrices travel as two thin factors, and
// the rest of an array by another sum. All of it is asked for in the order of the link's queue, and
// the host waits for nothing. Factors are summed by rank order, whatever the rest has: so on the
// same kernels it has the bits, and sends the bytes, of the reduction on the CPU.
#include "parallel/reduction/device/reduction.h"
#include "parallel/reduction/powersgd/job.h"

namespace espalier::parallel {

/// For its LowRank: each panel is two calls.
inline constexpr int64_t kDevicePanel = int64_t{1} << 22;

class DeviceLowRankReduction final : public DeviceSum {
 public:
  /// All must outlive it; the stream of `low_rank` is the link's. A job without matrices, or of
  /// `Phases::gather`, is the rest's alone.
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
