#include "tests/simt/warp.h"

#include <fmt/format.h>

namespace espalier::simt {

/// The result of `lane` after all of its lanes have arrived.
uint64_t WarpMeeting::value_for(int lane) {
  const LaneCall& call = calls_[lane];
  const auto argument = static_cast<int>(call.argument);
  const int first = lane / call.width * call.width;
  int source = lane;
  uint64_t set = 0;
  switch (call.op) {
    case WarpOp::sync:
    case WarpOp::together:
      return 0;
    case WarpOp::ballot:
    case WarpOp::match:
      for (int i = 0; i < 32; ++i) {
        const bool named = (call.mask >> i & 1U) != 0;
        const uint64_t wanted = call.op == WarpOp::ballot ? 1 : call.value;
        set |= named && calls_[i].value == wanted ? uint64_t{1} << i : 0;
      }
      return set;
    case WarpOp::shuffle:
      source = first + ((argument % call.width + call.width) % call.width);
      break;
    case WarpOp::up:
      source = lane - argument < first ? lane : lane - argument;
      break;
    case WarpOp::down:
      source = lane + argument >= first + call.width ? lane : lane + argument;
      break;
    case WarpOp::exchange:
      // Outside its own group a lane may read only lower groups.
      source = (lane ^ argument) >= first + call.width ? lane : lane ^ argument;
      break;
  }
  if ((call.mask >> source & 1U) == 0) {
    wrong_ =
        fmt::format("shuffles with lane {}, which the mask {:#x} does not name", source, call.mask);
    return 0;
  }
  return calls_[source].value;
}

void WarpMeeting::meet(unsigned mask) {
  const LaneCall& first = calls_[__builtin_ctz(mask)];
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) == 0) {
      continue;
    }
    if (calls_[i].mask != mask || calls_[i].op != first.op || calls_[i].work != first.work) {
      wrong_ = fmt::format(
          "meets lane {} of its warp in another operation or with mask {:#x}, not {:#x}", i,
          calls_[i].mask, mask);
      return;
    }
    results_[i] = value_for(i);
  }
  if (first.op == WarpOp::together) {
    work_together();
  }
  arrived_ &= ~mask;
}

void WarpMeeting::work_together() {
  void* lanes[32];
  for (int i = 0; i < 32; ++i) {
    lanes[i] = calls_[i].mine;
  }
  wrong_ = calls_[0].work(lanes);
}

unsigned WarpMeeting::arrive(int lane, const LaneCall& call) {
  calls_[lane] = call;
  arrived_ |= 1U << lane;
  if ((call.mask >> lane & 1U) == 0) {
    wrong_ = fmt::format("is not named by its own mask {:#x}", call.mask);
  } else if ((call.mask & ~present_) != 0) {
    wrong_ = fmt::format("names lanes {:#x} that left or never were", call.mask & ~present_);
  }
  if (!wrong_.empty() || (call.mask & ~arrived_) != 0) {
    return 0;
  }
  meet(call.mask);
  return call.mask;
}

void WarpMeeting::leave(int lane) {
  present_ &= ~(1U << lane);
  for (int i = 0; i < 32; ++i) {
    const bool waits = (arrived_ >> i & 1U) != 0;
    if (waits && (calls_[i].mask >> lane & 1U) != 0) {
      wrong_ = fmt::format("leaves while lane {} waits for it in a shuffle, vote or __syncwarp", i);
      return;
    }
  }
}

}  // namespace espalier::simt
