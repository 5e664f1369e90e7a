#include "src/train/exchange/host_copy.h"

namespace espalier::train {

void HostCopy::follow(const Tensor& flat) {
  flat_ = host_ = flat;
  fetched_ = arrived_ = 0;
  on_their_way_.clear();
  if (!copies()) {
    return;
  }
  if (memory_.bytes() < flat.bytes()) {
    memory_.release();
    memory_ = stream_.arena().host().allocate(Memory::communication, "copy for messages",
                                              flat.dtype, flat.shape);
  }
  host_ = memory_.tensor().as(flat.dtype, flat.shape);
}

void HostCopy::fetch(int64_t end) {
  if (!copies()) {
    arrived_ = end;
  } else if (end > fetched_) {
    stream_.copy(flat_.elements(fetched_, end - fetched_),
                 host_.elements(fetched_, end - fetched_));
    on_their_way_.push_back({.end = end, .mark = stream_.mark()});
    fetched_ = end;
  }
}

int64_t HostCopy::arrived() {
  while (!on_their_way_.empty() && stream_.passed(on_their_way_.front().mark)) {
    arrived_ = on_their_way_.front().end;
    on_their_way_.pop_front();
  }
  return arrived_;
}

void HostCopy::fetch_all() {
  fetch(flat_ ? flat_.count() : 0);
  if (!on_their_way_.empty()) {
    stream_.wait(on_their_way_.back().mark);
  }
  arrived();
}

void HostCopy::give_back() {
  if (copies()) {
    stream_.copy(host_, flat_);
  }
}

}  // namespace espalier::train
