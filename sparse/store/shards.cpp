// Copies of values, when other ranks have stepped a part of them (ZeRO-1).
#include <algorithm>

#include "sparse/store/store.h"
#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

/// For each rank the elements that it owns of some parameters.
std::vector<Range> packed_by_rank(std::span<const std::span<const Range>> shares, size_t ranks) {
  std::vector<Range> packed(ranks);
  int64_t end = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    packed[rank].first = end;
    for (const auto& parameter : shares) {
      packed[rank].count += parameter[rank].count;
    }
    end += packed[rank].count;
  }
  return packed;
}

}  // namespace

void Store::refresh_all() {
  for (Parameter& parameter : parameters_) {
    const size_t p = number_of(parameter);
    const bool all_mine = optimizer_.owned(p).count == parameter.kept() && !optimizer_.apart(p);
    const bool written = all_mine && parameter.dense.dtype == options_.dtype;  // with the step
    if (!parameter.exact_copy() && !written) {
      refresh(parameter);
    }
  }
  if (options_.sharding && options_.dtype != DType::fp32) {
    refresh_exact_vectors();
  }
}

void Store::refresh_exact_vectors() {
  std::vector<size_t> vectors;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].exact_copy()) {
      vectors.push_back(p);
    }
  }
  if (vectors.empty()) {
    return;
  }
  if (options_.sharding->collects_on_device()) {
    refresh_on_device(vectors);
  } else {
    refresh_by_host(vectors);
  }
}

void Store::refresh_on_device(std::span<const size_t> vectors) {
  std::vector<SharedVector> shared;
  for (const size_t p : vectors) {
    const Tensor whole = parameters_[p].dense.reshaped({parameters_[p].size()});
    const Range mine = optimizer_.owned(p);
    if (mine.count > 0) {
      write_exact(parameters_[p], whole.elements(mine.first, mine.count));
    }
    shared.push_back({.whole = whole, .shares = optimizer_.shares(p)});
  }
  options_.sharding->collect_on_device(shared);
}

/// Every rank's parts of all such vectors, one after the other, go to all ranks at once.
void Store::refresh_by_host(std::span<const size_t> vectors) {
  std::vector<std::span<const Range>> shares;
  for (const size_t p : vectors) {
    shares.push_back(optimizer_.shares(p));
  }
  const auto me = static_cast<size_t>(options_.sharding->rank());
  const size_t ranks = shares.front().size();
  const std::vector<Range> packed = packed_by_rank(shares, ranks);
  std::vector<float> all(static_cast<size_t>(packed.back().first + packed.back().count));
  const Mirror mine = Mirror::of_host(
      stream_, Tensor(all.data() + packed[me].first, DType::fp32, Shape{packed[me].count}));
  int64_t written = 0;
  for (const size_t p : vectors) {
    const int64_t owned = optimizer_.owned(p).count;
    if (owned > 0) {
      write_exact(parameters_[p], mine.device().elements(written, owned));
    }
    written += owned;
  }
  mine.read();
  options_.sharding->collect(
      packed, Tensor(all.data(), DType::fp32, Shape{static_cast<int64_t>(all.size())}));
  std::vector<Mirror> copies;
  for (const size_t p : vectors) {
    copies.emplace_back(stream_, parameters_[p].dense);
  }
  const float* from = all.data();
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < vectors.size(); ++i) {
      const auto [first, count] = shares[i][rank];
      std::copy_n(from, count, copies[i].host().get<float>() + first);
      from += count;
    }
  }
  for (const Mirror& copy : copies) {
    copy.write();
  }
}

}  // namespace espalier::sparse
