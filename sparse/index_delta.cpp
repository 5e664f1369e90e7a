#include <algorithm>
#include <bit>
#include <cstring>

#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse::delta_coding {
namespace {

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

/// Kept elements to `out`, whose varints start at the cursor.
void read_positions(Cursor& cursor, int32_t* out, int32_t* const out_end) {
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
  cursor.in = in;
  cursor.before = before;
}

Cursor cursor_at(const View& view, size_t restart) {
  const Restart& start = view.restarts[restart];
  return {view.bytes.data() + start.offset, view.bytes.data() + view.bytes.size(),
          static_cast<int32_t>(start.base) - 1};
}

}  // namespace

int64_t restart_count(int64_t kept) { return (kept + kRestartEvery - 1) / kRestartEvery; }

size_t encoded_bytes(const Mask& mask) {
  size_t bytes = 0;
  int64_t base = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    bytes += varint_bytes(static_cast<uint32_t>(position - base));
    base = position + 1;
  });
  return bytes;
}

void encode(const Mask& mask, std::span<uint8_t> bytes, std::span<Restart> restarts) {
  uint8_t* out = bytes.data();
  int64_t base = 0;
  int64_t k = 0;
  for_each_one(mask.words(), [&](int64_t position) {
    if (k % kRestartEvery == 0) {
      restarts[static_cast<size_t>(k / kRestartEvery)] = {
          static_cast<uint32_t>(base), static_cast<uint32_t>(out - bytes.data())};
    }
    auto gap = static_cast<uint32_t>(position - base);
    for (; gap >= 0x80U; gap >>= 7) {
      *out++ = static_cast<uint8_t>(gap | 0x80U);
    }
    *out++ = static_cast<uint8_t>(gap);
    base = position + 1;
    ++k;
  });
}

void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept) {
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

void build_restarts(std::span<const uint8_t> bytes, int64_t kept, std::span<Restart> restarts) {
  const uint8_t* in = bytes.data();
  uint32_t base = 0;
  for (int64_t k = 0; k < kept; ++k) {
    if (k % kRestartEvery == 0) {
      restarts[static_cast<size_t>(k / kRestartEvery)] = {base,
                                                          static_cast<uint32_t>(in - bytes.data())};
    }
    base += read_varint(in) + 1;
  }
}

void decode(const View& view, int64_t first, std::span<int32_t> out) {
  if (out.empty()) {
    return;
  }
  Cursor cursor = cursor_at(view, static_cast<size_t>(first / kRestartEvery));
  for (int64_t skip = first % kRestartEvery; skip > 0; --skip) {
    cursor.before += static_cast<int32_t>(read_varint(cursor.in)) + 1;
  }
  read_positions(cursor, out.data(), out.data() + out.size());
}

int64_t kept_before(const View& view, int64_t dense) {
  // All elements before a restart lie below its base: the last base <= dense loses none of them.
  const auto next = std::ranges::upper_bound(view.restarts, dense, std::less<>(),
                                             [](const Restart& r) { return int64_t{r.base}; });
  const auto block = std::max<int64_t>(next - view.restarts.begin() - 1, 0);
  Cursor cursor = cursor_at(view, static_cast<size_t>(block));
  int64_t before = block * kRestartEvery;
  const int64_t end = std::min(view.kept, before + kRestartEvery);
  for (; before < end; ++before) {
    cursor.before += static_cast<int32_t>(read_varint(cursor.in)) + 1;
    if (cursor.before >= dense) {
      break;
    }
  }
  return before;
}

}  // namespace espalier::sparse::delta_coding
