#pragma once
// The host's side of a flat array, for messages: without a device the array itself. On a device it
// is pinned memory that follows the array, a prefix at a time, while kernels go on; what messages
// have made of it then goes back. As large as the array.
#include <deque>

#include "src/core/stream.h"

namespace espalier::train {

class HostCopy {
 public:
  /// `stream` must outlive it. `sends`: false where there is nobody to send to, and nothing is
  /// copied.
  HostCopy(Stream& stream, bool sends) : stream_(stream), sends_(sends) {}

  /// From now on it follows `flat`.
  void follow(const Tensor& flat);
  const Tensor& host() const { return host_; }
  /// Elements [0, end) have been asked of kernels: they come when that is done. `end` never
  /// decreases.
  void fetch(int64_t end);
  /// Elements that have come, without waiting.
  int64_t arrived();
  /// All of them, with waiting.
  void fetch_all();
  /// Back to where kernels read it.
  void give_back();

 private:
  bool copies() const { return sends_ && flat_.on_device; }

  Stream& stream_;
  bool sends_;
  Tensor flat_, host_;
  Buffer memory_;
  int64_t fetched_ = 0, arrived_ = 0;
  struct OnItsWay {
    int64_t end = 0;
    Mark mark = 0;
  };
  std::deque<OnItsWay> on_their_way_;
};

}  // namespace espalier::train
