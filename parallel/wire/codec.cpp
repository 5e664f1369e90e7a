#include "parallel/wire/codec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>
#include <span>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

using kernels::WireCode;
using kernels::WireCodec;
using kernels::WireFormat;
using kernels::WireNumbers;

// Defaults of omitted numbers. Buckets: kernels::WireCodec::usual_bucket.
constexpr int64_t kBits = 4;     // CGX's; keeps the loss near that of fp32 (docs/results.md)
constexpr double kShare = 0.01;  // the top 1 % of AdaPrec's poster
constexpr int64_t kEvery = 100;  // one step in a hundred sends nothing during backward
constexpr double kError = 1;     // that of maxmin:4, in fewer bytes
constexpr int64_t kTrial = 20;   // a fifth of kEvery: shorter trials tell little (docs/codecs.md)
constexpr std::string_view kCandidates = "fp32+fp8-e5m2+table:1";  // those of AdaPrec's poster

constexpr int64_t kMaxBucket = int64_t{1} << 30;
constexpr int64_t kMaxSteps = (int64_t{1} << 31) - 1;
constexpr int64_t kFewestTrial = 5;  // a point of the learning curve after each
constexpr double kMaxError = 1e6;

constexpr std::string_view kHalfMeta = "fp16";

constexpr Codec kOthers[] = {
    {.name = "adaptive",
     .help = "adaptive[:EVERY[:ERROR]]: bits of maxmin for each parameter, chosen every EVERY "
             "(100) steps: fewest bytes with at most ERROR (1) times the error of maxmin:4",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::adaptive},
    {.name = "adaptive-time",
     .help = "as adaptive, but with the least time that communication adds to a step",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::adaptive,
     .by_time = true},
    {.name = "fastest",
     .help = "chooses by measured times, for each size of message",
     .kind = CodecKind::choosing,
     .chooser = CodecChooser::fastest},
    {.name = "adaprec",
     .help = "adaprec[:EVERY[:TRIAL[:CODEC+CODEC...]]]: every EVERY (100) steps, trains TRIAL (20) "
             "steps with each CODEC and continues with the best (AdaPrec)",
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
                     int64_t most, int64_t least = 1) {
  const auto value = number_in<int64_t>(text, word);
  check(value >= least && value <= most, "codec \"{}\": {} = {} is out of range; allowed: {} .. {}",
        text, what, value, least, most);
  return value;
}

/// Names of the numbers that may follow a codec's name.
std::vector<std::string_view> numbers_of(const Codec& codec) {
  if (codec.chooser == CodecChooser::adaptive) {
    return {"EVERY", "ERROR"};
  }
  if (codec.chooser == CodecChooser::adaprec) {
    return {"EVERY", "TRIAL"};
  }
  switch (codec.numbers) {
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

/// Splits "CODEC+CODEC…" and checks each codec.
std::vector<std::string> candidates_in(std::string_view text, std::string_view list) {
  std::vector<std::string> candidates;
  for (const auto word : std::views::split(list, '+')) {
    const std::string candidate(word.begin(), word.end());
    const CodecSpec spec = parse_codec(candidate);
    check(spec.kind() == CodecKind::values || spec.chooser() == CodecChooser::fastest,
          "codec \"{}\": \"{}\" cannot be tried; candidates are codecs of single values and "
          "\"fastest\"",
          text, candidate);
    candidates.push_back(candidate);
  }
  check(candidates.size() >= 2, "codec \"{}\" has one codec to choose from; write CODEC+CODEC",
        text);
  return candidates;
}

/// The defaults of a choosing codec.
CodecSpec usual_spec(const Codec& codec) {
  CodecSpec spec{.name = std::string(codec.name)};
  if (codec.chooser == CodecChooser::adaptive) {
    spec.every = kEvery;
    spec.error = kError;
  } else if (codec.chooser == CodecChooser::adaprec) {
    spec.every = kEvery;
    spec.trial = kTrial;
    spec.candidates = candidates_in(codec.name, kCandidates);
  }
  return spec;
}

}  // namespace

Registry<Codec> codecs() {
  static const std::vector<Codec> all = [] {
    std::vector<Codec> made;
    for (const WireCodec* codec : kernels::wire_codecs()) {
      made.push_back({.name = codec->name,
                      .help = codec->help,
                      .numbers = codec->numbers,
                      .most_bits = codec->most_bits,
                      .half_meta = codec->half_meta});
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
  const std::vector<std::string_view> numbers = numbers_of(codec);
  CodecSpec spec = usual_spec(codec);
  if (codec.half_meta && words.size() > 1 && words.back() == kHalfMeta) {
    spec.half_meta = true;
    words.pop_back();
  }
  if (codec.chooser == CodecChooser::adaprec && words.size() > 3) {
    spec.candidates =
        candidates_in(text, fmt::format("{}", fmt::join(std::span(words).subspan(3), ":")));
    words.resize(3);
  }
  check(words.size() <= numbers.size() + 1, "codec \"{}\" has too many numbers; write {}{}{}", text,
        codec.name, numbers.empty() ? "" : ":", fmt::join(numbers, ":"));
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string_view number = numbers[i - 1];
    if (number == "BITS") {
      spec.bits = whole_number(text, words[i], "bits", codec.most_bits);
    } else if (number == "BUCKET") {
      spec.bucket = whole_number(text, words[i], "bucket", kMaxBucket);
    } else if (number == "EVERY") {
      spec.every = whole_number(text, words[i], "steps between two choices", kMaxSteps);
    } else if (number == "TRIAL") {
      spec.trial = whole_number(text, words[i], "steps of a trial", kMaxSteps, kFewestTrial);
    } else if (number == "ERROR") {
      spec.error = number_in<double>(text, words[i]);
      check(spec.error > 0 && spec.error <= kMaxError,
            "codec \"{}\": the allowed error is out of range; set a number above 0 and at most {}, "
            "times the error of maxmin:4",
            text, kMaxError);
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
  if (codec.half_meta) {
    text += fmt::format(":{}", kHalfMeta);
  }
  if (codec.every > 0) {
    text += fmt::format(":{}", codec.every);
  }
  if (codec.error > 0) {
    text += fmt::format(":{}", codec.error);
  }
  if (codec.trial > 0) {
    text += fmt::format(":{}:{}", codec.trial, fmt::join(codec.candidates, "+"));
  }
  return text;
}

WireFormat format_of(const CodecSpec& codec) {
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
    format.bits = static_cast<int>(codec.bits > 0 ? codec.bits : kBits);
    check(format.bits <= entry.most_bits,
          "codec \"{}\": a value takes at most {} bits, not {}; set fewer bits", entry.name,
          entry.most_bits, format.bits);
  }
  format.bucket = codec.bucket > 0 ? codec.bucket : entry.usual_bucket(format.bits);
  check(entry.most_bucket == 0 || format.bucket <= entry.most_bucket,
        "codec \"{}\": a bucket holds at most {} values, not {}; set a smaller bucket", entry.name,
        entry.most_bucket, format.bucket);
  if (entry.numbers == WireNumbers::share) {
    const double share = codec.share > 0 ? codec.share : kShare;
    format.kept = std::max<int64_t>(1, std::llround(share * static_cast<double>(format.bucket)));
  }
  format.half_meta = entry.half_meta && codec.half_meta;
  return format;
}

std::string text_of(const WireFormat& format) {
  const WireCodec& entry = kernels::codec_of(format.code);
  CodecSpec spec{
      .name = std::string(entry.name), .bucket = format.bucket, .half_meta = format.half_meta};
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
