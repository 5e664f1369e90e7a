#include "sparse/index_codings.h"

#include <algorithm>
#include <array>

#include "src/core/error.h"

namespace espalier::sparse {
namespace {

using Chunk = std::array<int32_t, kRestartEvery>;

/// Sets bits at ascending positions in zeroed words. The word at hand stays in a register: a read of
/// the word just written would wait for the write.
class BitSetter {
 public:
  explicit BitSetter(std::span<uint64_t> words) : words_(words.data()) {}

  void set(std::span<const int32_t> positions, int64_t base) {
    uint64_t word = word_;
    int64_t at = at_;
    for (const int32_t position : positions) {
      const int64_t bit = position - base;
      const int64_t next = bit >> 6;
      word &= -static_cast<uint64_t>(next == at);
      word |= uint64_t{1} << (bit & 63);
      words_[next] = word;
      at = next;
    }
    word_ = word;
    at_ = at;
  }

 private:
  uint64_t* words_;
  uint64_t word_ = 0;
  int64_t at_ = 0;
};

}  // namespace

const Coding& coding_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::int32:
      return kInt32Coding;
    case Encoding::delta:
      return kDeltaCoding;
    case Encoding::bitmap:
      return kBitmapCoding;
    case Encoding::golomb:
      return kGolombCoding;
    case Encoding::elias_fano:
      return kEliasFanoCoding;
    case Encoding::nm:
      return kNmCoding;
    case Encoding::block:
      return kBlockCoding;
    case Encoding::full:
    case Encoding::entropy:
      break;
  }
  require(false, "an index can be held in this encoding", static_cast<int>(encoding));
  return kBitmapCoding;
}

int64_t restart_count(int64_t kept) { return (kept + kRestartEvery - 1) / kRestartEvery; }

void decode_by_restarts(const Coded& coded, DecodeFrom decode_from, int64_t first,
                        std::span<int32_t> out) {
  Chunk chunk;
  for (auto done = size_t{0}; done < out.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const auto skip = static_cast<size_t>(at % kRestartEvery);
    const size_t count = std::min(out.size() - done, static_cast<size_t>(kRestartEvery) - skip);
    if (skip == 0) {
      decode_from(coded, at / kRestartEvery, out.subspan(done, count));
    } else {
      decode_from(coded, at / kRestartEvery, std::span(chunk).first(skip + count));
      std::copy_n(chunk.begin() + static_cast<int64_t>(skip), count,
                  out.begin() + static_cast<int64_t>(done));
    }
    done += count;
  }
}

int64_t kept_before_from(const Coded& coded, DecodeFrom decode_from, int64_t j, int64_t dense) {
  Chunk chunk;
  const int64_t begin = j * kRestartEvery;
  const auto part =
      std::span(chunk).first(static_cast<size_t>(std::min(coded.kept - begin, kRestartEvery)));
  decode_from(coded, j, part);
  return begin + (std::ranges::lower_bound(part, dense) - part.begin());
}

void decode_words(const Coding& coding, const Coded& coded, int64_t first,
                  std::span<uint64_t> out) {
  std::ranges::fill(out, 0);
  if (out.empty() || coded.kept == 0) {
    return;
  }
  const int64_t base = 64 * first;
  const int64_t end_bit = std::min(coded.size, base + 64 * static_cast<int64_t>(out.size()));
  int64_t k = base == 0 ? 0 : coding.kept_before(coded, base);
  const int64_t end = end_bit == coded.size ? coded.kept : coding.kept_before(coded, end_bit);
  BitSetter setter(out);
  Chunk chunk;
  while (k < end) {
    const auto part = std::span(chunk).first(
        static_cast<size_t>(std::min(end - k, kRestartEvery - k % kRestartEvery)));
    coding.decode(coded, k, part);
    setter.set(part, base);
    k += static_cast<int64_t>(part.size());
  }
}

}  // namespace espalier::sparse
