#include "src/model/key_value_cache.h"

namespace espalier::model {

KeyValueCache::Tensors KeyValueCache::of(const void* layer, const Heads& heads, int64_t first,
                                         int64_t count) {
  const int64_t capacity =
      heads.window > 0 ? std::min(heads.window, options_.context) : options_.context;
  const Shape all{options_.sequences, heads.count, capacity, heads.width};
  Layer& own = layers_[layer];
  if (!own.keys.tensor()) {
    own.keys = arena_.allocate(Memory::activation, "cached keys", options_.dtype, all);
    own.values = arena_.allocate(Memory::activation, "cached values", options_.dtype, all);
  }
  require(own.keys.tensor().shape == all, "a layer's heads do not change",
          own.keys.tensor().shape.text(), all.text());
  require(first >= 0 && first + count <= options_.sequences, "sequences of the cache", first, count,
          options_.sequences);
  const int64_t each = heads.count * capacity * heads.width;
  const auto part = [&](const Buffer& buffer) {
    return buffer.tensor()
        .elements(first * each, count * each)
        .reshaped({count, heads.count, capacity, heads.width});
  };
  return {.keys = part(own.keys), .values = part(own.values)};
}

}  // namespace espalier::model
