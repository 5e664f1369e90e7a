#include "tests/simt/async_copies.h"

#include <algorithm>
#include <cstring>

namespace espalier::simt {

void AsyncCopies::copy(void* to, const void* from, int bytes) {
  std::memset(to, 0xff, 16);
  under_way_.push_back({to, from, bytes, committed_});
}

void AsyncCopies::wait(int later) {
  const auto end = std::ranges::find_if(
      under_way_, [&](const Copy& copy) { return copy.group >= committed_ - later; });
  for (auto copy = under_way_.begin(); copy != end; ++copy) {
    const auto bytes = static_cast<size_t>(copy->bytes);
    if (bytes > 0) {
      std::memcpy(copy->to, copy->from, bytes);
    }
    std::memset(static_cast<char*>(copy->to) + bytes, 0, 16 - bytes);
  }
  under_way_.erase(under_way_.begin(), end);
}

void AsyncCopies::forget() {
  under_way_.clear();
  committed_ = 0;
}

}  // namespace espalier::simt
