#include "io/hdf5/chunks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "io/hdf5/heaps.h"

namespace espalier::io::hdf5 {
namespace {

constexpr int kMostLevels = 16;

uint64_t product(uint64_t a, uint64_t b) {
  expect(b == 0 || a <= std::numeric_limits<uint64_t>::max() / b,
         "a dataset has impossible extents");
  return a * b;
}

/// The places of chunks in a dataset: coordinates count chunks, `number` counts them row-major.
class Grid {
 public:
  explicit Grid(const Object& dataset) : layout_(dataset.layout) {
    const size_t rank = dataset.extents.size();
    expect(rank > 0 && layout_.chunk.size() == rank, "its chunks have another rank");
    chunk_bytes_ = dataset.datatype.bytes;
    for (size_t i = 0; i < rank; ++i) {
      const uint64_t chunk = layout_.chunk[i];
      const auto extent = static_cast<uint64_t>(dataset.extents[i]);
      expect(chunk > 0, "its chunks have no extent");
      chunk_bytes_ = product(chunk_bytes_, chunk);
      extents_.push_back(extent);
      counts_.push_back(extent / chunk + (extent % chunk != 0 ? 1 : 0));
      count_ = product(count_, counts_.back());
    }
    // Arrays are addressed by the largest extents, the unlimited dimension first.
    const auto& largest = dataset.largest;
    expect(largest.size() == rank, "its largest extents have another rank");
    order_.resize(rank);
    std::iota(order_.begin(), order_.end(), size_t{0});
    const auto unlimited = std::ranges::find(largest, kNowhere);
    if (unlimited != largest.end()) {
      const auto end = order_.begin() + (unlimited - largest.begin()) + 1;
      std::rotate(order_.begin(), end - 1, end);
    }
    for (const size_t i : order_) {
      const uint64_t most = largest[i];
      const uint64_t chunk = layout_.chunk[i];
      largest_.push_back(most == kNowhere ? kNowhere : most / chunk + (most % chunk != 0 ? 1 : 0));
    }
  }

  size_t rank() const { return counts_.size(); }
  uint64_t count() const { return count_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }

  /// None if the chunk lies beyond the extents (the dataset became smaller).
  std::optional<uint64_t> number(std::span<const uint64_t> coordinates) const {
    uint64_t number = 0;
    for (size_t i = 0; i < rank(); ++i) {
      if (coordinates[i] >= counts_[i]) {
        return std::nullopt;
      }
      number = number * counts_[i] + coordinates[i];
    }
    return number;
  }
  std::vector<uint64_t> coordinates(uint64_t number) const {
    std::vector<uint64_t> out(rank());
    for (size_t i = rank(); i-- > 0; number /= counts_[i]) {
      out[i] = number % counts_[i];
    }
    return out;
  }
  /// Of element `index` of an array of chunks.
  std::vector<uint64_t> coordinates_in_array(uint64_t index) const {
    std::vector<uint64_t> out(rank());
    for (size_t i = rank(); i-- > 1;) {
      expect(largest_[i] > 0 && largest_[i] != kNowhere, "its largest extents are impossible");
      out[order_[i]] = index % largest_[i];
      index /= largest_[i];
    }
    out[order_[0]] = index;
    return out;
  }
  /// The inverse.
  uint64_t array_index(std::span<const uint64_t> coordinates) const {
    uint64_t index = 0;
    for (size_t i = 0; i < rank(); ++i) {
      index =
          i == 0 ? coordinates[order_[0]] : product(index, largest_[i]) + coordinates[order_[i]];
    }
    return index;
  }
  /// Whether the chunk lies across the extents.
  bool is_cut(std::span<const uint64_t> coordinates) const {
    for (size_t i = 0; i < rank(); ++i) {
      if (layout_.chunk[i] > extents_[i] - coordinates[i] * layout_.chunk[i]) {
        return true;
      }
    }
    return false;
  }

 private:
  const Layout& layout_;
  std::vector<uint64_t> extents_, counts_, largest_;
  std::vector<size_t> order_;
  uint64_t count_ = 1, chunk_bytes_ = 0;
};

/// Reads an index; calls `found(coordinates, chunk)` for each chunk.
class IndexReader {
 public:
  using Found = std::function<void(std::span<const uint64_t>, Chunk)>;
  IndexReader(BoundedFile& file, const Object& dataset, const Grid& grid, const Found& found)
      : file_(file),
        layout_(dataset.layout),
        grid_(grid),
        found_(found),
        filtered_(!dataset.layout.filters.empty()) {}

  void read() {
    switch (layout_.index) {
      case ChunkIndex::tree1:
        read_tree(layout_.address, kMostLevels);
        return;
      case ChunkIndex::single:
        found_(std::vector<uint64_t>(grid_.rank()),
               {.address = layout_.address,
                .bytes = filtered_ ? layout_.single_bytes : grid_.chunk_bytes(),
                .skipped = layout_.single_skipped});
        return;
      case ChunkIndex::implicit:
        read_implicit();
        return;
      case ChunkIndex::fixed_array:
        read_fixed_array();
        return;
      case ChunkIndex::extensible_array:
        read_extensible_array();
        return;
      case ChunkIndex::tree2:
        read_records();
        return;
    }
  }

 private:
  /// Version 1 B-tree: keys are (bytes, skipped filters, offsets of elements in each dimension, 0).
  void read_tree(uint64_t address, int most_level) {
    const auto head_bytes = file_.read(address, 24);
    Cursor head(head_bytes);
    head.signature("TREE");
    expect(head.byte() == 1, "a tree of chunks is of another type");
    const int level = head.byte();
    expect(level <= most_level, "a tree of chunks has a wrong level");
    const uint64_t count = head.number(2);
    const size_t rank = grid_.rank();
    const uint64_t entry = 8 + 8 * (uint64_t{rank} + 1) + 8;
    const auto entries = file_.read(address + 24, count * entry);
    Cursor in(entries);
    std::vector<uint64_t> coordinates(rank);
    for (uint64_t i = 0; i < count; ++i) {
      Chunk chunk{.bytes = in.number(4)};
      chunk.skipped = static_cast<uint32_t>(in.number(4));
      bool aligned = true;
      for (size_t d = 0; d < rank; ++d) {
        const uint64_t offset = in.number(8);
        aligned = aligned && offset % layout_.chunk[d] == 0;
        coordinates[d] = offset / layout_.chunk[d];
      }
      in.skip(8);
      chunk.address = in.address();
      if (level > 0) {
        read_tree(chunk.address, level - 1);
      } else {
        expect(aligned, "a chunk is out of place");
        found_(coordinates, chunk);
      }
    }
  }

  void read_implicit() {
    const uint64_t bytes = grid_.chunk_bytes();
    expect(!filtered_ && product(grid_.count(), bytes) <= file_.size(),
           "its chunks are larger than the file");
    for (uint64_t number = 0; number < grid_.count(); ++number) {
      // The largest extents are those of the dataset or larger: places follow from these.
      const auto coordinates = grid_.coordinates(number);
      const uint64_t place = product(grid_.array_index(coordinates), bytes);
      expect(place <= file_.size(), "a chunk is out of place");
      found_(coordinates, {.address = layout_.address + place, .bytes = bytes});
    }
  }

  void read_records() {
    for_each_record(file_, layout_.address, [&](std::span<const uint8_t> record) {
      const size_t offsets = 8 * grid_.rank();
      Cursor in(record);
      Chunk chunk{.address = in.address(), .bytes = grid_.chunk_bytes()};
      if (filtered_) {
        expect(record.size() > 12 + offsets && record.size() <= 20 + offsets,
               "a record of a tree of chunks has another size");
        chunk.bytes = in.number(record.size() - 12 - offsets);
        chunk.skipped = static_cast<uint32_t>(in.number(4));
      } else {
        expect(record.size() == 8 + offsets, "a record of a tree of chunks has another size");
      }
      std::vector<uint64_t> coordinates;
      for (size_t d = 0; d < grid_.rank(); ++d) {
        coordinates.push_back(in.number(8));
      }
      found_(coordinates, chunk);
    });
  }

  void read_fixed_array() {
    const auto head_bytes = file_.checked(layout_.address, 28, "an array has a wrong checksum");
    Cursor head(head_bytes);
    head.signature("FAHD");
    const uint64_t page = read_array_head(head);
    const uint64_t count = head.number(8);
    const uint64_t block = head.address();
    if (block == kNowhere) {
      return;
    }
    constexpr uint64_t kPrefix = 4 + 1 + 1 + 8;
    const uint64_t entry = entry_bytes_;
    if (count <= page) {
      read_entries(block_of(block, kPrefix + product(count, entry) + 4, "FADB"), kPrefix, count, 0);
      return;
    }
    const uint64_t pages = (count - 1) / page + 1;
    const uint64_t bits = (pages + 7) / 8;
    const auto prefix = block_of(block, kPrefix + bits + 4, "FADB");
    read_pages(std::span(prefix).subspan(kPrefix), 0, block + kPrefix + bits + 4, count, page, 0);
  }

  void read_extensible_array() {
    const auto head_bytes = file_.checked(layout_.address, 72, "an array has a wrong checksum");
    Cursor head(head_bytes);
    head.signature("EAHD");
    expect(head.byte() == 0, "an array has an unknown version");
    check_client(head.byte());
    entry_bytes_ = head.byte();
    const uint64_t bits = head.byte();
    const uint64_t direct = head.byte();    // entries in the index block
    const uint64_t least = head.byte();     // entries of the smallest data block
    const uint64_t pointers = head.byte();  // least pointers of a secondary block
    const uint64_t page_bits = head.byte();
    check_entry();
    head.skip(6 * 8);
    const uint64_t index_block = head.address();
    expect(bits > 0 && bits <= 64 && std::has_single_bit(least) && std::has_single_bit(pointers) &&
               page_bits < 32 && static_cast<uint64_t>(std::countr_zero(least)) <= bits,
           "an array has impossible sizes");
    if (index_block == kNowhere) {
      return;
    }
    const uint64_t page = uint64_t{1} << page_bits;
    const uint64_t levels = 1 + bits - static_cast<uint64_t>(std::countr_zero(least));
    const uint64_t near = std::min(levels, 2 * static_cast<uint64_t>(std::countr_zero(pointers)));
    const uint64_t near_blocks = 2 * (pointers - 1);
    const uint64_t offset_bytes = (bits + 7) / 8;
    constexpr uint64_t kPrefix = 4 + 1 + 1 + 8;
    const auto bytes =
        block_of(index_block,
                 kPrefix + direct * entry_bytes_ + 8 * (near_blocks + levels - near) + 4, "EAIB");
    read_entries(bytes, kPrefix, direct, 0);
    Cursor in{std::span(bytes).subspan(static_cast<size_t>(kPrefix + direct * entry_bytes_))};
    uint64_t first = direct;
    const auto read_block = [&](uint64_t address, uint64_t count) {
      if (address != kNowhere) {
        const uint64_t prefix = kPrefix + offset_bytes;
        read_entries(block_of(address, prefix + product(count, entry_bytes_) + 4, "EADB"), prefix,
                     count, first);
      }
      first += count;
    };
    uint64_t seen = 0;
    for (uint64_t level = 0; level < near; ++level) {
      for (uint64_t i = 0; i < uint64_t{1} << (level / 2); ++i, ++seen) {
        expect(seen < near_blocks, "an array has impossible sizes");
        read_block(in.address(), least << ((level + 1) / 2));
      }
    }
    in.skip(8 * (near_blocks - seen));
    for (uint64_t level = near; level < levels; ++level) {
      const uint64_t blocks = uint64_t{1} << (level / 2);
      const uint64_t count = least << ((level + 1) / 2);
      const uint64_t address = in.address();
      if (address == kNowhere) {
        first += blocks * count;
        continue;
      }
      const uint64_t pages = count > page ? count / page : 0;
      const uint64_t flags = product(blocks, (pages + 7) / 8);
      const uint64_t prefix = kPrefix + offset_bytes;
      const auto second = block_of(address, prefix + flags + product(8, blocks) + 4, "EASB");
      const auto used = std::span(second).subspan(static_cast<size_t>(prefix));
      Cursor addresses{used.subspan(static_cast<size_t>(flags))};
      for (uint64_t i = 0; i < blocks; ++i) {
        const uint64_t block = addresses.address();
        if (pages == 0) {
          read_block(block, count);
          continue;
        }
        if (block != kNowhere) {
          block_of(block, prefix + 4, "EADB");
          read_pages(used.first(static_cast<size_t>(flags)), i * pages, block + prefix + 4, count,
                     page, first);
        }
        first += count;
      }
    }
  }

  /// Returns the number of entries in a page.
  uint64_t read_array_head(Cursor& head) {
    expect(head.byte() == 0, "an array has an unknown version");
    check_client(head.byte());
    entry_bytes_ = head.byte();
    check_entry();
    const uint64_t bits = head.byte();
    expect(bits < 64, "an array has impossible sizes");
    return uint64_t{1} << bits;
  }
  void check_client(uint8_t client) const {
    expect(client == (filtered_ ? 1 : 0), "an array is not of these chunks");
  }
  void check_entry() const {
    expect(filtered_ ? entry_bytes_ > 12 && entry_bytes_ <= 20 : entry_bytes_ == 8,
           "an array has entries of another size");
  }
  std::vector<uint8_t> block_of(uint64_t address, uint64_t bytes, std::string_view signature) {
    auto block = file_.checked(address, bytes, "a block of an array has a wrong checksum");
    Cursor in(block);
    in.signature(signature);
    expect(in.byte() == 0 && in.byte() == (filtered_ ? 1 : 0) && in.address() == layout_.address,
           "a block of an array is out of place");
    return block;
  }
  /// Pages of entries, each with a checksum. Bit `flag` + i of `used`, from the highest bit of a
  /// byte: page i was written.
  void read_pages(std::span<const uint8_t> used, uint64_t flag, uint64_t address, uint64_t count,
                  uint64_t page, uint64_t first) {
    for (uint64_t done = 0; done < count; done += page, ++flag) {
      const uint64_t entries = std::min(page, count - done);
      const uint64_t bytes = product(entries, entry_bytes_) + 4;
      const auto byte = static_cast<size_t>(flag / 8);
      expect(byte < used.size(), "an array has impossible sizes");
      if ((used[byte] & 0x80U >> flag % 8) != 0) {
        read_entries(file_.checked(address, bytes, "a page of an array has a wrong checksum"), 0,
                     entries, first + done);
      }
      address += bytes;
    }
  }
  void read_entries(const std::vector<uint8_t>& block, uint64_t prefix, uint64_t count,
                    uint64_t first) {
    Cursor in(block);
    in.skip(prefix);
    for (uint64_t i = 0; i < count; ++i) {
      Chunk chunk{.address = in.address(), .bytes = grid_.chunk_bytes()};
      if (filtered_) {
        chunk.bytes = in.number(static_cast<size_t>(entry_bytes_ - 12));
        chunk.skipped = static_cast<uint32_t>(in.number(4));
      }
      if (chunk.address != kNowhere) {
        found_(grid_.coordinates_in_array(first + i), chunk);
      }
    }
  }

  BoundedFile& file_;
  const Layout& layout_;
  const Grid& grid_;
  const Found& found_;
  bool filtered_;
  uint64_t entry_bytes_ = 0;
};

/// Copies the part of a chunk within the extents and within bytes [first, first + out.size()) of
/// the elements.
void place_chunk(const Object& dataset, std::span<const uint64_t> coordinates,
                 std::span<const uint8_t> bytes, uint64_t first, std::span<std::byte> out) {
  const size_t rank = dataset.extents.size();
  const uint64_t element = dataset.datatype.bytes;
  std::vector<uint64_t> start(rank), rows(rank), to_step(rank), from_step(rank), at(rank);
  uint64_t to = element;
  uint64_t from = element;
  for (size_t i = rank; i-- > 0;) {
    const auto extent = static_cast<uint64_t>(dataset.extents[i]);
    start[i] = coordinates[i] * dataset.layout.chunk[i];
    rows[i] = std::min(dataset.layout.chunk[i], extent - start[i]);
    to_step[i] = to;
    from_step[i] = from;
    to *= extent;
    from *= dataset.layout.chunk[i];
  }
  const uint64_t end = first + out.size();
  const uint64_t run = rows[rank - 1] * element;
  for (;;) {
    uint64_t source = 0;
    uint64_t target = 0;
    for (size_t i = 0; i < rank; ++i) {
      source += at[i] * from_step[i];
      target += (start[i] + at[i]) * to_step[i];
    }
    const uint64_t begin = std::max(target, first);
    const uint64_t stop = std::min(target + run, end);
    if (begin < stop) {
      std::memcpy(out.data() + (begin - first), bytes.data() + source + (begin - target),
                  static_cast<size_t>(stop - begin));
    }
    size_t i = rank - 1;
    while (i > 0 && ++at[i - 1] == rows[i - 1]) {
      at[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

}  // namespace

std::vector<Chunk> chunks_of(BoundedFile& file, const Object& dataset) {
  const Layout& layout = dataset.layout;
  const Grid grid(dataset);
  std::vector<Chunk> chunks;
  uint64_t stored = 0;
  const auto found = [&](std::span<const uint64_t> coordinates, Chunk chunk) {
    const auto number = grid.number(coordinates);
    if (!number) {
      return;
    }
    const bool whole = layout.unfiltered_edges && grid.is_cut(coordinates);
    chunk.number = *number;
    chunk.skipped = whole ? ~uint32_t{0} : chunk.skipped;
    stored += chunk.bytes;
    expect(chunk.bytes <= file.size() && stored <= file.size(),
           "its chunks have more bytes than the file");
    const auto all = static_cast<uint32_t>((uint64_t{1} << layout.filters.size()) - 1);
    const bool raw = (chunk.skipped & all) == all;
    expect(raw ? grid.chunk_bytes() == chunk.bytes
               : grid.chunk_bytes() / kMostExpansion <= chunk.bytes + 64,
           "a chunk claims more bytes than it can hold");
    chunks.push_back(chunk);
  };
  if (layout.address != kNowhere) {
    IndexReader(file, dataset, grid, found).read();
  }
  std::ranges::sort(chunks, {}, &Chunk::number);
  expect(std::ranges::adjacent_find(chunks, {}, &Chunk::number) == chunks.end(),
         "a chunk is stored twice");
  const double missing =
      static_cast<double>(grid.count() - chunks.size()) * static_cast<double>(grid.chunk_bytes());
  expect(missing <= static_cast<double>(file.size() + kFillSlack) ||
             dataset.count * static_cast<double>(dataset.datatype.bytes) <=
                 static_cast<double>(file.size() + kFillSlack),
         "most of its chunks were never written");
  return chunks;
}

void write_fill(const Object& dataset, uint64_t first, std::span<std::byte> out) {
  const auto& fill = dataset.fill;
  if (std::ranges::all_of(fill, [](uint8_t byte) { return byte == 0; })) {
    std::memset(out.data(), 0, out.size());
    return;
  }
  expect(fill.size() == dataset.datatype.bytes, "its fill value has another type");
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::byte>(fill[static_cast<size_t>((first + i) % fill.size())]);
  }
}

void read_chunks(BoundedFile& file, const Object& dataset, uint64_t first,
                 std::span<std::byte> out) {
  const Grid grid(dataset);
  if (dataset.chunks->size() < grid.count()) {
    write_fill(dataset, first, out);
  }
  for (const Chunk& chunk : *dataset.chunks) {
    const auto coordinates = grid.coordinates(chunk.number);
    std::vector<uint8_t> stored(static_cast<size_t>(chunk.bytes));
    file.copy(chunk.address, std::as_writable_bytes(std::span(stored)));
    const auto bytes =
        unfiltered(dataset.layout.filters, chunk.skipped, std::move(stored), grid.chunk_bytes());
    place_chunk(dataset, coordinates, bytes, first, out);
  }
}

}  // namespace espalier::io::hdf5
