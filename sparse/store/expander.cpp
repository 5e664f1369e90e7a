#include "sparse/store/expander.h"

#include <algorithm>
#include <utility>

namespace espalier::sparse {

Tensor Expander::take(const Weight& weight) {
  reserve(weight);
  if (!alternates()) {
    write_(stream_, weight.number, dense(current(), weight));
    return dense(current(), weight);
  }
  make_current(weight);
  taken_.push_back(weight);
  prefetch(weight);
  return dense(current(), weight);
}

/// Every slot in use is as large as the largest weight.
void Expander::reserve(const Weight& weight) {
  for (Slot& slot : slots_) {
    const bool used = &slot == &slots_[0] || slot.memory.tensor() || alternates();
    if (used && (!slot.memory.tensor() || slot.memory.tensor().count() < weight.shape.count())) {
      ++grown_;
      slot.memory.release();
      slot.memory = stream_.arena().allocate(Memory::scratch, "expanded weight of one layer",
                                             dtype_, Shape{weight.shape.count()});
      slot.full = false;
    }
  }
}

/// If the current slot does not hold the weight, the other one becomes current and gets it.
void Expander::make_current(const Weight& weight) {
  if (current().has(weight)) {
    return;
  }
  current_ = 1 - current_;
  join();
  if (!current().has(weight)) {
    write_(stream_, weight.number, dense(current(), weight));
    current().holds = weight;
    current().full = true;
  }
}

void Expander::join() {
  if (std::exchange(prefetched_, false)) {
    stream_.follow(*stream_.side(), rebuilt_);
  }
}

/// The next different weight of the recorded pass; null if this pass has no record or deviates.
const Expander::Weight* Expander::next_after(const Weight& weight) const {
  if (expected_ == nullptr || taken_.size() > expected_->size() ||
      !std::equal(taken_.begin(), taken_.end(), expected_->begin())) {
    return nullptr;
  }
  const auto after = expected_->begin() + static_cast<std::ptrdiff_t>(taken_.size());
  const auto found =
      std::find_if(after, expected_->end(), [&](const Weight& w) { return !(w == weight); });
  return found == expected_->end() ? nullptr : &*found;
}

void Expander::prefetch(const Weight& weight) {
  Stream* const side = stream_.side();
  const Weight* const next = side == nullptr || prefetched_ ? nullptr : next_after(weight);
  if (next == nullptr || other().has(*next) ||
      other().memory.tensor().count() < next->shape.count()) {
    return;
  }
  side->follow(stream_, stream_.mark());  // the product that read the other slot, and new values
  write_(*side, next->number, dense(other(), *next));
  rebuilt_ = side->mark();
  prefetched_ = true;
  other().holds = *next;
  other().full = true;
}

void Expander::begin_pass(int key) {
  require(!in_pass_, "passes do not nest", key);
  in_pass_ = true;
  taken_.clear();
  const auto found = seen_.find(key);
  expected_ = found == seen_.end() ? nullptr : &found->second;
  key_ = key;
}

void Expander::end_pass() {
  if (taken_ != seen_[key_]) {
    seen_[key_] = taken_;
  }
  for (Slot& slot : slots_) {
    slot.full = false;
  }
  expected_ = nullptr;
  in_pass_ = false;
  join();
}

}  // namespace espalier::sparse
