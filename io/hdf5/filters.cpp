#include "io/hdf5/filters.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "io/hdf5/bounded_file.h"

namespace espalier::io::hdf5 {
namespace {

using Bytes = std::vector<uint8_t>;

enum FilterId : uint64_t { kDeflate = 1, kShuffle = 2, kFletcher32 = 3, kLzf = 32000 };

struct KnownFilter {
  uint64_t id;
  std::string_view name;
};
/// Names of some that are refused. Source: the HDF Group's list of registered filters.
constexpr std::array kRefused{KnownFilter{4, "szip"},           KnownFilter{5, "n-bit"},
                              KnownFilter{6, "scale-offset"},   KnownFilter{307, "bzip2"},
                              KnownFilter{32001, "blosc"},      KnownFilter{32004, "lz4"},
                              KnownFilter{32008, "bitshuffle"}, KnownFilter{32013, "zfp"},
                              KnownFilter{32015, "zstd"},       KnownFilter{32026, "blosc2"}};

/// One stream of zlib, of at most `most` bytes.
Bytes inflated(const Bytes& stored, uint64_t most) {
  expect(most <= kMostExpansion * (stored.size() + 64), "a chunk claims more than it can hold");
  Bytes out(static_cast<size_t>(most));
  z_stream stream{};
  expect(inflateInit(&stream) == Z_OK, "there is no memory for a chunk");
  size_t read = 0;
  size_t written = 0;
  int code = Z_OK;
  while (code == Z_OK) {  // zlib counts in 32 bits
    constexpr size_t kPart = size_t{1} << 30;
    // zlib does not write to its input.
    stream.next_in = const_cast<Bytef*>(stored.data() + read);
    stream.avail_in = static_cast<uInt>(std::min(kPart, stored.size() - read));
    stream.next_out = out.data() + written;
    stream.avail_out = static_cast<uInt>(std::min(kPart, out.size() - written));
    const uInt in = stream.avail_in;
    const uInt space = stream.avail_out;
    code = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += space - stream.avail_out;
    if (code == Z_OK && in == stream.avail_in && space == stream.avail_out) {
      break;  // no progress: the input is cut off, or the output is full
    }
  }
  inflateEnd(&stream);
  expect(code == Z_STREAM_END, "a chunk's deflate stream is damaged, cut off, or too long");
  out.resize(written);
  return out;
}

/// LZF: a control byte c < 32 precedes c + 1 literal bytes; else a copy of (c >> 5) + 2 bytes (7:
/// plus the next byte) from (c & 31) · 256 + next byte + 1 bytes back.
Bytes expanded_lzf(std::span<const uint8_t> in, uint64_t most) {
  Bytes out;
  out.reserve(static_cast<size_t>(std::min<uint64_t>(most, 256 * (in.size() + 1))));
  Cursor from(in);
  while (from.rest() > 0) {
    const size_t control = from.byte();
    if (control < 32) {
      const auto literal = from.take(control + 1);
      expect(literal.size() <= most - out.size(), "a chunk's lzf stream is too long");
      out.insert(out.end(), literal.begin(), literal.end());
      continue;
    }
    const size_t length = 2 + (control >> 5) + (control >> 5 == 7 ? from.byte() : 0U);
    const size_t back = (control & 31) * 256 + from.byte() + 1;
    expect(back <= out.size() && length <= most - out.size(),
           "a chunk's lzf stream is damaged or too long");
    for (size_t i = 0; i < length; ++i) {  // source and copy may overlap
      out.push_back(out[out.size() - back]);
    }
  }
  return out;
}

/// Byte b of all elements, then byte b + 1 …; the rest of an incomplete element stays at the end.
Bytes unshuffled(const Bytes& in, size_t element) {
  if (element <= 1) {
    return in;
  }
  const size_t count = in.size() / element;
  Bytes out(in.size());
  for (size_t b = 0; b < element; ++b) {
    const uint8_t* from = in.data() + b * count;
    for (size_t i = 0; i < count; ++i) {
      out[i * element + b] = from[i];
    }
  }
  std::copy(in.begin() + static_cast<std::ptrdiff_t>(count * element), in.end(),
            out.begin() + static_cast<std::ptrdiff_t>(count * element));
  return out;
}

void check_data_checksum(Bytes& bytes) {
  expect(bytes.size() >= 4, "a chunk is shorter than its checksum");
  const uint64_t stated = Cursor(std::span(bytes).last(4)).number(4);
  bytes.resize(bytes.size() - 4);
  expect(is_data_checksum(bytes, static_cast<uint32_t>(stated)), "a chunk has a wrong checksum");
}

}  // namespace

std::string unsupported(std::span<const Filter> filters) {
  for (const Filter& filter : filters) {
    if (filter.id == kDeflate || filter.id == kShuffle || filter.id == kFletcher32 ||
        filter.id == kLzf) {
      continue;
    }
    const auto known = std::ranges::find(kRefused, filter.id, &KnownFilter::id);
    return known != kRefused.end() ? std::string(known->name)
           : filter.name.empty()   ? fmt::format("number {}", filter.id)
                                   : fmt::format("{} (number {})", filter.name, filter.id);
  }
  return {};
}

std::vector<uint8_t> unfiltered(std::span<const Filter> filters, uint32_t skipped,
                                std::vector<uint8_t> stored, uint64_t bytes) {
  // Filters that come before another one may have added a few bytes.
  const uint64_t most = bytes + bytes / 64 + 64 * filters.size();
  for (size_t i = filters.size(); i-- > 0;) {
    if ((skipped >> i & 1) != 0) {
      continue;
    }
    const Filter& filter = filters[i];
    if (filter.id == kDeflate) {
      stored = inflated(stored, std::min(most, kMostExpansion * (stored.size() + 1)));
    } else if (filter.id == kLzf) {
      stored = expanded_lzf(stored, most);
    } else if (filter.id == kShuffle) {
      expect(!filter.parameters.empty(), "a shuffle filter has no element size");
      stored = unshuffled(stored, filter.parameters[0]);
    } else if (filter.id == kFletcher32) {
      check_data_checksum(stored);
    }
  }
  expect(stored.size() == bytes, "a chunk has another size than its layout states");
  return stored;
}

}  // namespace espalier::io::hdf5
