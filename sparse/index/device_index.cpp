#include "sparse/index/device_index.h"

#include <algorithm>

#include "sparse/index/codings.h"
#include "src/core/mirror.h"

namespace espalier::sparse {
namespace {

void write_bitmap(const Index& index, std::byte* data) {
  const std::span words(reinterpret_cast<uint64_t*>(data),
                        static_cast<size_t>(bitmap_coding::word_count(index.size())));
  const std::span ranks(reinterpret_cast<uint32_t*>(words.data() + words.size()),
                        static_cast<size_t>(bitmap_coding::rank_count(index.size())));
  index.decode_words(0, words);
  bitmap_coding::build_ranks(words, ranks);
}

}  // namespace

DeviceIndex::DeviceIndex(Stream& stream, const Index& index)
    : positions_{.size = index.size(), .count = index.kept()} {
  require(index.encoding() != Encoding::full, "an index with positions", index.size());
  const bool list = index.encoding() == Encoding::int32;
  const int64_t words = bitmap_coding::word_count(index.size());
  const int64_t bytes =
      list ? 4 * std::max<int64_t>(index.kept(), 1)  // an empty list is one that is there
           : 8 * words + 4 * bitmap_coding::rank_count(index.size());
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
  positions_.ranks = list ? nullptr : reinterpret_cast<const uint32_t*>(data + 8 * words);
}

}  // namespace espalier::sparse
