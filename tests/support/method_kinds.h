#pragma once
// Which pruning methods a test of all methods takes, or how it sets their steps.
#include "pruning/registry.h"

namespace espalier::testing {

inline const pruning::OneShot* one_shot(const pruning::Method& method) {
  return std::get_if<pruning::OneShot>(&method.kind);
}
inline bool waits(const pruning::Method& method) {
  return one_shot(method) != nullptr && one_shot(method)->waits;
}
/// By gradients of a few batches.
inline bool scores(const pruning::Method& method) {
  return one_shot(method) != nullptr && one_shot(method)->score != nullptr;
}
inline bool needs_fp32(const pruning::Method& method) {
  return one_shot(method) != nullptr && one_shot(method)->score_shifted != nullptr;
}
inline bool moves(const pruning::Method& method) {
  return std::holds_alternative<pruning::Moving>(method.kind);
}
inline bool learns(const pruning::Method& method) {
  return std::holds_alternative<pruning::Learning>(method.kind);
}
/// In a run, by its own choice.
inline bool prunes(const pruning::Method& method) {
  return method.run != nullptr && method.name != "none";
}

}  // namespace espalier::testing
