#include "io/config/codec_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "src/core/error.h"

namespace espalier::io {
namespace {

/// What the numbers after a name mean.
enum class Numbers : uint8_t { none, bucket, bits, share, rank };

struct Known {
  std::string name;
  Numbers numbers;
};

const std::vector<Known>& known() {
  using enum Numbers;
  static const std::vector<Known> list{
      {"fp32", none},        {"bf16", none},       {"fp16", none},           {"fp8-e5m2", bucket},
      {"fp8-e4m3", bucket},  {"dynamic8", bucket}, {"dynamic8-bnb", bucket}, {"static8", bucket},
      {"mantissa8", bucket}, {"linear8", bucket},  {"maxmin", bits},         {"table", bits},
      {"sign", bucket},      {"topk", share},      {"powersgd", rank},       {"adaptive", none},
      {"fastest", none},     {"adaprec", none}};
  return list;
}

template <class Number>
Number number_in(std::string_view text, std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  check(error == std::errc() && end == word.data() + word.size(),
        "codec \"{}\": \"{}\" is not a number", text, word);
  return value;
}

int64_t whole_number(std::string_view text, std::string_view word, std::string_view what,
                     int64_t most) {
  const auto value = number_in<int64_t>(text, word);
  check(value >= 1 && value <= most, "codec \"{}\": {} = {} is out of range; allowed: 1 .. {}",
        text, what, value, most);
  return value;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(':', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

constexpr int64_t kMostBits = 8;
constexpr int64_t kMostBucket = int64_t{1} << 30;
constexpr int64_t kMostRank = 1 << 16;

std::vector<std::string> names(size_t first, size_t end) {
  std::vector<std::string> list;
  for (size_t i = first; i < end; ++i) {
    list.push_back(known()[i].name);
  }
  return list;
}

}  // namespace

std::span<const std::string> codec_names() {
  static const std::vector<std::string> list = names(0, known().size());
  return list;
}

std::span<const std::string> value_codecs() {
  return codec_names().first(codec_names().size() - 4);
}
std::span<const std::string> choosing_codecs() { return codec_names().last(3); }

CodecSpec parse_codec(std::string_view text) {
  const std::vector<std::string_view> words = split(text);
  const auto found = std::ranges::find(known(), words[0], &Known::name);
  check(found != known().end(), "there is no codec \"{}\"; available: {}", words[0],
        fmt::join(codec_names(), ", "));
  const Numbers numbers = found->numbers;
  const bool bucket_last = numbers == Numbers::bits || numbers == Numbers::share;
  const size_t most = numbers == Numbers::none ? 1 : bucket_last ? 3 : 2;
  check(words.size() <= most, "codec \"{}\" has too many numbers; write {}", text,
        numbers == Numbers::none     ? found->name
        : numbers == Numbers::bucket ? found->name + ":BUCKET"
        : numbers == Numbers::bits   ? found->name + ":BITS:BUCKET"
        : numbers == Numbers::share  ? found->name + ":SHARE:BUCKET"
                                     : found->name + ":RANK");
  CodecSpec spec{.name = found->name};
  if (words.size() > 1 && numbers == Numbers::bits) {
    spec.bits = whole_number(text, words[1], "bits", kMostBits);
  } else if (words.size() > 1 && numbers == Numbers::share) {
    spec.share = number_in<double>(text, words[1]);
    check(spec.share > 0 && spec.share <= 1,
          "codec \"{}\": the share of values kept must be above 0 and at most 1", text);
  } else if (words.size() > 1 && numbers == Numbers::rank) {
    spec.rank = whole_number(text, words[1], "rank", kMostRank);
  } else if (words.size() > 1) {
    spec.bucket = whole_number(text, words[1], "bucket", kMostBucket);
  }
  if (words.size() > 2) {
    spec.bucket = whole_number(text, words[2], "bucket", kMostBucket);
  }
  return spec;
}

std::string to_text(const CodecSpec& codec) {
  std::string text = codec.name;
  if (codec.bits > 0) {
    text += fmt::format(":{}", codec.bits);
  }
  if (codec.share > 0) {
    text += fmt::format(":{:.4g}", codec.share);
  }
  if (codec.rank > 0) {
    text += fmt::format(":{}", codec.rank);
  }
  if (codec.bucket > 0) {
    text += fmt::format(":{}", codec.bucket);
  }
  return text;
}

}  // namespace espalier::io
