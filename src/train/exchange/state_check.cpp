#include "src/train/exchange/state_check.h"

#include <algorithm>
#include <utility>

#include "src/core/checksum.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

constexpr size_t kHashedAtOnce = size_t{256} << 10U;  // bytes

}  // namespace

uint64_t StateCheck::Blocks::hash(size_t column, int64_t first, int64_t count) const {
  const auto& [kind, data, bytes] = columns[column];
  return checksum({data + static_cast<size_t>(first) * bytes, static_cast<size_t>(count) * bytes});
}

void StateCheck::Blocks::record(int64_t first, int64_t count) {
  const size_t row = static_cast<size_t>(first / kernels::kObservedBlock) * columns.size();
  for (size_t column = 0; column < columns.size(); ++column) {
    hashes[row + column] = hash(column, first, count);
  }
}

void StateCheck::Blocks::verify(int64_t first, int64_t count) {
  const size_t row = static_cast<size_t>(first / kernels::kObservedBlock) * columns.size();
  for (size_t column = 0; column < columns.size(); ++column) {
    if (hashes[row + column] != hash(column, first, count)) {
      changed = columns[column].kind;
    }
  }
}

/// Whether its update works in blocks of elements, and nothing else writes its state. (The last
/// stage of a pipeline may receive values of borrowed parameters.)
bool StateCheck::observes(const sparse::Parameter& parameter) const {
  const sparse::StoreOptions& options = store_.options();
  return options.training && !options.sharding && !store_.arena().on_device() &&
         !parameter.copied() && !parameter.spec.borrowed && parameter.kept() > 0 &&
         !store_.state(parameter).separate_master;
}

void StateCheck::make_blocks() {
  blocks_.clear();
  for (const sparse::Parameter& parameter : store_.parameters()) {
    auto& blocks = blocks_.emplace_back();
    if (!observes(parameter)) {
      continue;
    }
    blocks = std::make_unique<Blocks>();
    blocks->parameter = &parameter;
    const sparse::OptimizerState state = store_.state(parameter);
    for (const auto& [kind, tensor] :
         {std::pair{"value", state.value}, std::pair{"low half", state.low},
          std::pair{"moment1", state.moment1}, std::pair{"moment2", state.moment2}}) {
      if (tensor && tensor.count() > 0) {
        blocks->columns.push_back(
            {kind, static_cast<const std::byte*>(tensor.data), size_of(tensor.dtype)});
      }
    }
    const int64_t rows = (parameter.kept() - 1) / kernels::kObservedBlock + 1;
    blocks->hashes.resize(static_cast<size_t>(rows) * blocks->columns.size());
    blocks->observer = {
        .self = blocks.get(),
        .before = [](void* self, int64_t first,
                     int64_t count) { static_cast<Blocks*>(self)->verify(first, count); },
        .after = [](void* self, int64_t first,
                    int64_t count) { static_cast<Blocks*>(self)->record(first, count); }};
  }
}

/// Calls visit(blocks, first, count) for all blocks, on the threads of the stream.
template <class Visit>
void StateCheck::for_blocks(const Visit& visit) const {
  const int threads = store_.stream().host().threads();
  for (const auto& blocks : blocks_) {
    if (blocks == nullptr) {
      continue;
    }
    const int64_t size = blocks->parameter->kept();
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < size; first += kernels::kObservedBlock) {
      visit(*blocks, first, std::min(kernels::kObservedBlock, size - first));
    }
  }
}

void StateCheck::check_blocks() const {
  for (const auto& blocks : blocks_) {
    if (blocks != nullptr && blocks->changed != nullptr) {
      fail_changed(*blocks->parameter, blocks->changed);
    }
  }
}

void StateCheck::clear() {
  pieces_.clear();
  arrays_.clear();
  blocks_.clear();
  exchanged_ = next_ = 0;
  updating_ = false;
}

void StateCheck::begin_update() {
  verify(0, exchanged_);
  updating_ = known();
}

const kernels::UpdateObserver* StateCheck::observer_of(const sparse::Parameter& parameter) {
  const auto number = static_cast<size_t>(&parameter - store_.parameters().data());
  return updating_ && number < blocks_.size() && blocks_[number] != nullptr
             ? &blocks_[number]->observer
             : nullptr;
}

void StateCheck::end_update(int64_t step) {
  check_blocks();
  record(step);
}

void StateCheck::add(const sparse::Parameter& parameter, const char* kind, const Tensor& tensor) {
  if (!tensor || tensor.count() == 0 || tensor.on_device) {
    return;
  }
  std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data), tensor.bytes());
  arrays_.push_back({&parameter, kind});
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kHashedAtOnce, bytes.size()));
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
    for (size_t i = 0; parameter.tiles && i < kernels::kPositionForms; ++i) {
      add(parameter, "kept tiles", parameter.tiles->memory()[i]);
    }
  }
}

void StateCheck::add_state() {
  for (const sparse::Parameter& parameter : store_.parameters()) {
    const bool observed = observes(parameter);
    if (!observed) {
      add(parameter, "value", store_.part(store_.value(), parameter));
    }
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
    if (!observed) {
      add(parameter, "low half", state.low);
      add(parameter, "moment1", state.moment1);
      add(parameter, "moment2", state.moment2);
    }
    add(parameter, "scales of moment1", state.scale1);
    add(parameter, "scales of moment2", state.scale2);
    add(parameter, "pruning array 1", state.pruning1);
    add(parameter, "pruning array 2", state.pruning2);
  }
}

void StateCheck::add_feedback() {
  const Tensor feedback = store_.feedback();
  const auto parameters = store_.parameters();
  for (size_t p = feedback ? parameters.size() : 0; p-- > 0;) {  // ascending offsets
    add(parameters[p], "error feedback", store_.part(feedback, parameters[p]));
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
  if (!known() || (pieces_.empty() && blocks_.empty())) {
    clear();
    first = 0;
    add_constants();
    constant_arrays_ = arrays_.size();
    constants_ = pieces_.size();
    make_blocks();
  }
  if (!std::exchange(updating_, false)) {  // an update that was observed has recorded its blocks
    for_blocks([](Blocks& blocks, int64_t begin, int64_t n) { blocks.record(begin, n); });
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

void StateCheck::verify() const {
  verify(0, exchanged_);
  if (known()) {
    const Span span(Track::optimizer, "verify state");
    for_blocks([](Blocks& blocks, int64_t first, int64_t n) { blocks.verify(first, n); });
    check_blocks();
  }
}

void StateCheck::fail_changed(const sparse::Parameter& parameter, const char* kind) const {
  const bool trains = store_.options().training;
  throw Failure(
      fmt::format("bits of {}'{}' ({}) changed on rank {} {}: faulty memory; resume from the last "
                  "checkpoint, and test the memory of this machine",
                  trains ? "" : "the teacher's ", parameter.spec.name, kind, rank_,
                  trains ? fmt::format("between steps {} and {}", step_, step_ + 1)
                         : "since they were loaded"),
      true);
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
  fail_changed(*array.parameter, array.kind);
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
