#include "parallel/wire/codec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>
#include <vector>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

using kernels::WireCode;
using kernels::WireCodec;
using kernels::WireFormat;
using kernels::WireNumbers;

constexpr int64_t kBits = 4;
constexpr double kShare = 0.01;
constexpr int64_t kMaxBucket = int64_t{1} << 30;

constexpr Codec kOthers[] = {
    {.name = "adaptive",
     .help = "chooses the bits of maxmin for each parameter",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::adaptive},
    {.name = "fastest",
     .help = "chooses by measured times, for each size of message",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::fastest},
    {.name = "adaprec",
     .help = "chooses among codec_candidates by trial training (AdaPrec)",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::adaprec},
};

template <class Number>
Number number_in(std::string_view text, std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  check(error == std::errc() && end == word.data() + word.size(),
        "codec \"{}\": \"{}\" is not a number; write NAME, NAME:NUMBER or NAME:NUMBER:BUCKET", text,
        word);
  return value;
}

int64_t whole_number(std::string_view text, std::string_view word, std::string_view what,
                     int64_t most) {
  const auto value = number_in<int64_t>(text, word);
  check(value >= 1 && value <= most, "codec \"{}\": {} = {} is out of range; allowed: 1 .. {}",
        text, what, value, most);
  return value;
}

/// Names of the numbers that may follow a codec's name.
std::vector<std::string_view> numbers_of(WireNumbers numbers) {
  switch (numbers) {
    case WireNumbers::none:
      return {};
    case WireNumbers::bucket:
      return {"BUCKET"};
    case WireNumbers::bits:
      return {"BITS", "BUCKET"};
    case WireNumbers::share:
      return {"SHARE", "BUCKET"};
  }
  return {};
}

int64_t first_given(int64_t first, int64_t second, int64_t third) {
  return first > 0 ? first : second > 0 ? second : third;
}

}  // namespace

Registry<Codec> codecs() {
  static const std::vector<Codec> all = [] {
    std::vector<Codec> made;
    for (const WireCodec* codec : kernels::wire_codecs()) {
      made.push_back({.name = codec->name,
                      .help = codec->help,
                      .numbers = codec->numbers,
                      .most_bits = codec->most_bits});
    }
    made.insert(made.end(), std::begin(kOthers), std::end(kOthers));
    return made;
  }();
  static const std::vector<const Codec*> entries = [] {
    std::vector<const Codec*> made;
    for (const Codec& codec : all) {
      made.push_back(&codec);
    }
    return made;
  }();
  return entries;
}

CodecKind CodecSpec::kind() const { return find(codecs(), "codec", name).kind; }
CodecChooser CodecSpec::chooser() const { return find(codecs(), "codec", name).chooser; }

CodecSpec parse_codec(std::string_view text) {
  std::vector<std::string_view> words;
  for (const auto word : std::views::split(text, ':')) {
    words.emplace_back(word.begin(), word.end());
  }
  const Codec& codec = find(codecs(), "codec", words.empty() ? text : words[0]);
  const std::vector<std::string_view> numbers = numbers_of(codec.numbers);
  check(words.size() <= numbers.size() + 1, "codec \"{}\" has too many numbers; write {}{}{}", text,
        codec.name, numbers.empty() ? "" : ":", fmt::join(numbers, ":"));
  CodecSpec spec{.name = std::string(codec.name)};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string_view number = numbers[i - 1];
    if (number == "BITS") {
      spec.bits = whole_number(text, words[i], "bits", codec.most_bits);
    } else if (number == "BUCKET") {
      spec.bucket = whole_number(text, words[i], "bucket", kMaxBucket);
    } else {
      spec.share = number_in<double>(text, words[i]);
      check(spec.share > 0 && spec.share <= 1,
            "codec \"{}\": the share of kept values is out of range; set a number above 0 and at "
            "most 1",
            text);
    }
  }
  return spec;
}

std::string to_text(const CodecSpec& codec) {
  std::string text = codec.name;
  if (codec.bits > 0) {
    text += fmt::format(":{}", codec.bits);
  }
  if (codec.share > 0) {
    text += fmt::format(":{}", codec.share);
  }
  if (codec.bucket > 0) {
    text += fmt::format(":{}", codec.bucket);
  }
  return text;
}

WireFormat format_of(const CodecSpec& codec, const CodecDefaults& defaults) {
  const auto all = kernels::wire_codecs();
  const auto found = std::ranges::find(all, codec.name, &WireCodec::name);
  check(found != all.end(), "codec \"{}\" does not encode single values; use one of: {}",
        codec.name, fmt::join(names(all), ", "));
  const WireCodec& entry = **found;
  WireFormat format{.code = WireCode(found - all.begin()), .bits = entry.bits};
  if (entry.form == kernels::WireForm::plain) {
    return format;
  }
  if (entry.numbers == WireNumbers::bits) {
    format.bits = static_cast<int>(first_given(codec.bits, defaults.bits, kBits));
    check(format.bits <= entry.most_bits,
          "codec \"{}\": a value takes at most {} bits, not {}; set fewer bits", entry.name,
          entry.most_bits, format.bits);
  }
  format.bucket = first_given(codec.bucket, defaults.bucket, entry.usual_bucket(format.bits));
  check(entry.most_bucket == 0 || format.bucket <= entry.most_bucket,
        "codec \"{}\": a bucket holds at most {} values, not {}; set a smaller bucket", entry.name,
        entry.most_bucket, format.bucket);
  if (entry.numbers == WireNumbers::share) {
    const double share = codec.share > 0 ? codec.share : kShare;
    format.kept = std::max<int64_t>(1, std::llround(share * static_cast<double>(format.bucket)));
  }
  format.half_meta = entry.half_meta && defaults.half_meta;
  return format;
}

std::string text_of(const WireFormat& format) {
  const WireCodec& entry = kernels::codec_of(format.code);
  CodecSpec spec{.name = std::string(entry.name), .bucket = format.bucket};
  if (entry.numbers == WireNumbers::share) {
    // With four digits, or as many as it takes to keep as many values.
    const auto bucket = static_cast<double>(format.bucket);
    int digits = 4;
    do {
      spec.share =
          std::stod(fmt::format("{:.{}g}", static_cast<double>(format.kept) / bucket, digits++));
    } while (std::llround(spec.share * bucket) != format.kept && digits < 17);
  } else if (entry.numbers == WireNumbers::bits) {
    spec.bits = format.bits;
  }
  return to_text(spec);
}

}  // namespace espalier::parallel
