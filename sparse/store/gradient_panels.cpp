#include "sparse/store/gradient_panels.h"

#include <utility>

namespace espalier::sparse {

Tensor GradientPanels::take(DType dtype, const Shape& shape) {
  reserve(shape.count());
  current_ = alternates() ? 1 - current_ : 0;
  Panel& panel = panels_[current_];
  follow(panel);
  return panel.memory.tensor().as(dtype, shape);
}

/// Every panel in use is as large as the largest gradient.
void GradientPanels::reserve(int64_t count) {
  for (Panel& panel : panels_) {
    const bool used = &panel == &panels_[0] || panel.memory.tensor() || alternates();
    if (used && (!panel.memory.tensor() || panel.memory.tensor().count() < count)) {
      ++grown_;
      follow(panel);
      panel.memory.release();
      panel.memory =
          stream_.arena().allocate(Memory::scratch, "dense gradient", DType::fp32, Shape{count});
    }
  }
}

void GradientPanels::gather(const std::function<void(Stream&)>& gather) {
  Stream* const side = alternates() ? stream_.side() : nullptr;
  if (side == nullptr) {
    return gather(stream_);
  }
  side->follow(stream_, stream_.mark());
  gather(*side);
  panels_[current_].gathered = side->mark();
  panels_[current_].read = true;
}

void GradientPanels::follow(Panel& panel) {
  if (std::exchange(panel.read, false)) {
    stream_.follow(*stream_.side(), panel.gathered);
  }
}

void GradientPanels::join() {
  const Panel& current = panels_[current_];
  Panel& last = panels_[current.read ? current_ : 1 - current_];
  panels_[current.read ? 1 - current_ : current_].read = false;  // gathered before
  follow(last);
}

void GradientPanels::end_pass() {
  in_pass_ = false;
  join();
}

void GradientPanels::release() {
  for (Panel& panel : panels_) {
    panel.memory.release();
  }
}

}  // namespace espalier::sparse
