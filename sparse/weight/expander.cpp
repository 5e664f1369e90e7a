#include "sparse/weight/expander.h"

#include <algorithm>
#include <utility>

namespace espalier::sparse {

Tensor Expander::take(const Weight& weight) {
  make_room(weight);
  if (!alternates()) {
    write_(stream_, weight.number, dense(present(), weight));
    return dense(present(), weight);
  }
  bring(weight);
  asked_.push_back(weight);
  look_ahead(weight);
  return dense(present(), weight);
}

/// All that is in use is as large as the largest weight.
void Expander::make_room(const Weight& weight) {
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

/// Into the present slot, where it may be; or in the other one, which is the present one from now
/// on.
void Expander::bring(const Weight& weight) {
  if (present().has(weight)) {
    return;
  }
  present_ = 1 - present_;
  join();
  if (!present().has(weight)) {
    write_(stream_, weight.number, dense(present(), weight));
    present().holds = weight;
    present().full = true;
  }
}

void Expander::join() {
  if (std::exchange(ahead_, false)) {
    stream_.follow(*stream_.side(), rebuilt_);
  }
}

/// The next one that is another; null where nothing is known.
const Expander::Weight* Expander::next_after(const Weight& weight) const {
  if (expected_ == nullptr || asked_.size() > expected_->size() ||
      !std::equal(asked_.begin(), asked_.end(), expected_->begin())) {
    return nullptr;
  }
  const auto after = expected_->begin() + static_cast<std::ptrdiff_t>(asked_.size());
  const auto found =
      std::find_if(after, expected_->end(), [&](const Weight& w) { return !(w == weight); });
  return found == expected_->end() ? nullptr : &*found;
}

void Expander::look_ahead(const Weight& weight) {
  Stream* const side = stream_.side();
  const Weight* const next = side == nullptr || ahead_ ? nullptr : next_after(weight);
  if (next == nullptr || other().has(*next) ||
      other().memory.tensor().count() < next->shape.count()) {
    return;
  }
  side->follow(stream_, stream_.mark());  // the product that read the other slot, and new values
  write_(*side, next->number, dense(other(), *next));
  rebuilt_ = side->mark();
  ahead_ = true;
  other().holds = *next;
  other().full = true;
}

void Expander::begin_pass(int key) {
  require(!in_pass_, "passes do not nest", key);
  in_pass_ = true;
  asked_.clear();
  const auto found = seen_.find(key);
  expected_ = found == seen_.end() ? nullptr : &found->second;
  key_ = key;
}

void Expander::end_pass() {
  if (asked_ != seen_[key_]) {
    seen_[key_] = asked_;
  }
  for (Slot& slot : slots_) {
    slot.full = false;
  }
  expected_ = nullptr;
  in_pass_ = false;
  join();
}

}  // namespace espalier::sparse
