#pragma once
// Norm of the gradient and clipping factor (kernels::ClipArgs). Blocks of kernels::kSumBlock kept
// elements, counted from the begin of a parameter, are summed in double, and the block sums
// exactly. So the norm has the same bits for any split of the gradient over ranks and any order of
// summation.
//
// Norm and factor are computed by kernels and stay in their memory; `fetch` copies them to the
// host. The host waits for the exact sum (568 bytes) only if it adds the sums of other ranks
// itself.
//
// A non-finite norm sets the factor to NaN, with which an update changes nothing. The factor stays
// NaN for all updates that are enqueued before `result` reports it, so none of them changes weights
// after a failed one.
#include <functional>
#include <span>

#include "sparse/store/store.h"
#include "src/core/exact_sum.h"
#include "src/core/staging.h"
#include "src/kernels/rules/clip.h"

namespace espalier::optim {

class GradientNorm {
 public:
  /// `clip`: the largest norm that is not clipped; 0: none is.
  GradientNorm(Stream& stream, const kernels::Kernels& kernels, double clip);

  /// Later gradients are multiplied by `scale`; norm and factor undo it.
  void set_scale(double scale) { scale_ = scale; }

  /// Adds the exact sums of all ranks that hold parts of the gradient: on the host (words of
  /// ExactSum) or on devices (counts, in queue order). At most one is set; none: this rank has all.
  struct Sum {
    std::function<void(std::span<double> words)> on_host{};
    std::function<void(const Tensor& counts)> on_device{};
    explicit operator bool() const { return on_host || on_device; }
  };
  /// Enqueues the norm of the gradients in `range` that this rank owns (without sharding: all but
  /// borrowed ones), moving averages excepted, plus those that `sum` adds. Kernels enqueued later
  /// read `factor`. False: the host already knows that the update changes nothing.
  bool enqueue(const sparse::Store& store, const sparse::ParameterRange& range, const Sum& sum);
  Tensor factor() const { return clip_.tensor().elements(1, 1); }

  /// Copies norm and factor to the host; `result` waits for the copy. Once for each, in any order.
  Staging::Arrival fetch() { return staging_.fetch(clip_.tensor()); }
  kernels::Clip result(const Staging::Arrival& arrival);

 private:
  Stream& stream_;
  const kernels::Kernels& kernels_;
  double most_, scale_ = 1;
  Staging staging_;
  Buffer counts_, clip_;  ///< clip_: fp32 [2], norm and factor
};

}  // namespace espalier::optim
