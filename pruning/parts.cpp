#include "pruning/parts.h"

#include "src/core/error.h"

namespace espalier::pruning {
namespace {

std::span<const float> piece(std::span<const float> all, int64_t first, int64_t count) {
  return all.empty() ? all : all.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

}  // namespace

Parts::Parts(std::span<const Candidate> whole) : whole_(whole) {
  for (const Candidate& candidate : whole) {
    if (candidate.parts == 1) {
      candidates_.push_back(candidate);
    } else {
      split(candidate);
    }
  }
}

void Parts::split(const Candidate& whole) {
  const Shape shape{whole.shape.rows() / whole.parts, whole.shape.cols()};
  require(shape.count() * whole.parts == whole.shape.count(), "parts of equal size", whole.name,
          whole.parts);
  const sparse::Mask mask = whole.index->mask();
  int64_t before = 0;  // kept elements of earlier parts
  for (int64_t part = 0; part < whole.parts; ++part) {
    sparse::Mask some(shape.count(), false);
    for (int64_t i = 0; i < shape.count(); ++i) {
      if (mask[part * shape.count() + i]) {
        some.set(i, true);
      }
    }
    const sparse::Index& index = indices_.emplace_back(arena_, some, sparse::Encoding::bitmap);
    candidates_.push_back({.name = fmt::format("{} (part {})", whole.name, part + 1),
                           .shape = shape,
                           .index = &index,
                           .values = piece(whole.values, before, index.kept()),
                           .scores = piece(whole.scores, before, index.kept())});
    before += index.kept();
  }
}

std::vector<sparse::Mask> Parts::joined(std::vector<sparse::Mask> masks) const {
  std::vector<sparse::Mask> all;
  size_t next = 0;
  for (const Candidate& whole : whole_) {
    if (whole.parts == 1) {
      all.push_back(std::move(masks[next++]));
      continue;
    }
    sparse::Mask& mask = all.emplace_back(whole.shape.count(), false);
    for (int64_t part = 0; part < whole.parts; ++part, ++next) {
      const int64_t first = part * masks[next].size();
      sparse::for_each_one(masks[next].words(),
                           [&](int64_t position) { mask.set(first + position, true); });
    }
  }
  return all;
}

}  // namespace espalier::pruning
