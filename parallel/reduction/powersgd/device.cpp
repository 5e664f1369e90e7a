#include "parallel/reduction/powersgd/device.h"

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

void DeviceLowRankReduction::run(const SliceJob& job, std::string_view doing) {
  if (link_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  link_.follow_compute();
  if (job.phases == Phases::gather || !job_.begin(job)) {
    rest_.run(job, doing);
    return;
  }
  job_.project();
  factors_.run({.data = job_.p()}, doing);
  job_.project_back();
  factors_.run({.data = job_.q()}, doing);
  job_.keep_rest();
  job_.finish();
  if (const auto rest = job_.pack_rest()) {
    rest_.run(*rest, doing);
    job_.unpack_rest();
  }
}

}  // namespace espalier::parallel
