#pragma once
// What the gradient of a loss is multiplied with before backward, and every gradient divided by
// before the update: numbers of fp16 below 6e-8 would be rounded to nothing. Powers of two change
// no bit of what does not leave the range of a type.
//
// A fixed one is train.loss_scale. fp16 has a moving one by default: from 2^16 on, halved by each
// step whose gradient is not finite, which is left out, and doubled after 2,000 others in a row.
// All ranks decide alike, by the norm of the whole gradient. Source: Micikevicius and others,
// "Mixed precision training", ICLR 2018, sections 3.2 and 4.
#include <cstdint>
#include <string>

#include "io/config/config.h"

namespace espalier::train {

class LossScale {
 public:
  explicit LossScale(const io::TrainConfig& config);

  double value() const { return value_; }
  /// Whether steps may be left out.
  bool moving() const { return moving_; }
  /// After a step: whether its gradient, computed with `value`, was finite. False: the step cannot
  /// be left out; something other than the scale is wrong.
  bool take(bool finite);
  /// Steps left out since the run began: the optimizer's own count does not know them.
  int64_t left_out() const { return left_out_; }

  /// For checkpoints; empty where there is nothing to remember.
  std::string state() const;
  /// Throws Failure when the text is not what `state` returned.
  void restore(const std::string& state);

 private:
  bool moving_;
  double value_;
  int64_t good_ = 0;  ///< steps in a row at this scale
  int64_t left_out_ = 0;
};

}  // namespace espalier::train
