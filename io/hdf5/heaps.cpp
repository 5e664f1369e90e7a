#include "io/hdf5/heaps.h"

#include <algorithm>
#include <bit>

namespace espalier::io::hdf5 {
namespace {

constexpr int kMaxDepth = 16;

/// Bytes that HDF5 takes for numbers up to `most`.
size_t bytes_for(uint64_t most) { return static_cast<size_t>(std::bit_width(most) - 1) / 8 + 1; }

uint64_t log2_of(uint64_t power) {
  expect(std::has_single_bit(power), "a size of a heap is no power of two");
  return static_cast<uint64_t>(std::countr_zero(power));
}

}  // namespace

FractalHeap::FractalHeap(BoundedFile& file, uint64_t address) : file_(file), address_(address) {
  const auto bytes = file.checked(address, 146, "a heap has a wrong checksum or is filtered");
  Cursor in(bytes);
  in.signature("FRHP");
  expect(in.byte() == 0, "a heap has an unknown version");
  in.skip(2);  // bytes of an id
  expect(in.number(2) == 0, "a heap is filtered");
  checksums_ = (in.byte() & 2) != 0;
  most_object_ = in.number(4);
  in.skip(12 * 8);  // huge objects, free space, statistics
  width_ = in.number(2);
  start_ = in.number(8);
  most_direct_ = in.number(8);
  const uint64_t bits = in.number(2);
  in.skip(2);  // rows at first
  root_ = in.address();
  rows_ = in.number(2);
  expect(width_ > 0 && width_ <= 1024 && bits > 0 && bits <= 64 && most_object_ > 0,
         "a heap has impossible sizes");
  direct_rows_ = log2_of(most_direct_) + 2;
  expect(log2_of(start_) <= log2_of(most_direct_) && most_direct_ <= uint64_t{1} << 32,
         "a heap has impossible sizes");
  direct_rows_ -= log2_of(start_);
  offset_bytes_ = static_cast<size_t>((bits + 7) / 8);
  length_bytes_ =
      std::min(static_cast<size_t>((log2_of(most_direct_) + 7) / 8), bytes_for(most_object_));
}

const std::vector<uint8_t>& FractalHeap::indirect(uint64_t address, uint64_t bytes) {
  const auto found = blocks_.find(address);
  return found != blocks_.end() ? found->second
                                : blocks_[address] = file_.checked(
                                      address, bytes, "a block of a heap has a wrong checksum");
}

const std::vector<uint8_t>& FractalHeap::direct(const Block& block) {
  const auto found = blocks_.find(block.address);
  if (found != blocks_.end()) {
    return found->second;
  }
  std::vector<uint8_t> bytes = file_.read(block.address, block.bytes);
  Cursor head(bytes);
  head.signature("FHDB");
  expect(
      head.byte() == 0 && head.address() == address_ && head.number(offset_bytes_) == block.offset,
      "a block of a heap is out of place");
  if (checksums_) {
    const uint64_t stated = head.number(4);
    std::fill_n(bytes.end() - static_cast<int64_t>(head.rest()) - 4, 4, uint8_t{0});
    expect(is_metadata_checksum(bytes, static_cast<uint32_t>(stated)),
           "a block of a heap has a wrong checksum");
  }
  return blocks_[block.address] = std::move(bytes);
}

FractalHeap::Block FractalHeap::find(uint64_t offset, uint64_t address, uint64_t base,
                                     uint64_t rows, int depth) {
  expect(depth < kMaxDepth && rows > 0 && rows < 64 && address != kNowhere,
         "a heap has an impossible block");
  const uint64_t entries = rows * width_;
  const uint64_t prefix = 5 + 8 + offset_bytes_;
  const auto& bytes = indirect(address, prefix + 8 * entries + 4);
  expect(bytes.size() == prefix + 8 * entries, "a heap has an impossible block");
  Cursor in(bytes);
  in.signature("FHIB");
  expect(in.byte() == 0 && in.address() == address_ && in.number(offset_bytes_) == base,
         "a block of a heap is out of place");
  uint64_t begin = base;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t length = row_bytes(row);
    for (uint64_t column = 0; column < width_; ++column, begin += length) {
      const uint64_t child = in.address();
      if (offset - begin >= length) {
        continue;
      }
      if (row < direct_rows_) {
        return {child, begin, length};
      }
      const uint64_t below = log2_of(length) - log2_of(start_) + 1;
      const uint64_t columns = static_cast<uint64_t>(std::bit_width(width_) - 1);
      expect(below > columns, "a heap has an impossible block");
      return find(offset, child, begin, below - columns, depth + 1);
    }
  }
  throw FormatError("an id lies beyond its heap");
}

std::vector<uint8_t> FractalHeap::object(std::span<const uint8_t> id) {
  Cursor in(id);
  expect(in.byte() == 0, "an object is not in the blocks of its heap");
  const uint64_t offset = in.number(offset_bytes_);
  const uint64_t length = in.number(length_bytes_);
  const Block block = rows_ == 0 ? Block{root_, 0, start_} : find(offset, root_, 0, rows_, 0);
  expect(block.address != kNowhere && offset - block.offset <= block.bytes &&
             length <= block.bytes - (offset - block.offset) && length <= most_object_,
         "an object lies beyond its heap");
  const std::vector<uint8_t>& bytes = direct(block);
  expect(bytes.size() == block.bytes, "a block of a heap is out of place");
  const auto first = bytes.begin() + static_cast<int64_t>(offset - block.offset);
  return {first, first + static_cast<int64_t>(length)};
}

namespace {

/// A version 2 B-tree: header, then nodes of one size.
class Tree {
 public:
  Tree(BoundedFile& file, uint64_t address, const std::function<void(std::span<const uint8_t>)>& fn)
      : file_(file), fn_(fn) {
    const auto bytes = file.checked(address, 38, "a tree has a wrong checksum");
    Cursor in(bytes);
    in.signature("BTHD");
    expect(in.byte() == 0, "a tree has an unknown version");
    type_ = in.byte();
    node_ = in.number(4);
    record_ = in.number(2);
    depth_ = in.number(2);
    in.skip(2);
    root_ = in.address();
    records_ = in.number(2);
    expect(record_ > 0 && node_ > 10 + record_ && node_ <= file.size() && depth_ < kMaxDepth,
           "a tree has impossible sizes");
    // The widths of counts follow from the most records that nodes hold. Source: H5B2hdr.c.
    uint64_t most = (node_ - 10) / record_;
    count_bytes_ = bytes_for(most);
    total_bytes_.push_back(0);
    for (uint64_t level = 1; level <= depth_; ++level) {
      const uint64_t pointer = 8 + count_bytes_ + total_bytes_.back();
      expect(node_ > 10 + pointer, "a tree has impossible sizes");
      const uint64_t inner = (node_ - 10 - pointer) / (record_ + pointer);
      expect(most < uint64_t{1} << 40 && inner > 0, "a tree has impossible sizes");
      most = (inner + 1) * most + inner;
      total_bytes_.push_back(bytes_for(most));
    }
  }
  void visit() {
    if (records_ > 0) {
      visit(root_, records_, depth_);
    }
  }

 private:
  void visit(uint64_t address, uint64_t count, uint64_t depth) {
    const uint64_t pointer =
        depth == 0 ? 0 : 8 + count_bytes_ + total_bytes_[static_cast<size_t>(depth - 1)];
    const uint64_t bytes = 6 + count * record_ + (depth == 0 ? 0 : (count + 1) * pointer) + 4;
    expect(bytes <= node_, "a node of a tree has too many records");
    const auto node = file_.checked(address, bytes, "a node of a tree has a wrong checksum");
    Cursor in(node);
    in.signature(depth == 0 ? "BTLF" : "BTIN");
    expect(in.byte() == 0 && in.byte() == type_, "a node of a tree has another type");
    const auto records = in.take(count * record_);
    for (uint64_t i = 0; i <= count; ++i) {
      if (depth > 0) {
        const uint64_t child = in.address();
        const uint64_t below = in.number(count_bytes_);
        in.skip(total_bytes_[static_cast<size_t>(depth - 1)]);
        visit(child, below, depth - 1);
      }
      if (i < count) {
        fn_(records.subspan(static_cast<size_t>(i * record_), static_cast<size_t>(record_)));
      }
    }
  }

  BoundedFile& file_;
  const std::function<void(std::span<const uint8_t>)>& fn_;
  uint64_t type_ = 0, node_ = 0, record_ = 0, depth_ = 0, root_ = 0, records_ = 0;
  size_t count_bytes_ = 0;
  std::vector<size_t> total_bytes_;  ///< by level of the parent - 1
};

struct SymbolTable {
  BoundedFile& file;
  std::vector<uint8_t> names;
  const std::function<void(Symbol)>& fn;

  std::string name_at(uint64_t offset) const {
    expect(offset < names.size(), "a name lies beyond its heap");
    const auto first = names.begin() + static_cast<int64_t>(offset);
    const auto end = std::find(first, names.end(), 0);
    expect(end != names.end(), "a name has no end");
    return {first, end};
  }
  void visit_symbols(uint64_t address) {
    const auto head_bytes = file.read(address, 8);
    Cursor head(head_bytes);
    head.signature("SNOD");
    head.skip(2);
    const uint64_t count = head.number(2);
    const auto entries = file.read(address + 8, count * 40);
    Cursor in(entries);
    for (uint64_t i = 0; i < count; ++i) {
      Symbol symbol{.name = name_at(in.number(8)), .object = in.address()};
      const bool soft = in.number(4) == 2;
      in.skip(4);
      const uint64_t target = in.number(4);
      in.skip(12);
      if (soft) {
        symbol.object.reset();
        symbol.target = name_at(target);
      }
      fn(std::move(symbol));
    }
  }
  void visit_tree(uint64_t address, int most_level) {
    const auto head_bytes = file.read(address, 24);
    Cursor head(head_bytes);
    head.signature("TREE");
    expect(head.byte() == 0, "a tree of a group is of another type");
    const int level = head.byte();
    expect(level <= most_level, "a tree of a group has a wrong level");
    const uint64_t count = head.number(2);
    const auto entries = file.read(address + 24, count * 16);
    Cursor in(entries);
    for (uint64_t i = 0; i < count; ++i) {
      in.skip(8);  // key
      const uint64_t child = in.address();
      if (level == 0) {
        visit_symbols(child);
      } else {
        visit_tree(child, level - 1);
      }
    }
  }
};

}  // namespace

void for_each_record(BoundedFile& file, uint64_t address,
                     const std::function<void(std::span<const uint8_t>)>& fn) {
  Tree(file, address, fn).visit();
}

void for_each_symbol(BoundedFile& file, uint64_t tree, uint64_t heap,
                     const std::function<void(Symbol)>& fn) {
  const auto head_bytes = file.read(heap, 32);
  Cursor head(head_bytes);
  head.signature("HEAP");
  head.skip(4);
  const uint64_t bytes = head.number(8);
  head.skip(8);
  const uint64_t address = head.address();
  SymbolTable{file, file.read(address, bytes), fn}.visit_tree(tree, kMaxDepth);
}

std::vector<uint8_t> global_object(BoundedFile& file, uint64_t address, uint64_t index) {
  const auto head_bytes = file.read(address, 16);
  Cursor head(head_bytes);
  head.signature("GCOL");
  head.skip(4);
  const uint64_t bytes = head.number(8);
  expect(bytes >= 16, "a heap of texts is too short");
  const auto all = file.read(address, bytes);
  Cursor in(all);
  in.skip(16);
  while (in.rest() >= 16) {
    const uint64_t number = in.number(2);
    in.skip(6);
    const uint64_t length = in.number(8);
    if (number == 0) {  // free space up to the end
      break;
    }
    const auto object = in.take(length);
    if (number == index) {
      return {object.begin(), object.end()};
    }
    in.skip(std::min<uint64_t>((8 - length % 8) % 8, in.rest()));
  }
  throw FormatError("a text is not in its heap");
}

}  // namespace espalier::io::hdf5
