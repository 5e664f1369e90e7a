#pragma once
// The loss scale: backward starts from loss * scale, and the update divides gradients by it,
// because fp16 rounds values below 6e-8 to zero. Powers of two change no bit of values within
// range.
//
// train.loss_scale sets a fixed one. fp16 has a dynamic one by default: from 2^16 on, halved by
// each step with a non-finite gradient norm, which is skipped, and doubled after 2,000 other steps
// in a row. All ranks decide alike, by the norm of the whole gradient. Source: Micikevicius et al.,
// "Mixed precision training", ICLR 2018, sections 3.2 and 4.
#include <cstdint>
#include <string>

#include "io/config/config.h"

namespace espalier::train {

class LossScale {
 public:
  explicit LossScale(const io::TrainConfig& config);

  double value() const { return value_; }
  /// Whether it is dynamic: steps may be skipped.
  bool dynamic() const { return dynamic_; }
  /// Call after each step; `finite`: whether its gradient norm was. Returns false if it was not and
  /// the scale is fixed or already the smallest: the run must then stop.
  bool update(bool finite);
  /// Steps skipped since the run began; the optimizer does not count them.
  int64_t skipped() const { return skipped_; }

  /// For checkpoints; empty for a fixed scale.
  std::string state() const;
  /// Throws Failure if `state` did not return this text.
  void restore(const std::string& state);

 private:
  bool dynamic_;
  double value_;
  int64_t good_ = 0;  ///< steps in a row at this scale
  int64_t skipped_ = 0;
};

}  // namespace espalier::train
