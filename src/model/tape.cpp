#include "src/model/tape.h"

#include <algorithm>

namespace espalier::model {
namespace {

constexpr size_t kAlignment = 64;
/// Base address of dry tapes: never read, and distinct from the addresses of dry arenas.
constexpr size_t kDryBase = size_t{1} << 46U;

}  // namespace

Tape::Tape(Arena& arena, size_t bytes, bool dry) : capacity_(bytes), dry_(dry) {
  if (!dry_) {
    memory_ = arena.allocate(Memory::activation, "tape", DType::uint8,
                             Shape{static_cast<int64_t>(bytes)});
  }
}

Tensor Tape::push(std::string_view name, DType dtype, const Shape& shape) {
  const size_t bytes = static_cast<size_t>(shape.count()) * size_of(dtype);
  const size_t begin = top_;
  top_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (dry_) {
    count(name, begin);
    return Tensor(reinterpret_cast<void*>(kDryBase + begin), dtype, shape);
  }
  high_water_ = std::max(high_water_, top_);
  require(top_ <= capacity_, "the tape is as large as the dry pass measured", name, top_,
          capacity_);
  return memory_.tensor().elements(static_cast<int64_t>(begin), 0).as(dtype, shape);
}

/// Counts the bytes from `begin` to the top.
void Tape::count(std::string_view name, size_t begin) {
  auto found = live_.find(name);
  if (found == live_.end()) {
    found = live_.emplace(std::string(name), 0).first;
  }
  found->second += top_ - begin;
  entries_.push_back({.begin = begin, .name = found, .bytes = top_ - begin});
  if (top_ > high_water_) {
    high_water_ = top_;
    peak_ = live_;
  }
}

void Tape::drop(size_t top) {
  top_ = top;
  for (; !entries_.empty() && entries_.back().begin >= top; entries_.pop_back()) {
    entries_.back().name->second -= entries_.back().bytes;
  }
}

void Tape::clear() {
  drop(0);
  saved_.clear();
}

void Tape::restore(const Contents& contents) {
  require(!dry_, "a tape with memory");
  top_ = contents.top;
  saved_ = contents.saved;
}

}  // namespace espalier::model
