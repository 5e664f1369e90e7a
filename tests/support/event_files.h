#pragma once
// Reads event files independently of io/run/event_file.cpp, as TensorBoard does.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::testing {

/// HistogramProto.
struct EventHistogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;
  bool operator==(const EventHistogram&) const = default;
};

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version{};
  bool starts = false;  ///< SessionLog with status START
  std::map<std::string, float> scalars{};
  std::map<std::string, EventHistogram> histograms{};
};

/// Bit by bit, without a table.
inline uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
    }
  }
  return crc ^ 0xffffffff;
}

/// Throws std::runtime_error at whatever a message may not hold.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint64_t number = 0, type = 0;
    uint64_t integer = 0;      ///< of type 0
    std::string_view bytes{};  ///< of types 1, 2 and 5

    double real() const { return fixed<double>(1); }
    float single() const { return fixed<float>(5); }
    std::vector<double> reals() const {
      expect(type == 2 && bytes.size() % sizeof(double) == 0, "no packed doubles");
      std::vector<double> out(bytes.size() / sizeof(double));
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    }

   private:
    template <class T>
    T fixed(uint64_t wanted) const {
      expect(type == wanted && bytes.size() == sizeof(T), "another type");
      T out;
      std::memcpy(&out, bytes.data(), sizeof(T));
      return out;
    }
  };

  std::optional<Field> next() {
    if (rest_.empty()) {
      return {};
    }
    const uint64_t key = varint();
    Field field{.number = key >> 3, .type = key & 7};
    expect(field.type == 0 || field.type == 1 || field.type == 2 || field.type == 5, "wire type");
    if (field.type == 0) {
      field.integer = varint();
    } else {
      field.bytes = take(field.type == 1 ? 8 : field.type == 5 ? 4 : varint());
    }
    return field;
  }

  static void expect(bool holds, const char* what) {
    if (!holds) {
      throw std::runtime_error(what);
    }
  }

 private:
  uint64_t varint() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      out |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return out;
      }
    }
    throw std::runtime_error("varint");
  }
  std::string_view take(uint64_t count) {
    expect(count <= rest_.size(), "a field is longer than its message");
    const std::string_view out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return out;
  }

  std::string_view rest_;
};

inline EventHistogram histogram_in(std::string_view message) {
  EventHistogram out;
  ProtobufReader reader(message);
  double* const numbers[] = {&out.min, &out.max, &out.num, &out.sum, &out.sum_squares};
  while (const auto field = reader.next()) {
    ProtobufReader::expect(field->number >= 1 && field->number <= 7, "field of HistogramProto");
    if (field->number <= 5) {
      *numbers[field->number - 1] = field->real();
    } else {
      (field->number == 6 ? out.limits : out.counts) = field->reals();
    }
  }
  return out;
}

inline void read_value(std::string_view message, Event& event) {
  std::string tag;
  std::optional<float> scalar;
  std::optional<EventHistogram> histogram;
  ProtobufReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      tag = field->bytes;
    } else if (field->number == 2) {
      scalar = field->single();
    } else {
      ProtobufReader::expect(field->number == 5, "field of Summary.Value");
      histogram = histogram_in(field->bytes);
    }
  }
  ProtobufReader::expect(scalar.has_value() != histogram.has_value(), "one value");
  const bool is_new = scalar ? event.scalars.emplace(tag, *scalar).second
                             : event.histograms.emplace(tag, *histogram).second;
  ProtobufReader::expect(is_new, "a tag twice in an event");
}

inline Event event_in(std::string_view message) {
  Event out;
  ProtobufReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      out.wall_time = field->real();
    } else if (field->number == 2) {
      out.step = static_cast<int64_t>(field->integer);
    } else if (field->number == 3) {
      out.file_version = field->bytes;
    } else if (field->number == 5) {
      ProtobufReader summary(field->bytes);
      while (const auto value = summary.next()) {
        ProtobufReader::expect(value->number == 1 && value->type == 2, "field of Summary");
        read_value(value->bytes, out);
      }
    } else {
      ProtobufReader::expect(field->number == 7, "field of Event");
      ProtobufReader log(field->bytes);
      const auto status = log.next();
      ProtobufReader::expect(status && status->number == 1 && status->integer == 1, "START");
      out.starts = true;
    }
  }
  return out;
}

struct EventFile {
  std::vector<Event> events;
  std::string error;  ///< why the records end before the file does; empty: they do not
};

/// The events up to the first record that is not whole and right.
inline EventFile event_file_of(std::string_view bytes) {
  EventFile out;
  const auto number = [&bytes]<class T>(size_t at, T value) {
    std::memcpy(&value, bytes.substr(at, sizeof(T)).data(), sizeof(T));
    return value;
  };
  const auto check = [&](size_t first, size_t size) {
    const uint32_t crc = slow_crc32c(bytes.substr(first, size));
    const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8;
    ProtobufReader::expect(number(first + size, uint32_t{0}) == masked, "checksum");
  };
  constexpr size_t kHeader = 12;
  constexpr size_t kFooter = 4;
  try {
    while (!bytes.empty()) {
      ProtobufReader::expect(bytes.size() >= kHeader + kFooter, "torn record");
      check(0, 8);
      const auto size = number(0, uint64_t{0});
      ProtobufReader::expect(size <= bytes.size() - kHeader - kFooter, "torn record");
      check(kHeader, size);
      out.events.push_back(event_in(bytes.substr(kHeader, size)));
      bytes.remove_prefix(kHeader + size + kFooter);
    }
  } catch (const std::runtime_error& error) {
    out.error = error.what();
  }
  return out;
}

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Names of event files in a folder, in TensorBoard's order.
inline std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().find("tfevents") != std::string::npos) {
        out.push_back(entry.path());
      }
    }
  }
  std::ranges::sort(out);
  return out;
}

/// What TensorBoard shows of a folder, by step. Throws std::runtime_error if a value stands twice,
/// or, unless `damaged`, if a file has an unreadable record.
inline std::map<int64_t, Event> shown_events(const std::filesystem::path& folder,
                                             bool damaged = false) {
  std::map<int64_t, Event> out;
  for (const auto& path : event_files_in(folder)) {
    const EventFile file = event_file_of(bytes_of_file(path));
    if (!file.error.empty() && !damaged) {
      throw std::runtime_error(path.string() + ": " + file.error);
    }
    for (const Event& event : file.events) {
      if (event.starts) {
        out.erase(out.lower_bound(event.step), out.end());
      }
      if (event.scalars.empty() && event.histograms.empty()) {
        continue;
      }
      Event& all = out[event.step];
      for (const auto& [tag, value] : event.scalars) {
        ProtobufReader::expect(all.scalars.emplace(tag, value).second, "a value twice");
      }
      for (const auto& [tag, value] : event.histograms) {
        ProtobufReader::expect(all.histograms.emplace(tag, value).second, "a value twice");
      }
    }
  }
  return out;
}

}  // namespace espalier::testing
