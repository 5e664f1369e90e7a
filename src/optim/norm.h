#pragma once
// The norm of the gradient, and what clipping makes of it (kernels.h, ClipArgs). A block of
// kernels::kSumBlock kept elements, counted from its parameter's begin, is summed in double, and
// the blocks exactly: parts of the gradient may be summed by different ranks, in any order, and the
// norm has the bits of one that is summed whole.
//
// Kernels make a factor of it for the kernels of the update, and the host hears of both later. It
// waits for the digits (568 bytes) only where it has to add those of other ranks itself.
//
// A gradient that is not finite has a factor that changes nothing, and so has every one after it,
// until the host has been told: what was asked for meanwhile finds the state that it would find if
// nobody had asked.
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

  /// Gradients are this many times too large from now on: norm and factor are those of true ones.
  void set_scale(double scale) { scale_ = scale; }

  /// What adds up what all ranks have that hold other parts of the gradient: the host, words of
  /// ExactSum; or devices, counts, in the order of the queue. One of them; none: no rank has others.
  struct Sum {
    std::function<void(std::span<double> words)> on_host{};
    std::function<void(const Tensor& counts)> on_device{};
    explicit operator bool() const { return on_host || on_device; }
  };
  /// Of the gradients in `range` that this rank owns (of a store without sharding those are all but
  /// the borrowed ones), and of those that `sum` adds: kernels asked for from now on find the
  /// factor. False: the host had to look, and knows that nothing may change.
  bool take(const sparse::Store& store, const sparse::ParameterRange& range, const Sum& sum);
  Tensor factor() const { return clip_.tensor().elements(1, 1); }

  /// Norm and factor, as they are now, come to the host. To be told once each, in any order.
  Staging::Arrival fetch() { return staging_.fetch(clip_.tensor()); }
  kernels::Clip told(const Staging::Arrival& arrival);

 private:
  Stream& stream_;
  const kernels::Kernels& kernels_;
  double most_, scale_ = 1;
  Staging staging_;
  Buffer counts_, clip_;  ///< clip_: fp32 [2], norm and factor
};

}  // namespace espalier::optim
