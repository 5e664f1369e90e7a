// N:M masks: for each group of m consecutive elements of a row (the last one of a row may be
// shorter) the places of at most n kept ones, ascending, ceil(log2 m) bits each; 2:4 takes the four
// bits that NVIDIA's sparse tensor cores take. A group that keeps fewer ends its list early: the
// last place is repeated; an empty one reads 1, 0, 0, ... With n = 1 there is nothing to repeat:
// places then have bit_width(m) bits, and m means none. prefix_counts[j] = kept elements before
// group kPerCount * j. Source: Mishra et al., "Accelerating sparse deep neural networks", 2021,
// section 3.
#include <algorithm>
#include <array>

#include "sparse/index/bit_stream.h"
#include "sparse/index/index.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr int64_t kPerCount = 128;
constexpr int kMaxBits = 56;    // of a group: one load reads them from any bit
constexpr int kTableBits = 8;   // groups of that many bits are looked up
constexpr int kMaxPlaces = 64;  // m: the kept elements of a group are the bits of a word

/// Groups of a matrix, and the code of one.
struct Groups {
  int n, m;
  int place_bits;
  int64_t cols, per_row, count;

  explicit Groups(int64_t size, const IndexShape& shape)
      : n(shape.n),
        m(shape.m),
        place_bits(std::bit_width(static_cast<unsigned>(n == 1 ? m : m - 1))),
        cols(shape.cols),
        per_row((cols + m - 1) / m),
        count(size / cols * per_row) {}

  int bits() const { return n * place_bits; }
  int64_t first_position(int64_t group) const {
    return group / per_row * cols + group % per_row * m;
  }
  /// Elements of a group: fewer at the end of a row.
  int length(int64_t group) const {
    return static_cast<int>(std::min<int64_t>(m, cols - group % per_row * m));
  }

  uint64_t encode(uint64_t kept) const {
    if (kept == 0) {
      return n == 1 ? static_cast<uint64_t>(m) : 1;
    }
    uint64_t code = 0;
    uint64_t place = 0;
    for (int i = 0; i < n; ++i) {
      if (kept != 0) {
        place = static_cast<uint64_t>(std::countr_zero(kept));
        kept &= kept - 1;
      }
      code |= place << (i * place_bits);
    }
    return code;
  }
  uint64_t decode(uint64_t code) const {
    const uint64_t mask = low_mask(place_bits);
    uint64_t last = code & mask;
    if (n == 1) {
      return last >= static_cast<uint64_t>(m) ? 0 : uint64_t{1} << last;
    }
    uint64_t kept = uint64_t{1} << last;
    for (int i = 1; i < n; ++i) {
      const uint64_t place = (code >> (i * place_bits)) & mask;
      if (place <= last) {
        return place < last ? 0 : kept;
      }
      kept |= uint64_t{1} << place;
      last = place;
    }
    return kept;
  }
};

/// Reads groups one after the other; short codes through a table.
class GroupReader {
 public:
  GroupReader(const Coded& coded, const Groups& groups) : data_(coded.data), groups_(groups) {
    for (uint64_t code = 0; tabled() && code <= low_mask(groups.bits()); ++code) {
      table_[code] = groups.decode(code);
    }
  }
  uint64_t operator()(int64_t group) const {
    const uint64_t code = load_bits(data_, group * groups_.bits()) & low_mask(groups_.bits());
    return tabled() ? table_[code] : groups_.decode(code);
  }

 private:
  bool tabled() const { return groups_.bits() <= kTableBits; }
  std::span<const uint8_t> data_;
  const Groups& groups_;
  std::array<uint64_t, 1 << kTableBits> table_;
};

/// The bits of `mask` that belong to a group.
uint64_t kept_of(const Mask& mask, const Groups& groups, int64_t group) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(mask.words().data()),
                                       mask.words().size_bytes());
  const int64_t begin = groups.first_position(group);
  uint64_t bits = load_bits(bytes, begin);
  if (groups.m > 57) {  // more than one load gives for sure
    bits = (bits & low_mask(32)) | load_bits(bytes, begin + 32) << 32;
  }
  return bits & low_mask(groups.length(group));
}

size_t exact_bytes(const Mask&, const Counts& counts) {
  const Groups groups(counts.size, counts.shape);
  return word_bytes(groups.count * groups.bits());
}

int64_t prefix_counts_size(const Counts& counts) {
  return (Groups(counts.size, counts.shape).count + kPerCount - 1) / kPerCount;
}

void check_shape(int64_t size, const IndexShape& shape) {
  check(shape.cols > 0 && size % shape.cols == 0,
        "nm index: {} elements are no rows of {}: it needs the columns of the matrix", size,
        shape.cols);
  check(shape.m >= 2 && shape.m <= kMaxPlaces && shape.n >= 1 && shape.n <= shape.m,
        "nm index: {} of {} elements: n lies in 1 to m, m in 2 to {}", shape.n, shape.m,
        kMaxPlaces);
  check(Groups(size, shape).bits() <= kMaxBits,
        "nm index: {} of {} elements take more than {} bits a group: use bitmap", shape.n, shape.m,
        kMaxBits);
}

void encode(const Mask& mask, const Counts& counts, std::span<uint8_t> data) {
  const Groups groups(counts.size, counts.shape);
  BitWriter out(data);
  for (int64_t group = 0; group < groups.count; ++group) {
    const uint64_t kept = kept_of(mask, groups, group);
    check(std::popcount(kept) <= groups.n,
          "nm index: {} elements are kept in the group of {} at {}, more than {}: the mask is not "
          "{}:{}, use another encoding",
          std::popcount(kept), groups.m, groups.first_position(group), groups.n, groups.n,
          groups.m);
    out.put(groups.encode(kept), groups.bits());
  }
  out.finish();
}

void check_data(const Coded& coded) {
  const Groups groups(coded.size, coded.shape);
  check_words("nm index", coded.data, groups.count * groups.bits());
  int64_t kept = 0;
  for (int64_t group = 0; group < groups.count; ++group) {
    const uint64_t code = load_bits(coded.data, group * groups.bits()) & low_mask(groups.bits());
    const uint64_t bits = groups.decode(code);
    check(groups.encode(bits) == code && (bits & ~low_mask(groups.length(group))) == 0,
          "nm index: group {} is no list of at most {} ascending places below {}", group, groups.n,
          groups.length(group));
    kept += std::popcount(bits);
  }
  check(kept == coded.kept, "nm index: {} elements are listed, but {} should be kept", kept,
        coded.kept);
}

void build_prefix_counts(const Coded& coded, std::span<uint32_t> prefix_counts) {
  const Groups groups(coded.size, coded.shape);
  const GroupReader read(coded, groups);
  int64_t kept = 0;
  for (int64_t group = 0; group < groups.count; ++group) {
    if (group % kPerCount == 0) {
      prefix_counts[static_cast<size_t>(group / kPerCount)] = static_cast<uint32_t>(kept);
    }
    kept += std::popcount(read(group));
  }
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  if (out.empty()) {
    return;
  }
  const Groups groups(coded.size, coded.shape);
  const GroupReader read(coded, groups);
  const auto entry =
      std::ranges::upper_bound(coded.prefix_counts, first) - coded.prefix_counts.begin() - 1;
  int64_t group = entry * kPerCount;
  int64_t skip = first - coded.prefix_counts[static_cast<size_t>(entry)];
  int64_t column = group % groups.per_row;
  auto row = static_cast<int32_t>(group / groups.per_row * groups.cols);
  for (size_t done = 0; done < out.size(); ++group) {
    uint64_t kept = read(group);
    for (; kept != 0 && skip > 0; --skip) {
      kept &= kept - 1;
    }
    const auto base = row + static_cast<int32_t>(column) * groups.m;
    for (; kept != 0 && done < out.size(); kept &= kept - 1) {
      out[done++] = base + std::countr_zero(kept);
    }
    if (++column == groups.per_row) {
      column = 0;
      row += static_cast<int32_t>(groups.cols);
    }
  }
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  const Groups groups(coded.size, coded.shape);
  const GroupReader read(coded, groups);
  const int64_t column = dense % groups.cols;
  const int64_t end = dense / groups.cols * groups.per_row + column / groups.m;
  const int64_t entry =
      std::min(end / kPerCount, static_cast<int64_t>(coded.prefix_counts.size()) - 1);
  int64_t before = coded.prefix_counts[static_cast<size_t>(entry)];
  for (int64_t group = entry * kPerCount; group < end; ++group) {
    before += std::popcount(read(group));
  }
  const auto within = static_cast<int>(column % groups.m);
  return within == 0 ? before : before + std::popcount(read(end) & low_mask(within));
}

bool possible(int64_t size, const IndexShape& shape) {
  const bool known = shape.cols > 0 && size % shape.cols == 0 && shape.n >= 1 && shape.m >= 2 &&
                     shape.n < shape.m && shape.m <= kMaxPlaces;
  return known && Groups(size, shape).bits() <= kMaxBits;
}

bool holds(const Mask& mask, const IndexShape& shape) {
  if (!possible(mask.size(), shape)) {
    return false;
  }
  const Groups groups(mask.size(), shape);
  for (int64_t group = 0; group < groups.count; ++group) {
    if (std::popcount(kept_of(mask, groups, group)) > groups.n) {
      return false;
    }
  }
  return true;
}

ShapeRules::Header header(const IndexShape& shape) {
  return {static_cast<uint32_t>(shape.cols), static_cast<uint32_t>(shape.n),
          static_cast<uint32_t>(shape.m)};
}

IndexShape shape_in(const ShapeRules::Header& header) {
  return {.cols = header[0], .n = static_cast<int>(header[1]), .m = static_cast<int>(header[2])};
}

constexpr ShapeRules kRules{.possible = possible,
                            .holds = holds,
                            .check = check_shape,
                            .header = header,
                            .shape = shape_in};

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .prefix_counts_size = prefix_counts_size,
                         .encode = encode,
                         .check = check_data,
                         .build_prefix_counts = build_prefix_counts,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::nm{
    .name = "nm",
    .help = "N:M masks: the places of the kept elements in each group of m",
    .coding = &kCoding,
    .rules = &kRules};

}  // namespace espalier::sparse
