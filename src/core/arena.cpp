#include "src/core/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace espalier {
namespace {

constexpr size_t kAlignment = 64;
constexpr std::array<std::string_view, kMemoryKinds> kNames{
    "weight", "gradient", "master", "moment", "index", "activation", "scratch", "communication"};

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class HostMemory final : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    // calloc zeroes lazily; touching aligned memory here makes an out-of-memory error early.
    void* data = std::aligned_alloc(kAlignment, padded(std::max<size_t>(bytes, 1)));
    return data == nullptr ? nullptr : std::memset(data, 0, bytes);
  }
  void free(void* data, size_t) noexcept override { std::free(data); }
};

}  // namespace

MemorySource& host_memory() {
  static HostMemory heap;  // without state
  return heap;
}

std::string_view name_of(Memory kind) { return kNames.at(static_cast<size_t>(kind)); }

void Buffer::swap(Buffer& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(kind_, other.kind_);
  std::swap(tensor_, other.tensor_);
}

void Buffer::release() noexcept {
  if (arena_ != nullptr) {
    arena_->give_back(kind_, tensor_.data, tensor_.bytes());
  }
  arena_ = nullptr;
  tensor_ = Tensor();
}

Arena::~Arena() = default;

Buffer Arena::allocate(Memory kind, std::string_view name, DType dtype, const Shape& shape) {
  Buffer buffer;
  const size_t bytes = static_cast<size_t>(shape.count()) * size_of(dtype);
  count(kind, name, bytes);
  void* data = nullptr;
  if (dry()) {
    // Never read, but distinct: kernels check for overlaps.
    data = reinterpret_cast<void*>(next_dry_address_);
    next_dry_address_ += padded(bytes);
  } else {
    data = source_->allocate(bytes);
    if (data == nullptr) {
      uncount(kind, bytes);
      fail("no memory{} for {} bytes of {} \"{}\" ({} bytes are in use: {}): {}",
           on_device() ? " on the device" : "", bytes, name_of(kind), name, total().now, in_use(),
           advice_.empty() ? "use a smaller model or micro_batch, or more ranks" : advice_);
    }
  }
  buffer.arena_ = this;
  buffer.kind_ = kind;
  buffer.tensor_ = Tensor(data, dtype, shape);
  buffer.tensor_.on_device = on_device();
  return buffer;
}

/// "weight 12, gradient 6": bytes of each category that is not empty.
std::string Arena::in_use() const {
  std::string all;
  for (size_t i = 0; i < kMemoryKinds; ++i) {
    if (use_.at(i).now > 0) {
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", kNames.at(i), use_.at(i).now);
    }
  }
  return all.empty() ? "nothing" : all;
}

void Arena::count(Memory kind, std::string_view name, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (limit_ > 0 && total_.now + bytes > limit_) {
    fail(
        "{} \"{}\" needs {} bytes, but train.memory_budget leaves this rank {} and {} are in use "
        "({}): raise train.memory_budget, or take a smaller micro_batch, recompute = \"full\" or a "
        "smaller model",
        name_of(kind), name, bytes, limit_, total_.now, in_use());
  }
  auto add = [bytes](MemoryUse& use) {
    use.now += bytes;
    use.peak = std::max(use.peak, use.now);
  };
  add(use_.at(static_cast<size_t>(kind)));
  const size_t peak = total_.peak;
  add(total_);
  if (total_.peak > peak) {
    std::ranges::transform(use_, at_peak_.begin(), &MemoryUse::now);
  }
}

void Arena::give_back(Memory kind, void* data, size_t bytes) noexcept {
  if (source_ != nullptr) {
    source_->free(data, bytes);
  }
  uncount(kind, bytes);
}

void Arena::uncount(Memory kind, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  use_[static_cast<size_t>(kind)].now -= bytes;
  total_.now -= bytes;
}

MemoryUse Arena::use(Memory kind) const {
  const std::lock_guard lock(mutex_);
  return use_.at(static_cast<size_t>(kind));
}

MemoryUse Arena::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

size_t Arena::at_peak(Memory kind) const {
  const std::lock_guard lock(mutex_);
  return at_peak_.at(static_cast<size_t>(kind));
}

void Arena::note_heap(size_t bytes, size_t in_use) {
  const std::lock_guard lock(mutex_);
  peak_with_heap_ = std::max(peak_with_heap_, in_use + bytes);
}

size_t Arena::peak_with_heap() const {
  const std::lock_guard lock(mutex_);
  return std::max(peak_with_heap_, total_.peak);
}

size_t Arena::model_state_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (Memory kind :
       {Memory::weight, Memory::gradient, Memory::master, Memory::moment, Memory::index}) {
    sum += use_.at(static_cast<size_t>(kind)).now;
  }
  return sum;
}

}  // namespace espalier
