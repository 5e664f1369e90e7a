#include "io/safetensors/json_events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace espalier::io {
namespace {

using nlohmann::json;

/// The parser's events as those of a handler; skips the values that it does not want.
class JsonForwarder {
 public:
  explicit JsonForwarder(JsonHandler& handler) : handler_(handler) {}
  size_t place() const { return place_; }

  // The names of nlohmann's parser. Each returns whether it continues.
  bool null() { return other("null"); }
  bool boolean(bool value) { return other(value ? "true" : "false"); }
  bool number_integer(json::number_integer_t value) { return other(fmt::format("{}", value)); }
  bool number_unsigned(json::number_unsigned_t value) {
    return scalar([&] { handler_.number(level_, value); });
  }
  bool number_float(json::number_float_t, const std::string& text) {
    constexpr size_t kMost = 40;
    return other("the number " + text.substr(0, kMost));
  }
  bool string(std::string& value) {
    return scalar([&] { handler_.text(level_, value); });
  }
  bool binary(json::binary_t&) { return other("binary data"); }
  bool key(std::string& name) {
    skips_next_ = skipped_ == 0 && !handler_.key(level_, name);
    return true;
  }
  bool start_object(size_t) { return begin(JsonHandler::Kind::object); }
  bool start_array(size_t) { return begin(JsonHandler::Kind::list); }
  bool end_object() { return end(JsonHandler::Kind::object); }
  bool end_array() { return end(JsonHandler::Kind::list); }
  bool parse_error(size_t place, const std::string&, const json::exception&) {
    place_ = place;
    return false;
  }

 private:
  template <class Forward>
  bool scalar(const Forward& forward) {
    if (skipped_ == 0 && !skips_next_) {
      forward();
    }
    skips_next_ = false;
    return true;
  }
  bool other(std::string_view value) {
    return scalar([&] { handler_.other(level_, value); });
  }
  bool begin(JsonHandler::Kind kind) {
    if (skipped_ > 0 || skips_next_) {
      ++skipped_;
      skips_next_ = false;
    } else {
      handler_.begin(level_, kind);
      ++level_;
    }
    return true;
  }
  bool end(JsonHandler::Kind kind) {
    if (skipped_ > 0) {
      --skipped_;
    } else {
      handler_.end(--level_, kind);
    }
    return true;
  }

  JsonHandler& handler_;
  int64_t level_ = 0;
  int64_t skipped_ = 0;  ///< open objects and lists of a skipped value
  bool skips_next_ = false;
  size_t place_ = 0;
};

}  // namespace

bool read_json_events(std::string_view text, JsonHandler& handler, size_t& place) {
  // The parser takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    place = zero + 1;
    return false;
  }
  JsonForwarder forwarder(handler);
  const bool whole = json::sax_parse(text.begin(), text.end(), &forwarder);
  place = forwarder.place();
  return whole;
}

std::string quoted_text(std::string_view text) {
  constexpr size_t kMost = 200;
  const bool cut = text.size() > kMost;
  return json(text.substr(0, kMost)).dump(-1, ' ', false, json::error_handler_t::replace) +
         (cut ? "…" : "");
}

std::string quoted_texts(const std::vector<std::string>& texts) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, texts.size()); ++i) {
    out += (i > 0 ? ", " : "") + quoted_text(texts[i]);
  }
  return out + (texts.size() > kMost ? fmt::format(" and {} more", texts.size() - kMost) : "");
}

}  // namespace espalier::io
