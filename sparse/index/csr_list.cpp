#include "sparse/index/csr_list.h"

namespace espalier::sparse {
namespace {

/// Libraries ask for arrays at 16 bytes; this is a line of cache.
int64_t aligned(int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

CsrList::CsrList(Stream& stream, const kernels::Kernels& kernels, const Shape& shape,
                 const kernels::Positions& positions)
    : counts_{shape.rows() + 1, positions.count, shape.cols() + 1, positions.count,
              positions.count} {
  int64_t total = 0;
  for (const int64_t count : counts_) {
    total += aligned(count);
  }
  memory_ =
      stream.arena().allocate(Memory::index, "lists of kept elements", DType::int32, Shape{total});
  kernels.csr(stream, {.rows = shape.rows(),
                       .cols = shape.cols(),
                       .positions = positions,
                       .row_begin = array(0),
                       .column = array(1),
                       .column_begin = array(2),
                       .row = array(3),
                       .order = array(4)});
}

Tensor CsrList::array(int which) const {
  int64_t first = 0;
  for (int i = 0; i < which; ++i) {
    first += aligned(counts_[static_cast<size_t>(i)]);
  }
  return memory_.tensor().elements(first, counts_[static_cast<size_t>(which)]);
}

kernels::Csr CsrList::view() {
  if (!*this) {
    return {};
  }
  auto list = [&](int which) { return static_cast<const int32_t*>(array(which).data); };
  return {.row_begin = list(0),
          .column = list(1),
          .column_begin = list(2),
          .row = list(3),
          .order = list(4),
          .prepared = &prepared_};
}

}  // namespace espalier::sparse
