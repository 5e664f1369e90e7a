#include "src/model/tape.h"

#include <algorithm>

namespace espalier::model {
namespace {

constexpr size_t kAlignment = 64;
/// Where the addresses of a dry tape start: never read, but distinct, and away from a dry arena's.
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
  high_water_ = std::max(high_water_, top_);
  if (dry_) {
    auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      found = by_name_.emplace(std::string(name), 0).first;
    }
    found->second += bytes;
    return Tensor(reinterpret_cast<void*>(kDryBase + begin), dtype, shape);
  }
  require(top_ <= capacity_, "the tape holds a pass as measured", name, top_, capacity_);
  return Tensor(static_cast<std::byte*>(memory_.tensor().data) + begin, dtype, shape);
}

void Tape::clear() {
  top_ = 0;
  saved_.clear();
}

}  // namespace espalier::model
