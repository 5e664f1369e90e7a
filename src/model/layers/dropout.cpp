#include "src/model/layers/dropout.h"

#include "src/core/rng.h"

namespace espalier::model {
namespace {

/// FNV-1a: a fixed hash, unlike std::hash.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace

void apply_dropout(Pass& pass, std::string_view place, const Tensor& x, const Tensor& y) {
  if (!drops(pass)) {
    return;
  }
  const int64_t per_sequence = x.count() / pass.samples;
  pass.kernels.dropout(pass.stream, {.x = x,
                                     .y = y,
                                     .probability = pass.dropout.rate,
                                     .key = mix(pass.dropout.key, hash_of(place)),
                                     .offset = pass.dropout.first_sequence * per_sequence});
}

}  // namespace espalier::model
