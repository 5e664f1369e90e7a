#include "io/data/token_format.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

/// llm.c's file header: 256 int32. The first three are a magic number, the version and the number
/// of tokens; the rest is unused.
struct Header {
  int32_t magic;
  int32_t version;
  int width;  ///< bytes a token
};
constexpr std::array kHeaders{Header{20240520, 1, 2}, Header{20240801, 7, 4}};
constexpr size_t kHeaderBytes = 1024;

std::optional<TokenLayout> layout_by_header(const fs::path& path,
                                            std::span<const uint8_t> content) {
  std::array<int32_t, 3> start{};
  if (content.size() < kHeaderBytes) {
    return {};
  }
  std::memcpy(start.data(), content.data(), sizeof(start));
  const auto* known = std::ranges::find(kHeaders, start[0], &Header::magic);
  if (known == kHeaders.end()) {
    return {};
  }
  const std::string name = path.string();
  check(start[1] == known->version, "data file {} has llm.c's header of version {}; known: {}",
        name, start[1], known->version);
  const size_t tokens = (content.size() - kHeaderBytes) / static_cast<size_t>(known->width);
  check(static_cast<size_t>(start[2]) == tokens,
        "data file {} should hold {} tokens by its header, but it holds {}; write or copy it again",
        name, start[2], tokens);
  return TokenLayout{.header = kHeaderBytes, .width = known->width};
}

/// An object; null if there is no note.
nlohmann::json read_note(const std::string& path) {
  constexpr size_t kMaxNote = size_t{1} << 20;
  const fs::path note = note_of(path);
  if (!path_exists(note)) {
    return {};
  }
  const nlohmann::json json = parse_json(read_text(note, "note", kMaxNote));
  return json.is_object() ? json : nlohmann::json();
}

/// None if the note names no type.
std::optional<int> width_by_note(const fs::path& path, size_t bytes, const std::string& type_key) {
  const nlohmann::json note = read_note(path.string());
  if (!note.contains("token_type")) {
    return {};
  }
  const std::string file = note_of(path.string());
  const nlohmann::json& type = note["token_type"];
  check(type == "uint16" || type == "uint32",
        "{} names token_type {}; known: \"uint16\", \"uint32\"; correct it, or remove the file",
        file, type.dump());
  check(type_key == "auto" || type == type_key,
        "data file {} has tokens of type {} by its note {}, and data.token_type is \"{}\"; set "
        "data.token_type = \"auto\", or correct the note",
        path.string(), type.dump(), file, type_key);
  const int width = type == "uint32" ? 4 : 2;
  const auto tokens = note.find("tokens");
  check(tokens == note.end() || !tokens->is_number_unsigned() ||
            tokens->get<uint64_t>() == bytes / static_cast<size_t>(width),
        "data file {} should hold {} tokens by its note {}, but it holds {}; write or copy it "
        "again",
        path.string(), tokens == note.end() ? "" : tokens->dump(), file,
        bytes / static_cast<size_t>(width));
  return width;
}

/// A command that makes a file of uint32 of one of another type.
std::string conversion(const fs::path& path, std::string_view numpy_type) {
  return fmt::format(
      "convert it: python3 -c 'import numpy as n; n.fromfile(\"{0}\", \"{1}\").astype(\"<u4\")"
      ".tofile(\"{0}.u4.bin\")', and set data.token_type = \"uint32\"",
      path.string(), numpy_type);
}

/// The type that Megatron's index beside the file names; empty: there is no index.
std::optional<int> width_by_index(const fs::path& path, const std::string& token_type) {
  constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
  constexpr size_t kTypeAt = kMagic.size() + sizeof(uint64_t);  // behind the version
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (index == path || !path_exists(index)) {
    return {};
  }
  std::array<char, kTypeAt + 1> begin{};
  RawFile file = RawFile::open(index);
  if (!file.read(0, begin.size(), begin.data()) ||
      !std::string_view(begin.data(), begin.size()).starts_with(kMagic)) {
    return {};
  }
  struct Type {
    int code;
    int width;  ///< 0: not read as it is
    std::string_view name, numpy;
  };
  constexpr std::array kTypes{Type{1, 0, "uint8", "u1"},    Type{2, 0, "int8", "i1"},
                              Type{3, 2, "int16", "<i2"},   Type{4, 4, "int32", "<i4"},
                              Type{5, 0, "int64", "<i8"},   Type{6, 0, "float64", "<f8"},
                              Type{7, 0, "float32", "<f4"}, Type{8, 2, "uint16", "<u2"}};
  const int code = static_cast<unsigned char>(begin.back());
  const auto* type = std::ranges::find(kTypes, code, &Type::code);
  check(type != kTypes.end(), "{} names an unknown type of tokens, {}: {}", index.string(), code,
        conversion(path, "TYPE"));
  check(type->width > 0, "data file {} has tokens of type {} by its index {}; {}", path.string(),
        type->name, index.string(), conversion(path, type->numpy));
  const std::string_view ours = type->width == 4 ? "uint32" : "uint16";
  check(token_type == "auto" || token_type == ours,
        "data file {} has tokens of type {} by its index {}, and data.token_type is \"{}\"; set "
        "data.token_type = \"auto\" or \"{}\"",
        path.string(), type->name, index.string(), token_type, ours);
  return type->width;
}

/// Every fourth of the 16-bit words of a file.
struct Lane {
  std::bitset<65536> seen;

  size_t distinct() const { return seen.count(); }
  bool zero() const { return distinct() == 1 && seen[0]; }
  /// All values are `small` or, above a negative number, all ones.
  template <class Small>
  bool only(const Small& small) const {
    for (size_t value = 0; value < seen.size(); ++value) {
      if (seen[value] && value != 0xffff && !small(value)) {
        return false;
      }
    }
    return true;
  }
};

/// 16-bit words of three stretches of a file: begin, middle and end.
struct Sample {
  std::array<Lane, 4> lanes;
  std::array<std::array<int64_t, 256>, 2> bytes{};  ///< counts of low and high bytes
  std::bitset<65536> words;
  int64_t count = 0;

  explicit Sample(std::span<const uint8_t> content) {
    constexpr size_t kStretch = size_t{1} << 15;  // bytes
    constexpr size_t kGroup = 4 * sizeof(uint16_t);
    const size_t groups = content.size() / kGroup;
    const size_t most = kStretch / kGroup;
    size_t done = 0;  // groups
    for (const size_t begin : {size_t{0}, groups / 2, groups - std::min(groups, most)}) {
      for (size_t g = std::max(begin, done); g < std::min(begin + most, groups); ++g) {
        for (size_t lane = 0; lane < lanes.size(); ++lane) {
          const uint8_t* at = content.data() + g * kGroup + lane * sizeof(uint16_t);
          const auto word = static_cast<size_t>(at[0] | at[1] << 8U);
          lanes[lane].seen.set(word);
          words.set(word);
          ++bytes[0][at[0]];
          ++bytes[1][at[1]];
          ++count;
        }
        done = g + 1;
      }
    }
  }

  double entropy(size_t byte) const {  ///< bits
    double sum = 0;
    for (const int64_t n : bytes[byte]) {
      const double share = static_cast<double>(n) / static_cast<double>(count);
      sum -= n > 0 ? share * std::log2(share) : 0;
    }
    return sum;
  }
};

/// Upper halves of numbers below 2^20, as vocabularies are.
bool is_upper(size_t word) { return word < 16; }
bool is_swapped_upper(size_t word) { return (word & 0xff) == 0 && word >> 8 < 16; }
/// Upper halves of whole numbers from 1 on as fp32.
bool is_upper_of_float(size_t word) { return word == 0 || (word >= 0x3f80 && word < 0x4b80); }

/// A type whose numbers would have halves of these values, and would be read as others.
struct OtherType {
  std::string_view name, numpy;
  std::string_view evidence;
  bool uint32 = false;  ///< readable as uint32
};

/// Halves of 0 everywhere prove less than the variety of the other halves does: then few of these
/// are enough, as in a small vocabulary.
bool is_varied(bool zeros, size_t distinct) { return distinct >= (zeros ? 4U : 256U); }

std::optional<OtherType> other_than_uint16(const Sample& sample) {
  constexpr int64_t kFewest = 32;  // words: less proves nothing
  constexpr int64_t kFewestForBytes = 4096;
  constexpr double kBits = 0.5;
  if (sample.count < kFewest) {
    return {};
  }
  const auto& lanes = sample.lanes;
  const std::bitset<65536> even = lanes[0].seen | lanes[2].seen;
  const std::bitset<65536> odd = lanes[1].seen | lanes[3].seen;
  const auto none = [](size_t word) { return word == 0; };
  if (lanes[1].only(is_upper) && lanes[2].only(none) && lanes[3].only(none) &&
      is_varied(lanes[1].zero(), lanes[0].distinct())) {
    return OtherType{"int64", "<i8", "of four 16-bit words the last two are 0"};
  }
  const bool odd_zero = lanes[1].zero() && lanes[3].zero();
  if (lanes[1].only(is_upper) && lanes[3].only(is_upper) && is_varied(odd_zero, even.count())) {
    return OtherType{"int32", "<i4", "every second 16-bit word is 0, or nearly", true};
  }
  const bool even_zero = lanes[0].zero() && lanes[2].zero();
  // Numbers below 2^16 have at most 15 bits behind the point: the last byte is 0.
  const auto high_only = [](size_t word) { return (word & 0xff) == 0; };
  if (lanes[0].only(high_only) && lanes[2].only(high_only) && lanes[1].only(is_upper_of_float) &&
      lanes[3].only(is_upper_of_float) && is_varied(true, odd.count())) {
    return OtherType{"float32", "<f4", "its words are those of whole numbers in fp32"};
  }
  if (lanes[0].only(is_swapped_upper) && lanes[2].only(is_swapped_upper) &&
      is_varied(even_zero, odd.count())) {
    return OtherType{"big-endian int32", ">i4", "the first of two 16-bit words is 0, or nearly"};
  }
  Lane all;
  all.seen = sample.words;
  if (all.only(high_only) && is_varied(true, all.distinct())) {
    return OtherType{"big-endian uint16", ">u2", "the first byte of every word is 0"};
  }
  if (sample.count >= kFewestForBytes && all.distinct() >= 256 &&
      sample.entropy(1) > sample.entropy(0) + kBits) {
    return OtherType{"big-endian uint16", ">u2",
                     "the second byte of its words varies more than the first"};
  }
  return {};
}

std::optional<OtherType> other_than_uint32(const Sample& sample) {
  constexpr int64_t kFewest = 64;  // words
  const auto& lanes = sample.lanes;
  const auto none = [](size_t word) { return word == 0; };
  if (sample.count >= kFewest && lanes[1].only(is_upper) && lanes[2].only(none) &&
      lanes[3].only(none) && is_varied(lanes[1].zero(), lanes[0].distinct())) {
    return OtherType{"int64", "<i8", "every second 32-bit word is 0"};
  }
  return {};
}

}  // namespace

std::string note_of(const std::string& path) { return path + ".json"; }

int64_t noted_vocabulary(std::span<const std::string> files) {
  int64_t most = 0;
  for (const std::string& file : files) {
    const nlohmann::json note = read_note(file);
    if (note.is_object() && note.contains("vocabulary") && note["vocabulary"].is_number_integer()) {
      most = std::max(most, note["vocabulary"].get<int64_t>());
    }
  }
  return most;
}

void check_no_container(const fs::path& path, std::span<const uint8_t> content) {
  struct Format {
    std::string_view begin, end, name, fix;
  };
  constexpr std::array kFormats{
      Format{"\x93NUMPY", "", "a NumPy array (.npy)",
             "write bare numbers: numpy.load(FILE).astype(\"uint16\").tofile(\"tokens.bin\")"},
      Format{"\x89HDF\r\n\x1a\n", "", "an HDF5 file", "write its tokens as bare uint16 numbers"},
      Format{"PAR1", "PAR1", "a Parquet file", "write its texts or tokens to a file of their own"}};
  const std::string_view bytes(reinterpret_cast<const char*>(content.data()), content.size());
  for (const Format& format : kFormats) {
    check(!bytes.starts_with(format.begin) || !bytes.ends_with(format.end),
          "data file {} is {}, and not a file of tokens or a text; {}", path.string(), format.name,
          format.fix);
  }
}

TokenLayout token_layout(const fs::path& path, std::span<const uint8_t> content,
                         const DataConfig& data) {
  check_no_container(path, content);
  if (const auto found = layout_by_header(path, content)) {
    return *found;
  }
  const auto by_note = width_by_note(path, content.size(), data.token_type);
  const bool automatic = data.token_type == "auto";
  if (by_note && automatic) {
    return {.header = 0, .width = *by_note};
  }
  const auto by_index = width_by_index(path, data.token_type);
  if (by_index) {
    return {.header = 0, .width = *by_index};
  }
  const auto sample = std::make_unique<const Sample>(content);  // 40 kB
  if (data.token_type == "uint32") {
    const auto other = by_note ? std::nullopt : other_than_uint32(*sample);
    check(!other,
          "data file {} holds {} by its content ({}), and data.token_type is \"uint32\"; {}. If it "
          "does hold uint32, write {{\"token_type\": \"uint32\"}} to {} and set data.token_type = "
          "\"auto\"",
          path.string(), other ? other->name : "", other ? other->evidence : "",
          conversion(path, other ? other->numpy : ""), note_of(path.string()));
    return {.header = 0, .width = 4};
  }
  const auto other = by_note == 2 ? std::nullopt : other_than_uint16(*sample);
  check(!other,
        "data file {} holds {} by its content ({}), and data.token_type = \"{}\" reads uint16; "
        "{}. If it does hold uint16, write {{\"token_type\": \"uint16\"}} to {} and set "
        "data.token_type = \"auto\"",
        path.string(), other ? other->name : "", other ? other->evidence : "", data.token_type,
        other && other->uint32 ? "set data.token_type = \"uint32\""
                               : conversion(path, other ? other->numpy : ""),
        note_of(path.string()));
  return {.header = 0, .width = 2};
}

}  // namespace espalier::io
