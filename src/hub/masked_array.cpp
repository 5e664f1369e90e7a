#include "src/hub/masked_array.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "io/safetensors/numbers.h"

namespace espalier::hub {
namespace {

constexpr size_t kWordBits = 64;
constexpr int64_t kWordsPerCount = 8;

/// Calls `body` with an unsigned integer as wide as the type.
template <class Body>
auto with_bits(DType dtype, const Body& body) {
  return size_of(dtype) == sizeof(uint16_t) ? body(uint16_t{0}) : body(uint32_t{0});
}

template <class Bits>
std::span<Bits> bits_of(const Tensor& tensor) {
  return {static_cast<Bits*>(tensor.data), static_cast<size_t>(tensor.count())};
}

/// Of fp32, bf16 and fp16, the zeros are those whose bits below the sign are 0.
template <class Bits>
constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);

template <class Bits>
bool is_nonzero(Bits bits) {
  return (bits & kMagnitude<Bits>) != 0;
}

/// The range of a type.
struct Range {
  uint32_t infinite;         ///< bits of infinity
  std::string_view largest;  ///< its largest number
  std::string_view advice;   ///< what to do about larger values
};

Range range_of(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return {0x7c00, "65,504", "choose --dtype bf16 or fp32"};
    case DType::bf16:
      return {0x7f80, "3.39e38", "choose --dtype fp32, or correct the values"};
    default:
      return {0x7f800000, "3.40e38", "correct the values"};
  }
}

/// Bit i: x[i] is not zero, of 64 elements.
template <class Bits>
uint64_t nonzero_of(const Bits* x) {
  constexpr size_t kLanes = sizeof(uint64_t) / sizeof(Bits);
  constexpr int kWidth = 8 * sizeof(Bits);
  constexpr uint64_t kOnes = ~uint64_t{0} / static_cast<Bits>(~Bits{0});  // 1 in each lane
  constexpr uint64_t kBelow = kOnes * kMagnitude<Bits>;
  uint64_t word = 0;
  for (size_t i = 0; i < kWordBits; i += kLanes) {
    uint64_t lanes = 0;
    std::memcpy(&lanes, x + i, sizeof(lanes));
    // A sum of bits below the sign reaches the sign's bit if they are not all 0.
    const uint64_t flags = (((lanes & kBelow) + kBelow) >> (kWidth - 1)) & kOnes;
    uint64_t bits = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      bits |= flags >> (lane * (kWidth - 1));
    }
    word |= (bits & ((1U << kLanes) - 1)) << i;
  }
  return word;
}

}  // namespace

void convert_elements(const Tensor& from, const Tensor& to) {
  require(from.count() == to.count(), "arrays have equally many elements", from.count(),
          to.count());
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, from.bytes());
    return;
  }
  io::decode_numbers(io::type_with_bits(from.dtype),
                     {static_cast<const std::byte*>(from.data), from.bytes()}, to);
}

void check_rounded(const Tensor& values, const std::string& name, std::string_view advice) {
  const Range range = range_of(values.dtype);
  const bool finite = with_bits(values.dtype, [&]<class Bits>(Bits) {
    const auto infinite = static_cast<Bits>(range.infinite);
    // Counted, not found: the loop has no early end and is vectorized.
    int64_t count = 0;
    for (const Bits x : bits_of<const Bits>(values)) {
      count += (x & kMagnitude<Bits>) == infinite ? 1 : 0;
    }
    return count == 0;
  });
  check(finite, "{} has values beyond {}, the largest of {}, or infinite ones; {}", name,
        range.largest, name_of(values.dtype), advice.empty() ? range.advice : advice);
}

MaskedArray::MaskedArray(sparse::Mask mask, std::vector<std::byte> values, DType dtype)
    : mask_(std::move(mask)), values_(std::move(values)), dtype_(dtype) {
  int64_t sum = 0;
  const auto words = mask_.words();
  for (size_t i = 0; i < words.size(); ++i) {
    if (i % kWordsPerCount == 0) {
      counts_.push_back(sum);
    }
    sum += std::popcount(words[i]);
  }
  require(values_.size() == static_cast<size_t>(sum) * size_of(dtype_),
          "there is a value for each kept element", values_.size(), sum);
}

int64_t MaskedArray::kept_before(int64_t position) const {
  const int64_t word = position / kWordBits;
  const auto words = mask_.words();
  if (position == mask_.size()) {
    return static_cast<int64_t>(values_.size() / size_of(dtype_));
  }
  int64_t sum = counts_[static_cast<size_t>(word / kWordsPerCount)];
  for (int64_t w = word / kWordsPerCount * kWordsPerCount; w < word; ++w) {
    sum += std::popcount(words[static_cast<size_t>(w)]);
  }
  const uint64_t below = (uint64_t{1} << (position % kWordBits)) - 1;
  return sum + std::popcount(words[static_cast<size_t>(word)] & below);
}

void MaskedArray::read(int64_t first, const Tensor& out, std::span<uint8_t> kept) const {
  const int64_t count = out.count();
  require(first >= 0 && first + count <= mask_.size(), "the elements are within the array", first,
          count, mask_.size());
  if (dtype_ != out.dtype) {
    std::vector<std::byte> same(static_cast<size_t>(count) * size_of(dtype_));
    const Tensor view(same.data(), dtype_, Shape{count});
    read(first, view, kept);
    convert_elements(view, out.reshaped(Shape{count}));
    return;
  }
  const int64_t from = kept_before(first);
  with_bits(dtype_, [&]<class Bits>(Bits) {
    const Bits* next = reinterpret_cast<const Bits*>(values_.data()) + from;
    const auto to = bits_of<Bits>(out);
    for (int64_t i = 0; i < count; ++i) {
      const bool keep = mask_[first + i];
      to[static_cast<size_t>(i)] = keep ? *next : Bits{0};
      next += keep ? 1 : 0;
    }
  });
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i] = mask_[first + static_cast<int64_t>(i)] ? 1 : 0;
  }
}

MaskedArrayBuilder::MaskedArrayBuilder(int64_t size, DType dtype)
    : size_(size), dtype_(dtype), words_(static_cast<size_t>((size + kWordBits - 1) / kWordBits)) {
  // Pages that are not written take no memory; a vector that grows would be copied.
  values_.reserve(static_cast<size_t>(size) * size_of(dtype));
}

void MaskedArrayBuilder::add(const Tensor& values, std::span<const uint8_t> kept) {
  require(values.dtype == dtype_ && next_ + values.count() <= size_,
          "the elements are the next of the array", next_, values.count(), size_);
  with_bits(dtype_, [&]<class Bits>(Bits) {
    const auto from = bits_of<const Bits>(values);
    const auto first = static_cast<size_t>(next_);
    for (size_t i = 0; i < from.size();) {
      const size_t position = first + i;
      uint64_t& word = words_[position / kWordBits];
      if (kept.empty() && position % kWordBits == 0 && i + kWordBits <= from.size()) {
        word = nonzero_of(from.data() + i);
        i += kWordBits;
      } else {
        const bool keep = kept.empty() ? is_nonzero(from[i]) : kept[i] != 0;
        word |= uint64_t{keep ? 1U : 0U} << (position % kWordBits);
        ++i;
      }
    }
    // Words begin with bits of earlier elements, and end with zeros for later ones.
    const size_t first_word = first / kWordBits;
    const size_t end_word = (first + from.size() + kWordBits - 1) / kWordBits;
    const auto bits_of_word = [&](size_t w) {
      return w == first_word ? words_[w] >> (first % kWordBits) << (first % kWordBits) : words_[w];
    };
    int64_t added = 0;
    for (size_t w = first_word; w < end_word; ++w) {
      added += std::popcount(bits_of_word(w));
    }
    const size_t before = values_.size();
    values_.resize(before + static_cast<size_t>(added) * sizeof(Bits));
    Bits* to = reinterpret_cast<Bits*>(values_.data() + before);
    for (size_t w = first_word; w < end_word; ++w) {
      uint64_t word = bits_of_word(w);
      if (word == ~uint64_t{0}) {
        to = std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(w * kWordBits - first),
                         kWordBits, to);
        continue;
      }
      for (; word != 0; word &= word - 1) {
        *to++ = from[w * kWordBits + static_cast<size_t>(std::countr_zero(word)) - first];
      }
    }
    kept_ += added;
  });
  next_ += values.count();
}

std::span<const std::byte> MaskedArrayBuilder::values() const { return values_; }

}  // namespace espalier::hub
