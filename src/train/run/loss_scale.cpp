#include "src/train/run/loss_scale.h"

#include <fmt/format.h>

#include <sstream>

#include "src/core/error.h"

namespace espalier::train {
namespace {

constexpr double kFirst = 65536;
constexpr double kMin = 1;
constexpr double kMax = 0x1p40;  // above it, fp32 sums of scaled gradients may overflow
constexpr int64_t kPatience = 2000;

}  // namespace

LossScale::LossScale(const io::TrainConfig& config)
    : dynamic_(config.loss_scale == 0 && config.dtype == "fp16"),
      value_(dynamic_ ? kFirst : (config.loss_scale > 0 ? config.loss_scale : 1)) {}

bool LossScale::update(bool finite) {
  if (!finite && (!dynamic_ || value_ <= kMin)) {
    return false;
  }
  if (!dynamic_) {
    return true;
  }
  if (!finite) {
    value_ /= 2;
    good_ = 0;
    ++skipped_;
  } else if (++good_ == kPatience) {
    value_ = std::min(2 * value_, kMax);
    good_ = 0;
  }
  return true;
}

std::string LossScale::state() const {
  return dynamic_ ? fmt::format("{} {} {}", value_, good_, skipped_) : "";
}

void LossScale::restore(const std::string& state) {
  if (!dynamic_ || state.empty()) {
    return;  // the saved run had no dynamic scale, or this config fixes one
  }
  std::istringstream in(state);
  LossScale read = *this;
  in >> read.value_ >> read.good_ >> read.skipped_;
  check(read.state() == state && read.value_ >= kMin && read.value_ <= kMax && read.good_ >= 0 &&
            read.good_ < kPatience && read.skipped_ >= 0,
        "the checkpoint's loss scale is '{}', not a scale and two counts; the file is damaged, use "
        "another checkpoint",
        state);
  *this = read;
}

}  // namespace espalier::train
