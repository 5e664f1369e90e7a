#include "sparse/store/value_copy.h"

namespace espalier::sparse {
namespace {

int64_t exact_elements(const Store& store, const ParameterRange& range) {
  int64_t count = 0;
  for (size_t p = range.first; p < range.end; ++p) {
    const Parameter& parameter = store.parameters()[p];
    count += parameter.exact_copy() ? parameter.kept() : 0;
  }
  return count;
}

}  // namespace

Range flat_range(const Store& store, const ParameterRange& range) {
  const auto parameters = store.parameters();
  require(range.first <= range.end && range.end <= parameters.size(), "parameters of the store",
          range.first, range.end);
  // Offsets fall. A layer without parameters has an empty range.
  const int64_t end = range.first == 0 ? store.flat_size() : parameters[range.first - 1].offset;
  const int64_t first = range.first == range.end ? end : parameters[range.end - 1].offset;
  return {.first = first, .count = end - first};
}

std::vector<int64_t> flat_ends(const Store& store, const ParameterRange& range) {
  const auto [first, count] = flat_range(store, range);
  std::vector<int64_t> ends;
  for (size_t p = range.end; p-- > range.first;) {
    ends.push_back(p == range.first ? count : store.parameters()[p - 1].offset - first);
  }
  return ends;
}

ValueCopy::ValueCopy(Store& store, const ParameterRange& range, std::string_view name)
    : range_(range), flat_(flat_range(store, range)) {
  Arena& arena = store.arena();
  value_ = arena.allocate(Memory::weight, name, store.value().dtype, Shape{flat_.count});
  if (const int64_t exact = exact_elements(store, range); exact > 0) {
    exact_ = arena.allocate(Memory::weight, name, DType::fp32, Shape{exact});
  }
}

bool ValueCopy::fits(const Store& store) const {
  const Range now = flat_range(store, range_);
  return now.first == flat_.first && now.count == flat_.count &&
         (exact_.tensor() ? exact_.tensor().count() : 0) == exact_elements(store, range_);
}

/// each(vector of the store, its place here)
template <class Each>
void ValueCopy::each_exact(const Store& store, const Each& each) const {
  int64_t first = 0;
  for (size_t p = range_.first; p < range_.end; ++p) {
    const Parameter& parameter = store.parameters()[p];
    if (parameter.exact_copy()) {
      each(parameter.dense, exact_.tensor().elements(first, parameter.kept()));
      first += parameter.kept();
    }
  }
}

void ValueCopy::save_from(Stream& stream, const kernels::Kernels& kernels, const Store& store) {
  kernels.cast(stream,
               {.x = store.value().elements(flat_.first, flat_.count), .y = value_.tensor()});
  each_exact(store, [&](const Tensor& vector, const Tensor& here) {
    kernels.cast(stream, {.x = vector, .y = here});
  });
}

void ValueCopy::restore_to(Stream& stream, const kernels::Kernels& kernels, Store& store) const {
  kernels.cast(stream,
               {.x = value_.tensor(), .y = store.value().elements(flat_.first, flat_.count)});
  each_exact(store, [&](const Tensor& vector, const Tensor& here) {
    kernels.cast(stream, {.x = here, .y = vector});
  });
  for (Parameter& parameter : store.parameters().subspan(range_.first, range_.end - range_.first)) {
    if (!parameter.exact_copy()) {
      store.refresh(parameter);
    }
  }
}

Tensor ValueCopy::part(const Parameter& parameter) const {
  return value_.tensor().elements(parameter.offset - flat_.first, parameter.kept());
}

}  // namespace espalier::sparse
