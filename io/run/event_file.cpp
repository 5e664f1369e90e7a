#include "io/run/event_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <optional>

#include "io/files/folders.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1) * 0x82f63b78U;
    }
    table.at(byte) = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

/// As records store it: checksums of data that contain checksums are not weaker.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Encoding of protobuf: each field is its number with a wire type, then the value.
enum class WireType : uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | static_cast<uint32_t>(type));
}

void put_integer(std::string& out, uint32_t field, int64_t value) {
  put_key(out, field, WireType::varint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, WireType::fixed64);
  put(out, value);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, WireType::length);
  put_varint(out, bytes.size());
  out += bytes;
}

/// Field `value` of a Summary: `content` is the field of Summary.Value that holds the data.
void put_value(std::string& out, std::string_view tag, std::string_view content) {
  std::string value;
  put_bytes(value, 1, tag);
  value += content;
  put_bytes(out, 1, value);
}

/// An Event in its record; `content` is `field`, one of those of which an Event has one.
std::string record_of(int64_t step, uint32_t field, std::string_view content) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_double(event, 1, now.count());
  put_integer(event, 2, step);
  put_bytes(event, field, content);
  std::string record;
  put<uint64_t>(record, event.size());
  put(record, masked(crc32c(record)));
  record += event;
  put(record, masked(crc32c(event)));
  return record;
}

constexpr uint32_t kFileVersion = 3;
constexpr uint32_t kSummary = 5;
constexpr uint32_t kSessionLog = 7;

constexpr std::string_view kEventFile = "events.out.tfevents.";

/// The number in the name of an EventWriter's file.
std::optional<int64_t> event_file_number(const fs::path& path) {
  const std::string name = path.filename().string();
  int64_t number = 0;
  if (!name.starts_with(kEventFile)) {
    return {};
  }
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kEventFile.size(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

/// The number is the time in seconds, as in the files of others, but larger than earlier ones.
fs::path next_event_file(const fs::path& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  int64_t number = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (const fs::path& path : entries_of(folder)) {
    number = std::max(number, event_file_number(path).value_or(0) + 1);
  }
  return folder / fmt::format("{}{:010}", kEventFile, number);
}

GrowingFile make_event_file(const fs::path& folder) {
  make_folder_of(folder);
  make_folder(folder);
  const fs::path path = next_event_file(folder);
  GrowingFile file(path, RawFile::create(path));
  sync_folder(folder);
  return file;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~crc;
}

void EventSummary::add_scalar(std::string_view tag, double value) {
  std::string content;
  put_key(content, 2, WireType::fixed32);
  put(content, static_cast<float>(value));
  put_value(bytes_, tag, content);
}

void EventSummary::add_histogram(std::string_view tag, const Histogram& histogram) {
  if (histogram.count() == 0) {
    return;
  }
  std::string limits;
  std::string counts;
  for (const Histogram::Bucket& bucket : histogram.buckets()) {
    put(limits, bucket.limit);
    put(counts, static_cast<double>(bucket.count));
  }
  std::string numbers;
  put_double(numbers, 1, histogram.min());
  put_double(numbers, 2, histogram.max());
  put_double(numbers, 3, static_cast<double>(histogram.count()));
  put_double(numbers, 4, histogram.sum());
  put_double(numbers, 5, histogram.sum_of_squares());
  put_bytes(numbers, 6, limits);
  put_bytes(numbers, 7, counts);
  std::string content;
  put_bytes(content, 5, numbers);
  put_value(bytes_, tag, content);
}

EventWriter::EventWriter(const fs::path& folder, int64_t first_step)
    : file_(make_event_file(folder)) {
  std::string start;
  put_integer(start, 1, 1);  // status = START
  file_.append(record_of(0, kFileVersion, "brain.Event:2") +
               record_of(first_step, kSessionLog, start));
}

void EventWriter::write(int64_t step, std::string_view summary) {
  file_.append(record_of(step, kSummary, summary));
}

void remove_event_files(const fs::path& folder) {
  bool removed = false;
  for (const fs::path& path : entries_of(folder)) {
    if (event_file_number(path)) {
      remove_file(path);
      removed = true;
    }
  }
  if (removed) {
    sync_folder(folder);
  }
}

}  // namespace espalier::io
