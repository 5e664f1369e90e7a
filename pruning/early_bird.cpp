#include "pruning/early_bird.h"

#include <algorithm>
#include <bit>

#include "pruning/registry.h"
#include "pruning/selection.h"
#include "src/core/error.h"

namespace espalier::pruning {
namespace {

void check_config(const io::PruningConfig& config) {
  check(config.to_step > 0,
        "pruning.method = \"early-bird\" needs the step at which it prunes at the latest; set "
        "pruning.to_step, for example to half of train.steps");
  check(config.at_step < 0 && config.from_step < 0,
        "pruning.method = \"early-bird\" finds its step by itself, between pruning.every and "
        "pruning.to_step; leave out pruning.at_step and from_step");
  check(interval_of(config) * (kComparedMasks + 1) < config.to_step,
        "pruning.method = \"early-bird\" compares {} masks, {} steps apart, which takes more steps "
        "than pruning.to_step = {}; set a smaller pruning.every or a later pruning.to_step",
        kComparedMasks + 1, interval_of(config), config.to_step);
}

}  // namespace

bool check_at(const io::PruningConfig& config, int64_t step) {
  return step > 0 && step < config.to_step && step % interval_of(config) == 0;
}

int64_t checks_before(const io::PruningConfig& config, int64_t step) {
  return step < 1 ? 0 : (std::min(step, config.to_step) - 1) / interval_of(config);
}

MaskHistory::Counts MaskHistory::compare(std::span<const sparse::Mask> masks) const {
  Counts counts;
  for (size_t p = 0; p < masks_.size(); ++p) {
    for (size_t slot = 0; slot < kComparedMasks && has(p); ++slot) {
      const auto now = masks[p].words();
      const auto before = masks_[p][slot].words();
      for (size_t w = 0; w < std::min(now.size(), before.size()); ++w) {
        counts.different[slot] += std::popcount(now[w] ^ before[w]);
        counts.sizes[slot] += std::popcount(now[w]) + std::popcount(before[w]);
      }
    }
  }
  return counts;
}

double MaskHistory::largest_distance(const Counts& counts) {
  double largest = 0;
  for (size_t slot = 0; slot < kComparedMasks; ++slot) {
    const double size = std::max<double>(static_cast<double>(counts.sizes[slot]), 1);
    largest = std::max(largest, static_cast<double>(counts.different[slot]) / size);
  }
  return largest;
}

void MaskHistory::add(std::span<const sparse::Mask> masks, const std::vector<bool>& prunable) {
  const auto slot = static_cast<size_t>(checks_ % kComparedMasks);
  for (size_t p = 0; p < masks_.size(); ++p) {
    if (prunable[p]) {
      // Slots that are not filled yet have the first mask, so that all have one size.
      const auto copies =
          checks_ == 0 ? std::span(masks_[p]) : std::span(masks_[p]).subspan(slot, 1);
      std::ranges::fill(copies, masks[p]);
    }
  }
  ++checks_;
}

std::vector<float> MaskHistory::numbers(size_t parameter, const sparse::Mask& kept) const {
  std::vector<float> numbers;
  numbers.reserve(static_cast<size_t>(kept.kept()));
  sparse::for_each_one(kept.words(), [&](int64_t position) {
    unsigned bits = 0;
    for (size_t slot = 0; slot < kComparedMasks; ++slot) {
      bits |= masks_[parameter][slot][position] ? 1U << slot : 0U;
    }
    numbers.push_back(static_cast<float>(bits));
  });
  return numbers;
}

void MaskHistory::restore(size_t parameter, const sparse::Mask& kept,
                          std::span<const float> numbers) {
  masks_[parameter].fill(sparse::Mask(kept.size(), false));
  size_t next = 0;
  sparse::for_each_one(kept.words(), [&](int64_t position) {
    const float number = numbers[next++];
    check(number >= 0 && number < static_cast<float>(1U << kComparedMasks),
          "the saved masks of method \"early-bird\" hold {}: the checkpoint is damaged, use "
          "another one",
          number);
    for (size_t slot = 0; slot < kComparedMasks; ++slot) {
      masks_[parameter][slot].set(position, ((static_cast<unsigned>(number) >> slot) & 1U) != 0);
    }
  });
}

extern const Method kEarlyBird{
    .name = "early-bird",
    .help = "the largest |value|, once these masks no longer change",
    .run = keep_largest_magnitudes,
    .every = 100,
    .check_config = check_config,
    .kind = OneShot{.waits = true},
};

}  // namespace espalier::pruning
