#include "sparse/index/encoding.h"

#include <algorithm>

#include "sparse/index/bit_stream.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

using Chunk = std::array<int32_t, kDecodeChunk>;

/// Makes words from ascending positions, each zeroed, set and counted while it is in the cache.
class WordMaker {
 public:
  WordMaker(const Words& out, int64_t kept_before) : out_(out), kept_(kept_before) {}

  /// Bits are set by bytes: the next position is rarely in the same one, so few reads wait for the
  /// write before.
  void set(std::span<const int32_t> positions, int64_t base) {
    const auto last = static_cast<size_t>((positions.back() - base) / 64);
    clear(last + 1);
    auto* bytes = reinterpret_cast<uint8_t*>(out_.words.data());
    for (const int32_t position : positions) {
      const auto bit = static_cast<uint32_t>(position) - static_cast<uint32_t>(base);
      bytes[bit >> 3] = static_cast<uint8_t>(bytes[bit >> 3] | 1U << (bit & 7));
    }
    count_until(last);
  }
  void finish() {
    clear(out_.words.size());
    count_until(out_.words.size());
    if (counted_ < out_.prefix_counts.size()) {  // of words that fill no whole block
      out_.prefix_counts[counted_] = static_cast<uint32_t>(kept_);
    }
  }

 private:
  static constexpr size_t kBlock = bitmap_coding::kWordsPerCount;

  void clear(size_t end) {
    std::fill(out_.words.begin() + static_cast<int64_t>(cleared_),
              out_.words.begin() + static_cast<int64_t>(end), 0);
    cleared_ = end;
  }
  /// Words before `end` are done.
  void count_until(size_t end) {
    for (; counted_ < out_.prefix_counts.size() && (counted_ + 1) * kBlock <= end; ++counted_) {
      out_.prefix_counts[counted_] = static_cast<uint32_t>(kept_);
      kept_ += count_ones(out_.words.subspan(counted_ * kBlock, kBlock));
    }
  }

  Words out_;
  int64_t kept_;
  size_t cleared_ = 0;
  size_t counted_ = 0;
};

}  // namespace

void check_words(std::string_view what, std::span<const uint8_t> data, int64_t bits) {
  const size_t bytes = word_bytes(bits);
  check(data.size() == bytes, "{}: {} bits need {} bytes, there are {}", what, bits, bytes,
        data.size());
  const auto used = static_cast<int>(bits % 64);
  check(used == 0 || load_word(data, bytes - 8) >> used == 0, "{}: a bit is set beyond bit {}",
        what, bits - 1);
}

void decode_words(const Coding& coding, const Coded& coded, int64_t first, const Words& out) {
  if (out.words.empty()) {
    return;
  }
  const int64_t base = 64 * first;
  const int64_t end_bit = std::min(coded.size, base + 64 * static_cast<int64_t>(out.words.size()));
  const auto kept_before = [&](int64_t dense) {
    return dense == 0 || coded.kept == 0 ? 0
           : dense == coded.size         ? coded.kept
                                         : coding.kept_before(coded, dense);
  };
  int64_t k = kept_before(base);
  const int64_t end = kept_before(end_bit);
  WordMaker maker(out, k);
  Chunk chunk;
  while (k < end) {
    const auto part = std::span(chunk).first(
        static_cast<size_t>(std::min(end - k, kDecodeChunk - k % kDecodeChunk)));
    coding.decode(coded, k, part);
    maker.set(part, base);
    k += static_cast<int64_t>(part.size());
  }
  maker.finish();
}

}  // namespace espalier::sparse
