// The optimizer's state under a new layout: one array after the other, each old one until its new
// one is full.
#include "sparse/store/optimizer_arrays.h"

namespace espalier::sparse {

void OptimizerArrays::relocate(std::span<const Extent> extents, const Survive& survive) {
  Layout next = lay_out(extents);
  const size_t moved_parameters = stream_->arena().dry() ? 0 : places_.size();
  if (any(MasterCopy::halves)) {
    Buffer low = allocate_low(next);
    for (size_t p = 0; p < moved_parameters; ++p) {
      write_low(low, next.places[p], survive(p, read_low(low_, places_[p])));
    }
    low_ = std::move(low);
  }
  if (any(MasterCopy::apart)) {
    Buffer master = allocate_master(next.master);
    for (size_t p = 0; p < moved_parameters; ++p) {
      if (apart(p)) {
        write_master(master, next.places[p], survive(p, read_master(master_, places_[p])));
      }
    }
    master_ = std::move(master);
  }
  for (int which = 0; which < options_.moments; ++which) {
    Moment& old = moments_[static_cast<size_t>(which)];
    Moment moved = allocate_moment(next, which);
    for (size_t p = 0; p < moved_parameters; ++p) {
      write_moment(moved, next.places[p], which, survive(p, read_moment(old, places_[p], which)));
    }
    old = std::move(moved);
  }
  places_ = std::move(next.places);
}

}  // namespace espalier::sparse
