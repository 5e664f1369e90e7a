// Entropy code of a mask: every element is a bit of an arithmetic code whose
// probability is learnt, by context, while coding. All contexts begin at the density kept / size,
// so that a random mask costs its entropy and little for learning.
//
// Context of an element of a row of `cols`: how dense its column has been so far, how dense its row
// has been so far (7 classes each, around the density of all), whether the element to the left and
// the one above are kept. Of an N:M mask: its place in the group of m, and how many of the group
// are kept so far. The bytes begin with cols (4 bytes) and m (1 byte; 0: no groups).
// Counters after lpaq's (Mahoney 2007): rate 1/n, at least 1/1024.
//
// Arithmetic code: a run of bits, each with a probability that encoder and decoder both know, takes
// the sum of their -log2 in bits (and at most one byte more). The code is a number in [low, low +
// range) of an interval that each bit divides; 64 bits of it are at hand, the upper 32 leave when
// range < 2^32. The end is the shortest number of bytes that, followed by zeros, lies in the
// interval: so one run of bits has one code. Source: Martin, "Range encoding", 1979; carry into
// bytes already written as in Schindler, 1998.
#include <algorithm>
#include <array>
#include <cstring>

#include "sparse/index/registry.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

constexpr std::string_view kName = "entropy index";
constexpr size_t kHeaderBytes = 5;
constexpr int64_t kMaxPlaces = 64;
/// Columns of the model, at most: their counters take 8 bytes each.
constexpr int64_t kMaxCols = int64_t{1} << 24;
/// Without columns, rows of that many: a change of density along the array then shows in the row.
constexpr int64_t kDefaultCols = 4096;
/// Elements that one bit of code can stand for, at most: -1 / log2(1 - 2^-20).
constexpr int64_t kElementsPerBit = 726'818;

/// Probabilities are in units of 2^-kProbabilityBits, from 1 to 2^kProbabilityBits - 1.
constexpr int kProbabilityBits = 20;

/// The part of the last interval that goes into a file.
struct CodeEnd {
  uint64_t value;
  int bytes;
};
CodeEnd shortest_in(uint64_t low, uint64_t range) {
  for (int bytes = 0; bytes < 8; ++bytes) {
    const uint64_t rest = ~uint64_t{0} >> (8 * bytes);
    const uint64_t up = (0 - low) & rest;  // from low to the next value with zeros below
    if (up < range) {
      return {low + up, bytes};
    }
  }
  return {low, 8};
}

class RangeEncoder {
 public:
  /// `one`: probability that `bit` is set.
  void put(bool bit, uint32_t one) {
    const uint64_t bound = (range_ >> kProbabilityBits) * one;
    if (bit) {
      range_ = bound;
    } else {
      low_ += bound;
      if (low_ < bound) {
        carry();
      }
      range_ -= bound;
    }
    if (range_ <= 0xffffffffU) {
      emit(4);
      range_ <<= 32;
    }
  }
  std::vector<uint8_t> finish() {
    const CodeEnd end = shortest_in(low_, range_);
    if (end.value < low_) {
      carry();
    }
    low_ = end.value;
    emit(end.bytes);
    return std::move(bytes_);
  }

 private:
  /// Takes the upper `count` bytes off, high ones first.
  void emit(int count) {
    for (int i = 0; i < count; ++i) {
      bytes_.push_back(static_cast<uint8_t>(low_ >> 56));
      low_ <<= 8;
    }
  }
  void carry() {
    for (size_t i = bytes_.size(); i-- > 0 && ++bytes_[i] == 0;) {
    }
  }

  uint64_t low_ = 0;
  uint64_t range_ = ~uint64_t{0};
  std::vector<uint8_t> bytes_;
};

/// Throws Failure that begins with `what` when the bytes are no code.
class RangeDecoder {
 public:
  RangeDecoder(std::span<const uint8_t> bytes, std::string_view what) : bytes_(bytes), what_(what) {
    code_ = next(8);
  }
  bool get(uint32_t one) {
    const uint64_t bound = (range_ >> kProbabilityBits) * one;
    const bool bit = code_ < bound;
    if (bit) {
      range_ = bound;
    } else {
      code_ -= bound;
      range_ -= bound;
    }
    if (range_ <= 0xffffffffU) {
      taken_ += 4;
      check(taken_ <= bytes_.size(), "{}: the bytes end too early", what_);
      code_ = (code_ << 32) | next(4);
      range_ <<= 32;
    }
    return bit;
  }
  /// The bytes must be those that the encoder would have ended with.
  void finish() const {
    // code = value - low, so low is known again.
    const uint64_t value = big_end(taken_, 8);
    const CodeEnd end = shortest_in(value - code_, range_);
    check(bytes_.size() == taken_ + static_cast<size_t>(end.bytes) && value == end.value,
          "{}: {} bytes, the code has {} or ends otherwise", what_, bytes_.size(),
          taken_ + static_cast<size_t>(end.bytes));
  }

 private:
  /// Bytes [at, at + count) as a number, high ones first; zeros beyond the end.
  uint64_t big_end(size_t at, int count) const {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) {
      const size_t byte = at + static_cast<size_t>(i);
      value = value << 8 | (byte < bytes_.size() ? bytes_[byte] : 0);
    }
    return value;
  }
  uint64_t next(int count) {
    const uint64_t value = big_end(read_, count);
    read_ += static_cast<size_t>(count);
    return value;
  }

  std::span<const uint8_t> bytes_;
  std::string_view what_;
  size_t taken_ = 0;  ///< bytes that have left the interval
  size_t read_ = 0;
  uint64_t code_ = 0;
  uint64_t range_ = ~uint64_t{0};
};

/// Probability 1, in units of 2^-32.
constexpr uint64_t kOne = 0xffffffff;

/// A probability of one, of 2^32.
struct Counter {
  uint32_t one = 0;
  uint32_t seen = 0;
};

class CounterSet {
 public:
  CounterSet(size_t count, uint32_t first) : counters_(count, Counter{first, kFirstSeen}) {
    for (size_t n = 0; n < rate_.size(); ++n) {
      rate_[n] = static_cast<uint32_t>(65536 * 2 / (2 * n + 3));
    }
  }
  uint32_t probability(size_t context) const {
    const uint32_t one = counters_[context].one >> (32 - kProbabilityBits);
    return std::clamp(one, 1U, (1U << kProbabilityBits) - 1);
  }
  void update(size_t context, bool bit) {
    Counter& counter = counters_[context];
    const int64_t target = bit ? kOne : 0;
    const int64_t step = (target - counter.one) * rate_[counter.seen];
    counter.one = static_cast<uint32_t>(counter.one + (step >> 16));
    counter.seen += counter.seen < kMaxSeen ? 1 : 0;
  }

 private:
  static constexpr uint32_t kFirstSeen = 32;  // the density is known before any element is
  static constexpr uint32_t kMaxSeen = 1023;
  std::vector<Counter> counters_;
  std::array<uint32_t, kMaxSeen + 1> rate_;
};

/// Seven classes of densities, by their ratio to that of the whole mask.
class Classes {
 public:
  explicit Classes(uint32_t density) {
    constexpr std::array<uint64_t, 6> kRatios{90, 154, 218, 302, 422, 717};  // of 256
    for (size_t i = 0; i < kRatios.size(); ++i) {
      bounds_[i] = static_cast<uint32_t>(std::min<uint64_t>(kRatios[i] * density >> 8, kOne));
    }
  }
  static constexpr size_t kCount = 7;
  size_t operator()(uint32_t density) const {
    size_t found = 0;
    for (const uint32_t bound : bounds_) {
      found += density > bound ? 1 : 0;
    }
    return found;
  }

 private:
  std::array<uint32_t, 6> bounds_{};
};

uint32_t density_of(int64_t size, int64_t kept) {
  return static_cast<uint32_t>(kept * kOne / std::max<int64_t>(size, 1));
}

/// Over the rows of a matrix; code(element, context) codes the bit and returns it.
template <class Code>
void for_each_element(int64_t size, uint32_t density, int64_t cols, Code&& code) {
  const Classes classes(density);
  struct Column {
    uint32_t density;
    uint32_t above;
  };
  std::vector<Column> columns(static_cast<size_t>(cols), Column{density, 0});
  constexpr int64_t kRowPrior = 32;  // elements that the density of all counts for
  constexpr int64_t kRowEvery = 16;  // elements between updates of the class of the row
  constexpr int64_t kLongest = 256;  // rows that the density of a column is a mean of
  for (int64_t row = 0; row * cols < size; ++row) {
    const int64_t length = std::min(cols, size - row * cols);
    const auto rate = static_cast<int64_t>(65536 / (std::min(row, kLongest) + 8));
    int64_t kept = 0;
    size_t row_class = classes(density);
    size_t left = 0;
    for (int64_t c = 0; c < length; ++c) {
      if (c % kRowEvery == 0) {
        const int64_t prior = static_cast<int64_t>(density) * kRowPrior;
        row_class = classes(static_cast<uint32_t>((kept * kOne + prior) / (c + kRowPrior)));
      }
      Column& column = columns[static_cast<size_t>(c)];
      const size_t context =
          ((classes(column.density) * Classes::kCount + row_class) * 2 + left) * 2 + column.above;
      const bool bit = code(row * cols + c, context);
      const int64_t target = bit ? kOne : 0;
      column.density =
          static_cast<uint32_t>(column.density + (((target - column.density) * rate) >> 16));
      column.above = bit ? 1 : 0;
      left = column.above;
      kept += bit ? 1 : 0;
    }
  }
}

/// The same where groups of m are known.
template <class Code>
void for_each_place(int64_t size, int64_t cols, int64_t m, Code&& code) {
  for (int64_t begin = 0; begin < size; begin += cols) {
    const int64_t length = std::min(cols, size - begin);
    int64_t place = 0;
    int64_t kept = 0;
    for (int64_t c = 0; c < length; ++c) {
      const bool bit = code(begin + c, static_cast<size_t>(place * (m + 1) + kept));
      kept += bit ? 1 : 0;
      if (++place == m) {
        place = kept = 0;
      }
    }
  }
}

struct Header {
  uint32_t cols = 0;
  uint8_t m = 0;
};

/// Calls code(element, probability of one) -> bit for all elements in order.
template <class Code>
void run_model(int64_t size, int64_t kept, Header header, Code&& code) {
  const uint32_t density = density_of(size, kept);
  const size_t contexts = header.m == 0 ? Classes::kCount * Classes::kCount * 4
                                        : static_cast<size_t>(header.m) * (header.m + 1U);
  CounterSet counters(contexts, density);
  const auto next = [&](int64_t element, size_t context) {
    const bool bit = code(element, counters.probability(context));
    counters.update(context, bit);
    return bit;
  };
  if (header.m == 0) {
    for_each_element(size, density, header.cols, next);
  } else {
    for_each_place(size, header.cols, header.m, next);
  }
}

double expected_bytes(const Counts& counts) {
  return entropy_bound_bytes(counts.size, counts.kept);
}

std::vector<uint8_t> encode(const Mask& mask, const IndexShape& shape) {
  const int64_t cols = shape.cols > 0 && shape.cols <= kMaxCols ? shape.cols : kDefaultCols;
  const Header header{static_cast<uint32_t>(std::clamp<int64_t>(mask.size(), 1, cols)),
                      static_cast<uint8_t>(Encoding::nm.rules->holds(mask, shape) ? shape.m : 0)};
  RangeEncoder encoder;
  run_model(mask.size(), mask.kept(), header, [&](int64_t element, uint32_t one) {
    const bool bit = mask[element];
    encoder.put(bit, one);
    return bit;
  });
  std::vector<uint8_t> bytes(kHeaderBytes);
  std::memcpy(bytes.data(), &header.cols, sizeof(header.cols));
  bytes[4] = header.m;
  const std::vector<uint8_t> code = encoder.finish();
  bytes.insert(bytes.end(), code.begin(), code.end());
  return bytes;
}

Mask decode(int64_t size, int64_t kept, std::span<const uint8_t> bytes) {
  check_counts(size, kept);
  check(bytes.size() >= kHeaderBytes, "{}: {} bytes are too few for its header", kName,
        bytes.size());
  Header header;
  std::memcpy(&header.cols, bytes.data(), sizeof(header.cols));
  header.m = bytes[4];
  check(header.cols >= 1 && header.cols <= std::clamp<int64_t>(size, 1, kMaxCols) &&
            header.m <= kMaxPlaces,
        "{}: rows of {} elements and groups of {} in {} elements", kName, header.cols, header.m,
        size);
  const auto code = bytes.subspan(kHeaderBytes);
  check(size / kElementsPerBit <= static_cast<int64_t>(code.size()) * 8 + 64,
        "{}: {} bytes are too few for {} elements", kName, code.size(), size);
  RangeDecoder decoder(code, kName);
  std::vector<uint64_t> words(static_cast<size_t>(bitmap_coding::word_count(size)));
  run_model(size, kept, header, [&](int64_t element, uint32_t one) {
    const bool bit = decoder.get(one);
    words[static_cast<size_t>(element / 64)] |= static_cast<uint64_t>(bit) << (element % 64);
    return bit;
  });
  decoder.finish();
  const int64_t found = count_ones(words);
  check(found == kept, "{}: {} elements are kept, but {} should be", kName, found, kept);
  return Mask::from_words(size, words);
}

constexpr FileCoding kFileCoding{
    .expected_bytes = expected_bytes, .encode = encode, .decode = decode};

}  // namespace

constinit const Encoding Encoding::entropy{
    .name = "entropy",
    .help = "arithmetic code with contexts, within 1 % of the entropy; in files only",
    .file = &kFileCoding};

}  // namespace espalier::sparse
