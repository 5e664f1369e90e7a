#include "parallel/reduction/host_copy.h"

namespace espalier::parallel {

void HostCopy::begin(const Tensor& flat) {
  flat_ = host_ = flat;
  fetched_ = arrived_ = 0;
  in_flight_.clear();
  if (!copies()) {
    return;
  }
  if (memory_.bytes() < flat.bytes()) {
    memory_.release();
    memory_ = stream_->arena().host().allocate(Memory::communication, "copy for messages",
                                               flat.dtype, flat.shape);
  }
  host_ = memory_.tensor().as(flat.dtype, flat.shape);
}

void HostCopy::fetch(int64_t end) {
  if (!copies()) {
    arrived_ = end;
  } else if (end > fetched_) {
    stream_->copy(flat_.elements(fetched_, end - fetched_),
                  host_.elements(fetched_, end - fetched_));
    in_flight_.push_back({.end = end, .mark = stream_->mark()});
    fetched_ = end;
  }
}

int64_t HostCopy::arrived() {
  while (!in_flight_.empty() && stream_->passed(in_flight_.front().mark)) {
    arrived_ = in_flight_.front().end;
    in_flight_.pop_front();
  }
  return arrived_;
}

void HostCopy::fetch_all() {
  fetch(flat_ ? flat_.count() : 0);
  if (!in_flight_.empty()) {
    stream_->wait(in_flight_.back().mark);
  }
  arrived();
}

void HostCopy::write_back() {
  if (copies()) {
    stream_->copy(host_, flat_);
  }
}

}  // namespace espalier::parallel
