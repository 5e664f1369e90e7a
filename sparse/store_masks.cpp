// The store under new masks: everything moves to the new layout, survivors keep their state.
#include <algorithm>

#include "sparse/store.h"

namespace espalier::sparse {
namespace {

/// The elements that both indices keep, in the order of `now`; the others are zero.
template <class T>
std::vector<T> survivors(const Index& before, const Index& now, std::span<const T> old) {
  const std::vector<int32_t> old_positions = before.positions();
  const std::vector<int32_t> positions = now.positions();
  std::vector<T> kept(positions.size());
  size_t from = 0;
  for (size_t k = 0; k < positions.size(); ++k) {
    while (from < old_positions.size() && old_positions[from] < positions[k]) {
      ++from;
    }
    if (from < old_positions.size() && old_positions[from] == positions[k]) {
      kept[k] = old[from];
    }
  }
  return kept;
}

}  // namespace

IndexShape Store::index_shape(const Parameter& parameter) const {
  IndexShape shape = options_.index_shape;
  shape.cols = parameter.spec.shape.cols();
  return shape;
}

Index Store::make_index(const Parameter& parameter, const Mask& mask) const {
  const IndexShape shape = index_shape(parameter);
  const auto wanted = options_.encoding ? options_.encoding(parameter.spec.name) : std::nullopt;
  try {
    return Index(stream_.arena(), mask, wanted.value_or(best_encoding(mask, shape)), shape);
  } catch (const Failure& failure) {
    fail("sparse.index of \"{}\": {}; use index = \"auto\"", parameter.spec.name, failure.what());
  }
}

Index Store::plan_index(const Parameter& parameter, int64_t kept) const {
  const auto wanted = options_.encoding ? options_.encoding(parameter.spec.name) : std::nullopt;
  const IndexShape shape = index_shape(parameter);
  return Index::planned(stream_.arena(), parameter.size(), kept,
                        wanted.value_or(best_encoding(parameter.size(), kept, shape)), shape);
}

void Store::set_masks(std::span<const Mask> masks) {
  require(masks.size() == parameters_.size(), "one mask a parameter", masks.size(),
          parameters_.size());
  std::vector<Index> indices;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    require(masks[p].size() == parameter.size(), "a mask covers its parameter", masks[p].size(),
            parameter.size(), parameter.spec.name);
    indices.push_back(make_index(parameter, masks[p]));
  }
  move_to(std::move(indices));
}

void Store::plan(std::span<const int64_t> kept) {
  require(arena().dry(), "only a dry store is planned");
  require(kept.size() == parameters_.size(), "one count a parameter", kept.size(),
          parameters_.size());
  std::vector<Index> indices;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    indices.push_back(plan_index(parameters_[p], kept[p]));
  }
  move_to(std::move(indices));
}

void Store::move_to(std::vector<Index> indices) {
  std::vector<Before> before;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    before.push_back({std::move(parameter.index), parameter.offset});
    parameter.index = std::move(indices[p]);
  }
  const std::vector<Extent> extents = lay_out();
  gradient_.release();
  carry_values(before);
  if (options_.training) {
    optimizer_.relocate(extents, [&](size_t p, std::span<const float> old) {
      return survivors(before[p].index, parameters_[p].index, old);
    });
    gradient_ = allocate_flat(Memory::gradient, "gradient", options_.gradient);
  }
  for (Parameter& parameter : parameters_) {
    hold(parameter);
    if (!arena().dry() && (parameter.spec.shape.rank() > 1 || !parameter.full())) {
      refresh(parameter);
    }
  }
}

/// The flat values in the present layout; elements that were not kept start at zero.
void Store::carry_values(std::span<const Before> before) {
  Buffer moved = allocate_flat(Memory::weight, "value", options_.dtype);
  auto move = [&]<class T>(T*) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const std::span<const T> old(value().get<T>() + before[p].offset,
                                   static_cast<size_t>(before[p].index.kept()));
      std::ranges::copy(survivors(before[p].index, parameters_[p].index, old),
                        moved.tensor().get<T>() + parameters_[p].offset);
    }
  };
  if (arena().dry()) {
  } else if (options_.dtype == DType::fp32) {
    move(static_cast<float*>(nullptr));
  } else {
    move(static_cast<bf16*>(nullptr));
  }
  value_ = std::move(moved);
}

std::vector<Mask> Store::masks() const {
  std::vector<Mask> all;
  all.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    all.push_back(parameter.index.mask());
  }
  return all;
}

}  // namespace espalier::sparse
