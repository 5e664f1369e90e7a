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

}  // namespace espalier::kernels::cpu
