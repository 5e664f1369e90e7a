#pragma once
// Reads JSON of files that may come from anywhere, value by value, without a tree in memory: a text
// of 100 MB would take more than 1 GB as nlohmann::json.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::io {

/// Receives the values of a text. `level` is the number of objects and lists that are open around a
/// key or value: 0 for the outermost value. A handler refuses a text by an exception.
class JsonHandler {
 public:
  enum class Kind : uint8_t { object, list };
  virtual ~JsonHandler() = default;

  /// Of an open object. False: its value is skipped.
  virtual bool key(int64_t level, std::string& name) = 0;
  virtual void begin(int64_t level, Kind kind) = 0;
  virtual void end(int64_t level, Kind kind) = 0;
  virtual void text(int64_t level, std::string& value) = 0;
  /// A whole number from 0 to 2^64 - 1.
  virtual void number(int64_t level, uint64_t value) = 0;
  /// Any other value, in words: "null", "-1", "the number 1.5".
  virtual void other(int64_t level, std::string_view value) = 0;
};

/// False if `text` is no JSON; `place` is then the byte, counted from 1, where the error is. Levels
/// are not limited: the parser takes a bit for each.
bool read_json_events(std::string_view text, JsonHandler& handler, size_t& place);

/// In quotes, with escapes; of a long text the beginning.
std::string quoted_text(std::string_view text);
/// At most eight of them, and the number of the others.
std::string quoted_texts(const std::vector<std::string>& texts);

}  // namespace espalier::io
