#include "io/run/histogram.h"

#include <algorithm>
#include <bit>

namespace espalier::io {
namespace {

constexpr size_t kMagnitudes = 2048;       // bins of one sign
constexpr size_t kNotFinite = 0xffU << 3;  // the first bin of infinities and NaNs
constexpr size_t kOwnBuckets = 12 * 8;     // bins of one sign that are buckets of their own

/// The bin of a number: the first bits of its fp32 form.
size_t bin_of(uint32_t bits) { return bits >> 20; }

/// The least magnitude of a bin.
double edge(size_t magnitude) {
  return magnitude < kNotFinite ? std::bit_cast<float>(static_cast<uint32_t>(magnitude << 20))
                                : std::numeric_limits<float>::max();
}

}  // namespace

void Histogram::add(const Tensor& numbers) {
  int64_t* const counts = counts_.data();
  int64_t count = 0;  // local: the compiler keeps them in registers
  double sum = sum_;
  double squares = squares_;
  float least = static_cast<float>(min_);
  float most = static_cast<float>(max_);
  with_number(numbers.dtype, [&]<class Number>(Number) {
    for (const Number number : numbers.span<Number>()) {
      const float value = to_float(number);
      const size_t bin = bin_of(std::bit_cast<uint32_t>(value));
      if (bin % kMagnitudes >= kNotFinite) {
        continue;
      }
      ++counts[bin];
      ++count;
      sum += value;
      squares += double{value} * value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
  });
  count_ += count;
  sum_ = sum;
  squares_ = squares;
  min_ = least;
  max_ = most;
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  const auto both = [this](size_t magnitude) {
    return counts_[magnitude] + counts_[kMagnitudes + magnitude];
  };
  size_t end = kNotFinite;  // of the bins with numbers
  while (end > 1 && both(end - 1) == 0) {
    --end;
  }
  const size_t first = end > kOwnBuckets ? end - kOwnBuckets : 1;  // smaller ones share a bucket
  std::vector<Bucket> out;
  const auto add = [&out](double limit, int64_t count) {
    if (count == 0 && (out.empty() || out.back().count == 0)) {
      if (!out.empty()) {
        out.back().limit = limit;
      }
      return;
    }
    out.push_back({limit, count});
  };
  for (size_t magnitude = end; magnitude-- > first;) {
    add(-edge(magnitude), counts_[kMagnitudes + magnitude]);
  }
  int64_t small = 0;
  for (size_t magnitude = 0; magnitude < first; ++magnitude) {
    small += both(magnitude);
  }
  add(edge(first), small);
  for (size_t magnitude = first; magnitude < end; ++magnitude) {
    add(edge(magnitude + 1), counts_[magnitude]);
  }
  if (!out.empty() && out.back().count == 0) {
    out.pop_back();
  }
  return out;
}

}  // namespace espalier::io
