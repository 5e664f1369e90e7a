#include "io/data/token_files.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/core/error.h"

namespace espalier::io {
namespace {

/// The header of llm.c: 256 int32, of which the first three are magic, version and number of
/// tokens.
struct Header {
  int32_t magic;
  int32_t version;
  int width;  ///< bytes a token
};
constexpr std::array kHeaders{Header{20240520, 1, 2}, Header{20240801, 7, 4}};
constexpr size_t kHeaderBytes = 1024;

struct Layout {
  size_t header = 0;
  int width = 1;
};

/// Finds llm.c's header; throws Failure when it does not fit the file.
Layout layout_of(const MappedFile& file, const DataConfig& data) {
  if (data.kind != "tokens") {
    return {};
  }
  const Layout plain{.header = 0, .width = data.token_type == "uint32" ? 4 : 2};
  std::array<int32_t, 3> start{};
  if (file.bytes().size() < kHeaderBytes) {
    return plain;
  }
  std::memcpy(start.data(), file.bytes().data(), sizeof(start));
  const auto* known = std::ranges::find(kHeaders, start[0], &Header::magic);
  if (known == kHeaders.end()) {
    return plain;
  }
  const std::string name = file.path().string();
  check(start[1] == known->version, "data file {} has llm.c's header of version {}; known: {}",
        name, start[1], known->version);
  const size_t tokens = (file.bytes().size() - kHeaderBytes) / static_cast<size_t>(known->width);
  check(static_cast<size_t>(start[2]) == tokens,
        "data file {} should hold {} tokens by its header but has {}: truncated?", name, start[2],
        tokens);
  return {.header = kHeaderBytes, .width = known->width};
}

template <class Number>
void copy_numbers(const uint8_t* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Number number;  // unaligned in the file, perhaps
    std::memcpy(&number, from + i * sizeof(Number), sizeof(Number));
    out[i] = static_cast<int32_t>(number);
  }
}

}  // namespace

TokenFiles::TokenFiles(const DataConfig& data, std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    Segment segment{.file = MappedFile(path)};
    const Layout layout = layout_of(segment.file, data);
    const size_t bytes = segment.file.bytes().size() - layout.header;
    check(bytes % static_cast<size_t>(layout.width) == 0,
          "data file {} has {} bytes, no multiple of the {} bytes of a token; is data.token_type "
          "right?",
          path, bytes, layout.width);
    segment.header = layout.header;
    segment.width = layout.width;
    segment.begin = size_;
    size_ += static_cast<int64_t>(bytes) / layout.width;
    segment.end = size_;
    segments_.push_back(std::move(segment));
  }
}

const TokenFiles::Segment& TokenFiles::segment_at(int64_t offset) const {
  require(offset >= 0 && offset < size_, "a token lies within the data", offset, size_);
  return *std::ranges::upper_bound(segments_, offset, {}, &Segment::end);
}

void TokenFiles::read(int64_t offset, std::span<int32_t> out) const {
  while (!out.empty()) {
    const Segment& segment = segment_at(offset);
    const auto part =
        static_cast<size_t>(std::min(segment.end - offset, static_cast<int64_t>(out.size())));
    const uint8_t* from =
        segment.file.bytes().data() + segment.header +
        static_cast<size_t>(offset - segment.begin) * static_cast<size_t>(segment.width);
    if (segment.width == 1) {
      copy_numbers<uint8_t>(from, out.first(part));
    } else if (segment.width == 2) {
      copy_numbers<uint16_t>(from, out.first(part));
    } else {
      copy_numbers<uint32_t>(from, out.first(part));
    }
    out = out.subspan(part);
    offset += static_cast<int64_t>(part);
  }
}

void TokenFiles::mark_bytes(std::span<bool, 256> seen) const {
  for (const Segment& segment : segments_) {
    for (const uint8_t byte : segment.file.bytes()) {
      seen[byte] = true;
    }
  }
}

int64_t TokenFiles::largest() const {
  std::vector<int32_t> chunk(1 << 16);
  uint32_t largest = 0;
  for (int64_t at = 0; at < size_; at += static_cast<int64_t>(chunk.size())) {
    const auto part = std::min(size_ - at, static_cast<int64_t>(chunk.size()));
    const std::span<int32_t> tokens = std::span(chunk).first(static_cast<size_t>(part));
    read(at, tokens);
    for (const int32_t token : tokens) {
      largest = std::max(largest, static_cast<uint32_t>(token));
    }
  }
  return largest;
}

std::string TokenFiles::place(int64_t offset) const {
  const Segment& segment = segment_at(offset);
  return fmt::format("{}, token {}", segment.file.path().string(), offset - segment.begin);
}

}  // namespace espalier::io
