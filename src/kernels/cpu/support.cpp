#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {

std::byte* workspace(Stream& stream, size_t bytes) { return stream.workspace(bytes); }

bool is_dry(Stream& stream) { return stream.arena().dry(); }

void require_ids_below(const char* what, const Tensor& ids, int64_t limit) {
  for (const int32_t id : ids.span<int32_t>()) {
    require(id >= 0 && id < limit, "an id is outside the table that it selects from", what, id,
            limit);
  }
}

void require_cached(const Tensor& lengths) {
  for (const int32_t length : lengths.span<int32_t>()) {
    require(length >= 1, "a sequence has cached tokens", length);
  }
}

void require_segment(int64_t made_for, int64_t segment) {
  require(made_for == segment, "all products of a matrix cut its kept form alike", made_for,
          segment);
}

void require_positions(const Positions& positions) {
  require(!positions.all() || positions.count == positions.size || positions.count == 0,
          "a kept form is made from positions", positions.count, positions.size);
}

}  // namespace espalier::kernels::cpu
