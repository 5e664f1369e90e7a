#include "sparse/index/device_index.h"

#include <algorithm>

#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

void write_bitmap(const Index& index, std::byte* data) {
  const std::span words(reinterpret_cast<uint64_t*>(data),
                        static_cast<size_t>(bitmap_coding::word_count(index.size())));
  const std::span prefix_counts(
      reinterpret_cast<uint32_t*>(words.data() + words.size()),
      static_cast<size_t>(bitmap_coding::prefix_counts_size(index.size())));
  index.decode_words(0, words);
  bitmap_coding::build_prefix_counts(words, prefix_counts);
}

/// In elements, to a cache line; libraries need 16 bytes.
int64_t aligned(int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

DeviceIndex::DeviceIndex(Stream& stream, const Index& index)
    : positions_{.size = index.size(), .count = index.kept()} {
  require(index.encoding() != Encoding::full, "an index with positions", index.size());
  const bool list = index.encoding().kernel_form == KernelForm::list;
  const int64_t words = bitmap_coding::word_count(index.size());
  const int64_t bytes = list ? 4 * std::max<int64_t>(index.kept(), 1)  // null would mean a bitmap
                             : 8 * words + 4 * bitmap_coding::prefix_counts_size(index.size());
  memory_ = stream.arena().allocate(Memory::index, "positions", DType::uint8, Shape{bytes});
  if (!index.dry()) {
    const Mirror image(stream, memory_.tensor());
    auto* data = reinterpret_cast<std::byte*>(image.host().get<uint8_t>());
    if (list) {
      index.decode(0, {reinterpret_cast<int32_t*>(data), static_cast<size_t>(index.kept())});
    } else {
      write_bitmap(index, data);
    }
    image.write();
  }
  auto* data = static_cast<std::byte*>(memory_.tensor().data);
  positions_.list = list ? reinterpret_cast<const int32_t*>(data) : nullptr;
  positions_.bitmap = list ? nullptr : reinterpret_cast<const uint64_t*>(data);
  positions_.prefix_counts = list ? nullptr : reinterpret_cast<const uint32_t*>(data + 8 * words);
}

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
