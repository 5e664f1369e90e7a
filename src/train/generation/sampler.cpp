#include "src/train/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::train {
namespace {

/// A token before another in the order of likelihood.
struct MoreLikely {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

/// Places the `count` most likely tokens first, in order; the first `sorted` are in place.
void sort_first(std::vector<int32_t>& order, size_t sorted, size_t count,
                const MoreLikely& before) {
  const auto at = [&order](size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
  std::partial_sort(at(sorted), at(count), order.end(), before);
}

/// exp((logit - top) / temperature)
class Weights {
 public:
  Weights(std::span<const float> logits, double top, double temperature)
      : logits_(logits), top_(top), inverse_(1 / temperature) {}
  double operator()(int32_t token) const {
    return std::exp((static_cast<double>(logits_[static_cast<size_t>(token)]) - top_) * inverse_);
  }

 private:
  std::span<const float> logits_;
  double top_, inverse_;
};

/// Draws among tokens by their weights.
int32_t draw_among(std::span<const int32_t> tokens, const Weights& weight, double uniform) {
  std::vector<double> sums;
  sums.reserve(tokens.size());
  double sum = 0;
  for (const int32_t token : tokens) {
    sums.push_back(sum += weight(token));
  }
  const auto found = std::ranges::upper_bound(sums, uniform * sum);
  return tokens[std::min(static_cast<size_t>(found - sums.begin()), tokens.size() - 1)];
}

/// Bytes at the end of a text that begin a UTF-8 character without ending it.
size_t incomplete_bytes(const std::string& text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) {
      return 0;
    }
    if (byte >= 0xc0) {  // the first byte of a character
      const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return length > back ? back : 0;
    }
  }
  return 0;
}

/// Bytes at the end of `text`, from `begin` on, that begin `stop` without ending it.
size_t begun_stop(const std::string& text, size_t begin, const std::string& stop) {
  const size_t most = std::min(stop.size() - 1, text.size() - begin);
  for (size_t n = most; n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
      return n;
    }
  }
  return 0;
}

}  // namespace

int32_t draw(std::span<const float> logits, const Sampling& how, double uniform) {
  require(!logits.empty() && how.temperature >= 0, "logits and a temperature", logits.size(),
          how.temperature);
  const auto most_likely = std::ranges::max_element(logits);  // of equal ones the first
  constexpr double kCold = 1e-6;                              // below, weights are 0 and 1
  if (how.temperature < kCold || how.top_k == 1) {
    return static_cast<int32_t>(most_likely - logits.begin());
  }
  const Weights weight(logits, static_cast<double>(*most_likely), how.temperature);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const MoreLikely before{logits};
  const size_t kept =
      how.top_k == 0 ? order.size() : std::min(order.size(), static_cast<size_t>(how.top_k));
  if (how.top_p >= 1) {
    if (kept < order.size()) {
      sort_first(order, 0, kept, before);
    }
    return draw_among(std::span(order).first(kept), weight, uniform);
  }
  size_t sorted = 0;
  double total = 0;
  if (kept < order.size()) {
    sort_first(order, 0, kept, before);
    sorted = kept;
  }
  for (const int32_t token : std::span(order).first(kept)) {
    total += weight(token);
  }
  double sum = 0;
  size_t nucleus = 0;
  while (nucleus < kept && (nucleus == 0 || sum < how.top_p * total)) {
    if (nucleus == sorted) {
      const size_t next = std::min(kept, std::max<size_t>(64, 4 * sorted));
      sort_first(order, sorted, next, before);
      sorted = next;
    }
    sum += weight(order[nucleus++]);
  }
  return draw_among(std::span(order).first(nucleus), weight, uniform);
}

SequenceRandom::SequenceRandom(uint64_t seed, std::span<const int32_t> prompt,
                               int64_t equal_before) {
  constexpr uint64_t kSampling = 0x73616d70;  // key of a separate random stream
  key_ = mix(mix(seed, kSampling), static_cast<uint64_t>(equal_before));
  for (const int32_t token : prompt) {
    key_ = mix(key_, static_cast<uint64_t>(token));
  }
}

double SequenceRandom::uniform(int64_t number) const {
  const Philox bits = philox(key_, 0, static_cast<uint64_t>(number));
  const uint64_t joined = uint64_t{bits[1]} << 32 | bits[0];
  return static_cast<double>(joined >> 11) * 0x1.0p-53;
}

bool GrowingText::add(const std::string& piece) {
  require(!ended_, "an ended text does not grow");
  const size_t before = text_.size();
  text_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = before - std::min(before, stop.size() - 1);
    end = std::min(end, text_.find(stop, std::max(from, taken_)));
  }
  if (end != std::string::npos) {
    text_.resize(end);
    ended_ = true;
  }
  return ended_;
}

std::string GrowingText::take(bool all) {
  size_t held = 0;
  if (!ended_ && !all) {
    held = incomplete_bytes(text_);
    for (const std::string& stop : stops_) {
      held = std::max(held, begun_stop(text_, taken_, stop));
    }
  }
  const size_t end = std::max(taken_, text_.size() - std::min(held, text_.size()));
  const std::string part = text_.substr(taken_, end - taken_);
  taken_ = end;
  return part;
}

}  // namespace espalier::train
