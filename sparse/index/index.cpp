#include "sparse/index/index.h"

#include <algorithm>
#include <cstring>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

/// The list of an index that keeps nothing, for kernels: null would mean "all".
constexpr int32_t kNoPositions = 0;

/// Takes the header that files have before the data off `bytes`.
IndexShape read_shape(const Encoding& encoding, std::span<const uint8_t>& bytes) {
  ShapeRules::Header header{};
  check(bytes.size() >= sizeof(header), "{} index: {} bytes are too few for its shape",
        encoding.name, bytes.size());
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  const bool small = std::ranges::all_of(header, [](uint32_t x) { return x <= kMaxElements; });
  check(small, "{} index: its shape [{}] is too large", encoding.name, fmt::join(header, ", "));
  return encoding.rules->shape(header);
}

void check_shape(const Encoding& encoding, int64_t size, const IndexShape& shape) {
  if (encoding.rules != nullptr) {
    encoding.rules->check(size, shape);
  }
}

}  // namespace

Index::Index(int64_t size, int64_t kept, const Encoding& encoding, const IndexShape& shape)
    : encoding_(kept == size ? Encoding::full : encoding), size_(size), kept_(kept), shape_(shape) {
  check_planned_counts(size, kept);
  require(encoding_ != Encoding::full || kept == size, "a full index keeps everything", kept, size);
  check_shape(encoding_, size, shape);
}

Index::Index(Arena& arena, const Mask& mask, const Encoding& encoding, const IndexShape& shape)
    : Index(mask.size(), mask.kept(), encoding, shape) {
  if (encoding_ == Encoding::full) {
    return;
  }
  const Counts counts{size_, kept_, shape_};
  allocate(arena, encoding_.coding->exact_bytes(mask, counts));
  if (!dry_) {
    encoding_.coding->encode(mask, counts, data_.tensor().span<uint8_t>());
    build_prefix_counts();
  }
}

Index Index::full(int64_t size) { return {size, size, Encoding::full, {}}; }

Index Index::planned(Arena& arena, int64_t size, int64_t kept, const Encoding& encoding,
                     const IndexShape& shape) {
  Index index(size, kept, encoding, shape);
  if (index.encoding_ != Encoding::full) {
    const size_t prefix_counts =
        sizeof(uint32_t) *
        static_cast<size_t>(encoding.coding->prefix_counts_size({size, kept, shape}));
    index.allocate(arena, predicted_bytes(encoding, size, kept, shape) - prefix_counts);
    index.dry_ = true;
  }
  return index;
}

void Index::allocate(Arena& arena, size_t data_bytes) {
  dry_ = arena.dry();
  data_ =
      arena.allocate(Memory::index, "index", DType::uint8, Shape{static_cast<int64_t>(data_bytes)});
  prefix_counts_ =
      arena.allocate(Memory::index, "prefix counts of an index", DType::int32,
                     Shape{encoding_.coding->prefix_counts_size({size_, kept_, shape_})});
}

Coded Index::coded() const {
  if (encoding_ == Encoding::full) {
    return {.size = size_, .kept = kept_, .shape = shape_, .data = {}, .prefix_counts = {}};
  }
  return {
      .size = size_,
      .kept = kept_,
      .shape = shape_,
      .data = data_.tensor().span<const uint8_t>(),
      .prefix_counts = {reinterpret_cast<const uint32_t*>(prefix_counts_.tensor().get<int32_t>()),
                        static_cast<size_t>(prefix_counts_.tensor().count())}};
}

void Index::build_prefix_counts() {
  encoding_.coding->build_prefix_counts(
      coded(), {reinterpret_cast<uint32_t*>(prefix_counts_.tensor().get<int32_t>()),
                static_cast<size_t>(prefix_counts_.tensor().count())});
}

double Index::density() const {
  return size_ == 0 ? 1.0 : static_cast<double>(kept_) / static_cast<double>(size_);
}

size_t Index::bytes() const {
  return encoding_ == Encoding::full ? 0 : data_.tensor().bytes() + prefix_counts_.tensor().bytes();
}

void Index::require_positions() const {
  require(!dry_, "an index in a dry arena holds no positions", size_, kept_);
}

Mask Index::mask() const {
  require_positions();
  if (encoding_ == Encoding::full) {
    return Mask(size_);
  }
  std::vector<uint64_t> words(static_cast<size_t>(bitmap_coding::word_count(size_)));
  decode_words(0, words);
  return Mask::from_words(size_, words);
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
  encoding_.coding->decode(coded(), first, out);
}

void Index::decode_words(int64_t first, std::span<uint64_t> out) const {
  require_positions();
  const auto count = static_cast<int64_t>(out.size());
  require(first >= 0 && first + count <= bitmap_coding::word_count(size_), "within the parameter",
          first, count, size_);
  if (encoding_ == Encoding::full || encoding_ == Encoding::bitmap) {
    const Mask all(encoding_ == Encoding::full ? size_ : 0);
    const auto words = encoding_ == Encoding::full ? all.words() : coded().words();
    std::ranges::copy(words.subspan(static_cast<size_t>(first), out.size()), out.begin());
  } else {
    sparse::decode_words(*encoding_.coding, coded(), first, {out, {}});
  }
}

size_t Index::scratch_bytes(const Encoding& encoding, int64_t size) {
  if (encoding.kernel_form != KernelForm::decoded) {
    return 0;
  }
  return static_cast<size_t>(bitmap_coding::word_count(size)) * sizeof(uint64_t) +
         static_cast<size_t>(bitmap_coding::prefix_counts_size(size)) * sizeof(uint32_t);
}

kernels::Positions Index::view(std::span<uint8_t> scratch, int threads) const {
  kernels::Positions positions{.size = size_, .count = kept_};
  switch (encoding_.kernel_form) {
    case KernelForm::none:
      return positions;
    case KernelForm::list:
      positions.list =
          kept_ == 0 ? &kNoPositions : reinterpret_cast<const int32_t*>(coded().data.data());
      return positions;
    case KernelForm::bitmap:
      positions.bitmap = coded().words().data();
      positions.prefix_counts = coded().prefix_counts.data();
      return positions;
    case KernelForm::decoded:
      break;
  }
  require(scratch.size() >= scratch_bytes() && reinterpret_cast<uintptr_t>(scratch.data()) % 8 == 0,
          "scratch holds a bitmap and its prefix counts", scratch.size(), scratch_bytes());
  const int64_t count = bitmap_coding::word_count(size_);
  const std::span words(reinterpret_cast<uint64_t*>(scratch.data()), static_cast<size_t>(count));
  const std::span prefix_counts(reinterpret_cast<uint32_t*>(words.data() + words.size()),
                                static_cast<size_t>(bitmap_coding::prefix_counts_size(size_)));
  if (!dry_) {
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < threads; ++part) {
      const auto blocks = static_cast<int64_t>(prefix_counts.size());
      const auto first = static_cast<size_t>(blocks * part / threads);
      const auto end = static_cast<size_t>(blocks * (part + 1) / threads);
      const size_t first_word = first * bitmap_coding::kWordsPerCount;
      const size_t end_word = std::min(words.size(), end * bitmap_coding::kWordsPerCount);
      sparse::decode_words(*encoding_.coding, coded(), static_cast<int64_t>(first_word),
                           {words.subspan(first_word, end_word - first_word),
                            prefix_counts.subspan(first, end - first)});
    }
  }
  positions.bitmap = words.data();
  positions.prefix_counts = prefix_counts.data();
  return positions;
}

int64_t Index::kept_before(int64_t dense) const {
  require_positions();
  require(dense >= 0 && dense <= size_, "within the parameter", dense, size_);
  return kept_ == 0 ? 0 : encoding_.coding->kept_before(coded(), dense);
}

std::vector<uint8_t> Index::to_bytes() const {
  require_positions();
  std::vector<uint8_t> bytes;
  if (encoding_ == Encoding::full) {
    return bytes;
  }
  if (encoding_.rules != nullptr) {
    const ShapeRules::Header header = encoding_.rules->header(shape_);
    bytes.resize(sizeof(header));
    std::memcpy(bytes.data(), header.data(), sizeof(header));
  }
  const auto data = coded().data;
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

Index Index::from_bytes(Arena& arena, const Encoding& encoding, int64_t size, int64_t kept,
                        std::span<const uint8_t> bytes) {
  check_counts(size, kept);
  IndexShape shape;
  if (encoding.rules != nullptr) {
    shape = read_shape(encoding, bytes);
  }
  check_shape(encoding, size, shape);
  encoding.coding->check(
      {.size = size, .kept = kept, .shape = shape, .data = bytes, .prefix_counts = {}});
  Index index(size, kept, encoding, shape);
  if (index.encoding_ == Encoding::full) {
    return index;
  }
  index.allocate(arena, bytes.size());
  if (!index.dry_) {
    std::ranges::copy(bytes, index.data_.tensor().span<uint8_t>().begin());
    index.build_prefix_counts();
  }
  return index;
}

}  // namespace espalier::sparse
