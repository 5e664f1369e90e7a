#include "src/train/exchange/state_check.h"

#include <algorithm>

#include "src/core/checksum.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

constexpr size_t kPiece = size_t{256} << 10U;  // bytes

}  // namespace

void StateCheck::add(const sparse::Parameter& parameter, const char* kind, const Tensor& tensor) {
  if (!tensor || tensor.count() == 0 || tensor.on_device) {
    return;
  }
  std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data), tensor.bytes());
  arrays_.push_back({&parameter, kind});
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    pieces_.push_back(
        {.bytes = piece, .array = arrays_.size() - 1, .first = parameter.offset, .hash = 0});
    bytes = bytes.subspan(piece.size());
  }
}

void StateCheck::add_constants() {
  for (const sparse::Parameter& parameter : store_.parameters()) {
    for (const Tensor& part : parameter.index.memory()) {
      add(parameter, "index", part);
    }
    add(parameter, "list of blocks", parameter.blocks.array());
  }
}

void StateCheck::add_state() {
  for (const sparse::Parameter& parameter : store_.parameters()) {
    add(parameter, "value", store_.part(store_.value(), parameter));
    if (parameter.copied()) {
      add(parameter, "dense copy", parameter.dense);
    }
    if (!store_.options().training) {
      continue;
    }
    const sparse::OptimizerState state = store_.state(parameter);
    if (state.separate_master) {
      add(parameter, "master copy", state.value);
    }
    add(parameter, "low half", state.low);
    add(parameter, "moment1", state.moment1);
    add(parameter, "moment2", state.moment2);
    add(parameter, "scales of moment1", state.scale1);
    add(parameter, "scales of moment2", state.scale2);
    add(parameter, "pruning array 1", state.pruning1);
    add(parameter, "pruning array 2", state.pruning2);
  }
}

void StateCheck::add_feedback() {
  const auto parameters = store_.parameters();
  for (size_t p = parameters.size(); p-- > 0;) {  // ascending offsets
    const sparse::Parameter& parameter = parameters[p];
    if (store_.feedback()) {
      add(parameter, "error feedback", store_.part(store_.feedback(), parameter));
    }
    const auto* matrix = low_rank_ == nullptr ? nullptr : low_rank_->find(parameter.offset);
    if (matrix != nullptr) {
      add(parameter, "powersgd factor", low_rank_->factor(*matrix));
    }
  }
}

void StateCheck::hash(size_t first) {
  const int threads = store_.stream().host().threads();
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (size_t i = first; i < pieces_.size(); ++i) {
    pieces_[i].hash = checksum(pieces_[i].bytes);
  }
}

void StateCheck::record(int64_t step) {
  const Span span(Track::optimizer, "checksums of state");
  size_t first = constants_;
  if (!known() || pieces_.empty()) {
    clear();
    first = 0;
    add_constants();
    constant_arrays_ = arrays_.size();
    constants_ = pieces_.size();
  }
  arrays_.resize(constant_arrays_);
  pieces_.resize(constants_);
  if (!store_.arena().on_device()) {
    add_state();
  }
  exchanged_ = next_ = pieces_.size();
  if (!store_.arena().on_device()) {
    add_feedback();
  }
  hash(first);
  step_ = step;
  changes_ = store_.changes();
}

void StateCheck::verify(size_t first, size_t end) const {
  if (!known()) {
    return;
  }
  const Span span(Track::optimizer, "verify state");
  const int threads = store_.stream().host().threads();
  size_t changed = end;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1) \
    reduction(min                                                                \
              : changed)
  for (size_t i = first; i < end; ++i) {
    if (checksum(pieces_[i].bytes) != pieces_[i].hash) {
      changed = std::min(changed, i);
    }
  }
  if (changed == end) {
    return;
  }
  const Array& array = arrays_[pieces_[changed].array];
  const bool trains = store_.options().training;
  throw Failure(
      fmt::format("bits of {}'{}' ({}) changed on rank {} {}: faulty memory; resume from the last "
                  "checkpoint, and test the memory of this machine",
                  trains ? "" : "the teacher's ", array.parameter->spec.name, array.kind, rank_,
                  trains ? fmt::format("between steps {} and {}", step_, step_ + 1)
                         : "since they were loaded"),
      true);
}

void StateCheck::verify_feedback(int64_t end) {
  size_t last = next_;
  while (last < pieces_.size() && pieces_[last].first < end) {
    ++last;
  }
  if (last > next_) {
    verify(next_, last);
    next_ = last;
  }
}

}  // namespace espalier::train
