// What a store amounts to.
#include "sparse/store/store.h"

namespace espalier::sparse {

int64_t Store::total_size() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.spec.borrowed ? 0 : parameter.size();
  }
  return sum;
}

int64_t Store::total_kept() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.spec.borrowed ? 0 : parameter.kept();
  }
  return sum;
}

StateParts Store::parts() const {
  StateParts parts{.value = value_.bytes(),
                   .gradient = gradient_.bytes(),
                   .low = optimizer_.low_bytes(),
                   .master = optimizer_.master_bytes(),
                   .moments = optimizer_.moment_bytes(),
                   .scales = optimizer_.scale_bytes()};
  for (const Parameter& parameter : parameters_) {
    parts.copies += parameter.memory.bytes();
    parts.index +=
        parameter.blocks.bytes() + parameter.csr.bytes() +
        (parameter.device_index ? parameter.device_index.bytes() : parameter.index.bytes());
  }
  return parts;
}

}  // namespace espalier::sparse
