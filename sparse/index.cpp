#include "sparse/index.h"

#include <algorithm>
#include <cstring>

#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

using delta_coding::Restart;

/// What kernels get for the list of an index that keeps nothing: null would say "all".
constexpr int32_t kNoPositions = 0;

std::span<const int32_t> list(const Buffer& data) { return data.tensor().span<const int32_t>(); }
std::span<const uint64_t> words(const Buffer& data) { return data.tensor().span<const uint64_t>(); }
std::span<uint32_t> ranks(const Buffer& buffer) {
  return {reinterpret_cast<uint32_t*>(buffer.tensor().get<int32_t>()),
          static_cast<size_t>(buffer.tensor().count())};
}
/// A restart point is a pair of 32-bit numbers in the buffer.
std::span<Restart> restarts(const Buffer& buffer) {
  return {reinterpret_cast<Restart*>(buffer.tensor().get<int32_t>()),
          static_cast<size_t>(buffer.tensor().count() / 2)};
}

delta_coding::View delta_view(const Buffer& data, const Buffer& starts, int64_t kept) {
  return {data.tensor().span<const uint8_t>(), restarts(starts), kept};
}

void check_bytes(Encoding encoding, int64_t size, int64_t kept, std::span<const uint8_t> bytes) {
  check_counts(size, kept);
  switch (encoding) {
    case Encoding::full:
      check(kept == size, "full index: {} of {} elements are kept", kept, size);
      check(bytes.empty(), "full index: {} bytes where none belong", bytes.size());
      return;
    case Encoding::int32:
      return int32_coding::check_bytes(bytes, size, kept);
    case Encoding::delta:
      return delta_coding::check_bytes(bytes, size, kept);
    case Encoding::bitmap:
      return bitmap_coding::check_bytes(bytes, size, kept);
  }
  fail("index: unknown encoding {}", static_cast<int>(encoding));
}

}  // namespace

Index::Index(int64_t size, int64_t kept, Encoding encoding)
    : encoding_(kept == size ? Encoding::full : encoding), size_(size), kept_(kept) {
  check_counts(size, kept);
  require(encoding_ != Encoding::full || kept == size, "a full index keeps everything", kept, size);
}

Index::Index(Arena& arena, const Mask& mask, Encoding encoding)
    : Index(mask.size(), mask.kept(), encoding) {
  const size_t bytes = encoding_ == Encoding::delta ? delta_coding::encoded_bytes(mask)
                                                    : predicted_data_bytes(encoding_, size_, kept_);
  allocate(arena, bytes);
  if (dry_) {
    return;
  }
  switch (encoding_) {
    case Encoding::full:
      break;
    case Encoding::int32:
      int32_coding::encode(mask, data_.tensor().span<int32_t>());
      break;
    case Encoding::delta:
      delta_coding::encode(mask, data_.tensor().span<uint8_t>(), restarts(ranks_));
      break;
    case Encoding::bitmap:
      std::ranges::copy(mask.words(), data_.tensor().span<uint64_t>().begin());
      bitmap_coding::build_ranks(words(data_), ranks(ranks_));
      break;
  }
}

Index Index::full(int64_t size) { return {size, size, Encoding::full}; }

Index Index::planned(Arena& arena, int64_t size, int64_t kept, Encoding encoding) {
  Index index(size, kept, encoding);
  index.allocate(arena, predicted_data_bytes(index.encoding_, size, kept));
  index.dry_ = index.encoding_ != Encoding::full;
  return index;
}

void Index::allocate(Arena& arena, size_t data_bytes) {
  if (encoding_ == Encoding::full) {
    return;
  }
  dry_ = arena.dry();
  const DType dtype = encoding_ == Encoding::int32   ? DType::int32
                      : encoding_ == Encoding::delta ? DType::uint8
                                                     : DType::uint64;
  data_ = arena.allocate(Memory::index, "index", dtype,
                         Shape{static_cast<int64_t>(data_bytes / size_of(dtype))});
  ranks_ = arena.allocate(Memory::index, "index ranks", DType::int32,
                          Shape{rank_words(encoding_, size_, kept_)});
}

double Index::density() const {
  return size_ == 0 ? 1.0 : static_cast<double>(kept_) / static_cast<double>(size_);
}

size_t Index::bytes() const {
  return encoding_ == Encoding::full ? 0 : data_.tensor().bytes() + ranks_.tensor().bytes();
}

void Index::require_positions() const {
  require(!dry_, "an index in a dry arena holds no positions", size_, kept_);
}

Mask Index::mask() const {
  require_positions();
  switch (encoding_) {
    case Encoding::full:
      break;
    case Encoding::int32:
      return Mask::from_positions(size_, list(data_));
    case Encoding::delta:
      return Mask::from_positions(size_, positions());
    case Encoding::bitmap:
      return Mask::from_words(size_, words(data_));
  }
  return Mask(size_);
}

std::vector<int32_t> Index::positions() const {
  std::vector<int32_t> all(static_cast<size_t>(kept_));
  decode(0, all);
  return all;
}

void Index::decode(int64_t first, std::span<int32_t> out) const {
  require_positions();
  const auto count = static_cast<int64_t>(out.size());
  require(first >= 0 && first <= kept_ && count <= kept_ - first, "within the kept elements", first,
          count, kept_);
  switch (encoding_) {
    case Encoding::full:
      for (size_t k = 0; k < out.size(); ++k) {
        out[k] = static_cast<int32_t>(first + static_cast<int64_t>(k));
      }
      break;
    case Encoding::int32:
      std::ranges::copy(list(data_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                        out.begin());
      break;
    case Encoding::delta:
      delta_coding::decode(delta_view(data_, ranks_, kept_), first, out);
      break;
    case Encoding::bitmap:
      bitmap_coding::decode(words(data_), ranks(ranks_), first, out);
      break;
  }
}

kernels::Positions Index::view(std::span<int32_t> scratch) const {
  kernels::Positions positions{.size = size_, .count = kept_};
  switch (encoding_) {
    case Encoding::full:
      break;
    case Encoding::int32:
      positions.list = list(data_).data();
      break;
    case Encoding::delta:
      require(static_cast<int64_t>(scratch.size()) >= kept_, "scratch holds all positions",
              scratch.size(), kept_);
      if (!dry_) {
        decode(0, scratch.first(static_cast<size_t>(kept_)));
      }
      positions.list = kept_ == 0 ? &kNoPositions : scratch.data();
      break;
    case Encoding::bitmap:
      positions.bitmap = words(data_).data();
      positions.ranks = ranks(ranks_).data();
      break;
  }
  return positions;
}

int64_t Index::kept_before(int64_t dense) const {
  require_positions();
  require(dense >= 0 && dense <= size_, "within the parameter", dense, size_);
  if (kept_ == 0 || encoding_ == Encoding::full) {
    return kept_ == 0 ? 0 : dense;
  }
  if (encoding_ == Encoding::int32) {
    return int32_coding::kept_before(list(data_), dense);
  }
  return encoding_ == Encoding::delta
             ? delta_coding::kept_before(delta_view(data_, ranks_, kept_), dense)
             : bitmap_coding::kept_before(words(data_), ranks(ranks_), dense);
}

std::vector<uint8_t> Index::to_bytes() const {
  require_positions();
  if (encoding_ == Encoding::full) {
    return {};
  }
  const auto* begin = static_cast<const uint8_t*>(data_.tensor().data);
  return {begin, begin + data_.tensor().bytes()};
}

Index Index::from_bytes(Arena& arena, Encoding encoding, int64_t size, int64_t kept,
                        std::span<const uint8_t> bytes) {
  check_bytes(encoding, size, kept, bytes);
  Index index(size, kept, encoding);
  index.allocate(arena, bytes.size());
  if (index.dry_ || index.encoding_ == Encoding::full) {
    return index;
  }
  if (!bytes.empty()) {
    std::memcpy(index.data_.tensor().data, bytes.data(), bytes.size());
  }
  if (index.encoding_ == Encoding::delta) {
    delta_coding::build_restarts(index.data_.tensor().span<uint8_t>(), kept,
                                 restarts(index.ranks_));
  } else if (index.encoding_ == Encoding::bitmap) {
    bitmap_coding::build_ranks(words(index.data_), ranks(index.ranks_));
  }
  return index;
}

}  // namespace espalier::sparse
