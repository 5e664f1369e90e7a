// Each kept element is the number of pruned ones between it and the kept one before, as an LEB128
// varint: seven bits a byte, low ones first, the high bit set in all bytes but the last, no
// needless zero byte.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "sparse/index/codings.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

/// Where reading can start: kept element kRestartEvery * j has its varint at `offset` and lies at
/// `base` + gap.
struct Restart {
  uint32_t base;
  uint32_t offset;
};

std::span<const Restart> restarts(const Coded& coded) {
  return {reinterpret_cast<const Restart*>(coded.ranks.data()), coded.ranks.size() / 2};
}

constexpr uint64_t kHighBits = 0x8080808080808080U;
constexpr uint64_t kOnes16 = 0x0001000100010001U;
constexpr int kLongest = 5;  // bytes of a varint below 2^31

size_t varint_bytes(uint32_t gap) {
  return (static_cast<size_t>(std::bit_width(gap | 1U)) + 6) / 7;
}

/// Reads the varint at `in` and moves behind it.
uint32_t read_varint(const uint8_t*& in) {
  uint32_t gap = *in & 0x7fU;
  for (int shift = 7; (*in++ & 0x80U) != 0; shift += 7) {
    gap |= (*in & 0x7fU) << shift;
  }
  return gap;
}

/// Four bytes to the four 16-bit lanes of a word.
uint64_t spread(uint32_t bytes) {
  uint64_t x = bytes;
  x = (x | (x << 16)) & 0x0000ffff0000ffffU;
  return (x | (x << 8)) & 0x00ff00ff00ff00ffU;
}

/// Lane k of the result = gaps 0..k plus one each: how far kept element k lies behind the base. One
/// multiplication sums all prefixes; a lane holds at most 4 * 128.
uint64_t prefix_distances(uint32_t gaps) { return (spread(gaps) + kOnes16) * kOnes16; }

void store_lanes(uint64_t distances, int32_t before, int32_t* out) {
  out[0] = before + static_cast<int32_t>(distances & 0xffff);
  out[1] = before + static_cast<int32_t>((distances >> 16) & 0xffff);
  out[2] = before + static_cast<int32_t>((distances >> 32) & 0xffff);
  out[3] = before + static_cast<int32_t>(distances >> 48);
}

struct Cursor {
  const uint8_t* in;
  const uint8_t* end;
  int32_t before;  ///< position of the kept element before this one, -1 at the start
};

/// Kept elements to `all`, whose varints start at the cursor.
void read_positions(const Cursor& cursor, std::span<int32_t> all) {
  int32_t* out = all.data();
  int32_t* const out_end = out + all.size();
  const uint8_t* in = cursor.in;
  int32_t before = cursor.before;
  while (out_end - out >= 8 && cursor.end - in >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, in, sizeof(word));
    if ((word & kHighBits) == 0) {
      const uint64_t low = prefix_distances(static_cast<uint32_t>(word));
      const uint64_t high = prefix_distances(static_cast<uint32_t>(word >> 32));
      store_lanes(low, before, out);
      const int32_t middle = before + static_cast<int32_t>(low >> 48);
      store_lanes(high, middle, out + 4);
      before = middle + static_cast<int32_t>(high >> 48);
      in += 8;
      out += 8;
      continue;
    }
    // Some gap is 128 or more: its neighbours one by one, then look again.
    for (int i = 0; i < 4; ++i) {
      before += static_cast<int32_t>(read_varint(in)) + 1;
      *out++ = before;
    }
  }
  while (out != out_end) {
    before += static_cast<int32_t>(read_varint(in)) + 1;
    *out++ = before;
  }
}

size_t exact_bytes(const Mask& mask, const Counts&) {
  size_t bytes = 0;
  int64_t base = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    bytes += varint_bytes(static_cast<uint32_t>(position - base));
    base = position + 1;
  });
  return bytes;
}

/// The gap of a random mask reaches 128^j with probability (1 - f)^(128^j), and then takes one byte
/// more.
double expected_bytes(const Counts& counts) {
  if (counts.kept == 0) {
    return 0;
  }
  const double pruned = 1 - static_cast<double>(counts.kept) / static_cast<double>(counts.size);
  double each = 1;
  for (double length = 128; length < 0x1p31; length *= 128) {
    each += std::pow(pruned, length);
  }
  return each * static_cast<double>(counts.kept);
}

int64_t rank_count(const Counts& counts) { return 2 * restart_count(counts.kept); }

void encode(const Mask& mask, const Counts&, std::span<uint8_t> data) {
  uint8_t* out = data.data();
  int64_t base = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    auto gap = static_cast<uint32_t>(position - base);
    for (; gap >= 0x80U; gap >>= 7) {
      *out++ = static_cast<uint8_t>(gap | 0x80U);
    }
    *out++ = static_cast<uint8_t>(gap);
    base = position + 1;
  });
}

void check_data(const Coded& coded) {
  const auto [size, kept, shape, bytes, ranks] = coded;
  size_t at = 0;
  int64_t base = 0;
  for (int64_t k = 0; k < kept; ++k) {
    const size_t begin = at;
    uint64_t gap = 0;
    uint8_t byte = 0x80;
    while ((byte & 0x80U) != 0) {
      check(at < bytes.size(), "delta index: the bytes end within kept element {} of {}", k, kept);
      check(at - begin < kLongest, "delta index: the gap of kept element {} has more than {} bytes",
            k, kLongest);
      byte = bytes[at];
      gap |= static_cast<uint64_t>(byte & 0x7fU) << (7 * (at - begin));
      ++at;
    }
    check(byte != 0 || at - begin == 1,
          "delta index: the gap of kept element {} has a needless zero byte", k);
    base += static_cast<int64_t>(gap) + 1;
    check(base <= size, "delta index: kept element {} lies at {}, beyond the size {}", k, base - 1,
          size);
  }
  check(at == bytes.size(), "delta index: {} bytes follow the last of {} kept elements",
        bytes.size() - at, kept);
}

void build_ranks(const Coded& coded, std::span<uint32_t> ranks) {
  const uint8_t* in = coded.data.data();
  uint32_t base = 0;
  for (int64_t k = 0; k < coded.kept; ++k) {
    if (k % kRestartEvery == 0) {
      ranks[static_cast<size_t>(k / kRestartEvery * 2)] = base;
      ranks[static_cast<size_t>(k / kRestartEvery * 2 + 1)] =
          static_cast<uint32_t>(in - coded.data.data());
    }
    base += read_varint(in) + 1;
  }
}

/// The first out.size() elements behind restart point j.
void decode_from(const Coded& coded, int64_t j, std::span<int32_t> out) {
  const Restart& start = restarts(coded)[static_cast<size_t>(j)];
  read_positions({.in = coded.data.data() + start.offset,
                  .end = coded.data.data() + coded.data.size(),
                  .before = static_cast<int32_t>(start.base) - 1},
                 out);
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  decode_by_restarts(coded, decode_from, first, out);
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  // All elements before a restart lie below its base: the last base <= dense loses none of them.
  const auto all = restarts(coded);
  const auto next = std::ranges::upper_bound(all, dense, std::less<>(),
                                             [](const Restart& r) { return int64_t{r.base}; });
  return kept_before_from(coded, decode_from, std::max<int64_t>(next - all.begin() - 1, 0), dense);
}

}  // namespace

const Coding kDeltaCoding{.exact_bytes = exact_bytes,
                          .expected_bytes = expected_bytes,
                          .rank_count = rank_count,
                          .encode = encode,
                          .check = check_data,
                          .build_ranks = build_ranks,
                          .decode = decode,
                          .kept_before = kept_before};

}  // namespace espalier::sparse
