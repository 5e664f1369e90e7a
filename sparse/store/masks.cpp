// The store under new masks: all arrays move to the new layout; elements that stay kept keep their
// value and state. Elements that come back start at zero, but their second moment at the mean of
// the parameter's. The bias correction of AdamW counts the steps of the run, so with a second
// moment of zero the first update is lr (1 - beta1) / sqrt(1 - beta2), whatever the gradient: a
// multiple of the others, whose first moments average noise.
#include <algorithm>
#include <numeric>

#include "sparse/store/store.h"
#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

/// The elements that both indices keep, in the order of `now`; the others are `missing`.
template <class T>
std::vector<T> survivors(const Index& before, const Index& now, std::span<const T> old,
                         T missing = {}) {
  const std::vector<int32_t> old_positions = before.positions();
  const std::vector<int32_t> positions = now.positions();
  std::vector<T> kept(positions.size(), missing);
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

/// 0 for none.
float mean(std::span<const float> numbers) {
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  return numbers.empty() ? 0.0F : static_cast<float>(sum / static_cast<double>(numbers.size()));
}

}  // namespace

/// `block`: the size of the blocks that the mask is known to consist of, if any.
Index Store::make_index(const Parameter& parameter, const NextMask& next,
                        const BlockSize& block) const {
  const auto& [mask, kept] = next;
  IndexShape shape = options_.index_shape;
  shape.cols = parameter.spec.shape.cols();
  if (mask != nullptr && block.height > 0) {
    shape.height = block.height;
    shape.width = block.width;
  }
  const auto wanted = options_.encoding ? options_.encoding(parameter.spec.name) : std::nullopt;
  try {
    return mask != nullptr
               ? Index(arena().host(), *mask, wanted.value_or(best_encoding(*mask, shape)), shape)
               : Index::planned(arena().host(), parameter.size(), kept,
                                wanted.value_or(best_encoding(parameter.size(), kept, shape)),
                                shape);
  } catch (const Failure& failure) {
    fail("sparse.index of \"{}\": {}; use index = \"auto\"", parameter.spec.name, failure.what());
  }
}

/// The list behind storage block; none for thin blocks, which are computed as single elements.
/// Throws Failure when the mask does not consist of blocks.
BlockList Store::make_blocks(const Parameter& parameter, const NextMask& next) const {
  const Shape& shape = parameter.spec.shape;
  if (next.mask == nullptr) {
    const BlockSize square{options_.block.edge, options_.block.edge};
    return is_thin(square) ? BlockList() : BlockList::planned(arena(), shape, next.kept, square);
  }
  try {
    const BlockSize block = choose_blocks(*next.mask, shape, options_.block);
    if (is_thin(block)) {
      return {};
    }
    BlockList list(arena().host(), *next.mask, shape, block);
    list.move_to(stream_);
    return list;
  } catch (const Failure& failure) {
    fail("\"{}\": {}", parameter.spec.name, failure.what());
  }
}

CsrList Store::csr_list(const Parameter& parameter, const Pattern& pattern) const {
  const bool by_elements = !parameter.storage.dense_products && !pattern.blocks;
  return pattern.device_index && by_elements
             ? CsrList(stream_, kernels_, parameter.spec.shape, pattern.device_index.positions())
             : CsrList();
}

std::unique_ptr<KeptTiles> Store::kept_tiles(const Parameter& parameter, const Pattern& pattern) {
  const bool wanted =
      parameter.storage.keeps_forms || (options_.keep_rows && !parameter.storage.dense_copy);
  return wanted && pattern.index.encoding() != Encoding::full && !arena().on_device()
             ? std::make_unique<KeptTiles>(arena(), changes_)
             : nullptr;
}

Pattern Store::make_pattern(const Parameter& parameter, const NextMask& next) {
  require(next.mask == nullptr || next.mask->size() == parameter.size(),
          "a mask covers its parameter", parameter.size(), parameter.spec.name);
  Pattern made;
  if (parameter.storage.whole_blocks && next.kept < parameter.size()) {
    made.blocks = make_blocks(parameter, next);
  }
  made.index = make_index(parameter, next, made.blocks.block());
  if (arena().on_device() && made.index.encoding() != Encoding::full) {
    made.device_index = DeviceIndex(stream_, made.index);
  }
  made.csr = csr_list(parameter, made);
  made.tiles = kept_tiles(parameter, made);
  return made;
}

std::vector<Pattern> Store::make_patterns(std::span<const Mask> masks) {
  require(masks.size() == parameters_.size(), "one mask a parameter", masks.size(),
          parameters_.size());
  std::vector<Pattern> patterns;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    patterns.push_back(make_pattern(parameters_[p], {&masks[p], masks[p].kept()}));
  }
  return patterns;
}

void Store::restart(std::span<const Mask> masks) {
  std::vector<Pattern> next = make_patterns(masks);
  gradient_.release();
  value_.release();
  feedback_.release();
  optimizer_ = {};
  for (size_t p = 0; p < parameters_.size(); ++p) {
    static_cast<Pattern&>(parameters_[p]) = std::move(next[p]);
    parameters_[p].memory.release();
  }
  allocate_all();
}

void Store::set_masks(std::span<const Mask> masks) { move_to(make_patterns(masks)); }

void Store::plan(std::span<const int64_t> kept) {
  require(arena().dry(), "only a dry store is planned");
  require(kept.size() == parameters_.size(), "one count a parameter", kept.size(),
          parameters_.size());
  const size_t copies_before = copy_bytes();
  const size_t peak = arena().total().peak;
  std::vector<Pattern> patterns;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    patterns.push_back(make_pattern(parameters_[p], {nullptr, kept[p]}));
  }
  move_to(std::move(patterns));
  const size_t heap = mask_bytes() + std::max(copies_before, copy_bytes());
  arena().note_heap(heap);
  if (arena().total().peak > peak) {
    arena().note_heap(heap, arena().total().peak);
  }
}

void Store::move_to(std::vector<Pattern> patterns) {
  ++changes_;
  std::vector<Before> before;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    before.push_back({std::move(parameter.index), parameter.offset});
    static_cast<Pattern&>(parameter) = std::move(patterns[p]);
  }
  const std::vector<Extent> extents = lay_out();
  gradient_.release();
  carry_values(before);
  if (options_.training) {
    optimizer_.relocate(extents, [&](StatePart part, size_t p, std::span<const float> old) {
      const float missing = part == StatePart::moment2 ? mean(old) : 0;
      return survivors(before[p].index, parameters_[p].index, old, missing);
    });
    gradient_ = allocate_flat(Memory::gradient, "gradient", options_.gradient);
  }
  for (Parameter& parameter : parameters_) {
    allocate_copy(parameter);
    if (!arena().dry() && (parameter.spec.shape.rank() > 1 || !parameter.full())) {
      refresh(parameter);
    }
  }
}

/// The flat arrays in the present layout; elements that were not kept start at zero.
void Store::carry_values(std::span<const Before> before) {
  value_ = carried(value(), before, allocate_flat(Memory::weight, "value", options_.dtype));
  if (feedback_.tensor()) {
    feedback_ = carried(feedback(), before, allocate_feedback());
  }
}

Buffer Store::carried(const Tensor& flat, std::span<const Before> before, Buffer to) const {
  auto move = [&]<class T>(T) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const Mirror old(stream_, flat.elements(before[p].offset, before[p].index.kept()));
      const Mirror now(stream_, part(to.tensor(), parameters_[p]));
      const std::span<const T> values = old.read().host().template span<T>();
      std::ranges::copy(survivors(before[p].index, parameters_[p].index, values),
                        now.host().template get<T>());
      now.write();
    }
  };
  if (!arena().dry()) {
    with_number(flat.dtype, move);
  }
  return to;
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
