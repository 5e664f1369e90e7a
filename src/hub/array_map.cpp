#include "src/hub/array_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "io/files/raw_file.h"
#include "src/core/error.h"

namespace espalier::hub {
namespace {

constexpr std::string_view kAnyNumber = "{}";
constexpr std::string_view kAnyRest = "{*}";
constexpr uint64_t kMostMapBytes = uint64_t{1} << 20;

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  const size_t last = text.find_last_not_of(" \t\r");
  return first == std::string_view::npos ? std::string()
                                         : std::string(text.substr(first, last - first + 1));
}

/// The text with '_' for each character in quotes. A quote opens where a name may begin.
std::string without_quoted(std::string_view text) {
  std::string out(text);
  bool quoted = false;
  for (size_t at = 0; at < out.size(); ++at) {
    const bool quote =
        out[at] == '"' && (quoted || at == 0 || out[at - 1] == ' ' || out[at - 1] == '\t');
    const bool escape = quoted && out[at] == '\\' && at + 1 < out.size();
    out[at] = quoted || quote ? '_' : out[at];
    if (escape) {
      out[++at] = '_';
    }
    quoted = quoted != quote;
  }
  return out;
}

/// Parts between separators outside of quotes, without spaces around them.
std::vector<std::string> split(std::string_view text, std::string_view separator) {
  const std::string outside = without_quoted(text);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(outside.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + separator.size();
  }
  return parts;
}

/// A name as the file has it: without quotes, and with '.' for '/'.
void take_quotes(std::string& name, const std::string& where) {
  if (name.starts_with('"')) {
    std::string out;
    size_t at = 1;
    for (; at < name.size() && name[at] != '"'; ++at) {
      const bool escape = name[at] == '\\' && at + 1 < name.size();
      at += escape ? 1 : 0;
      out += escape && name[at] == 'n' ? '\n' : name[at];
    }
    check(at + 1 == name.size(),
          "{}: {} begins with a quote, and does not end with the second one; write "
          "\"NAME\", with \\\", \\\\ and \\n for quotes, backslashes and ends of lines in the name",
          where, name);
    name = out;
  }
  name.erase(0, name.starts_with('/') ? 1 : 0);
  std::ranges::replace(name, '/', '.');
}

/// The first of a pattern; no bytes: there is none.
struct Wildcard {
  size_t at = 0, bytes = 0;
  bool rest = false;
};
Wildcard next_wildcard(std::string_view pattern) {
  const size_t number = pattern.find(kAnyNumber);
  const size_t rest = pattern.find(kAnyRest);
  if (number == std::string_view::npos && rest == std::string_view::npos) {
    return {};
  }
  return number < rest ? Wildcard{number, kAnyNumber.size(), false}
                       : Wildcard{rest, kAnyRest.size(), true};
}

/// "{}{*}": the wildcards of a pattern.
std::string wildcards_of(std::string_view pattern) {
  std::string all;
  for (Wildcard next = next_wildcard(pattern); next.bytes > 0; next = next_wildcard(pattern)) {
    all += pattern.substr(next.at, next.bytes);
    pattern.remove_prefix(next.at + next.bytes);
  }
  return all;
}

/// Takes "transpose" and "channels N" off the end of a line.
void take_options(std::string& text, MapLine& line, const std::string& where) {
  for (;;) {
    const size_t space = text.find_last_of(" \t");
    const std::string word = space == std::string::npos ? "" : text.substr(space + 1);
    if (word == "transpose") {
      line.transposed = true;
      text = trimmed(std::string_view(text).substr(0, space));
      continue;
    }
    const std::string before =
        space == std::string::npos ? "" : trimmed(std::string_view(text).substr(0, space));
    if (before.ends_with(" channels")) {
      const auto [end, error] =
          std::from_chars(word.data(), word.data() + word.size(), line.channels);
      check(error == std::errc() && end == word.data() + word.size() && line.channels > 0,
            "{}: channels {} is no number above 0", where, word);
      text = trimmed(std::string_view(before).substr(0, before.size() - 9));
      continue;
    }
    return;
  }
}

/// The row without its comment.
std::string_view without_comment(std::string_view row) {
  const std::string outside = " " + without_quoted(row);  // begins like a name
  return row.substr(0, std::min(outside.find(" #"), outside.find("\t#")));
}

MapLine line_of(const std::string& text, const std::string& where) {
  const size_t arrow = without_quoted(text).find("->");
  check(arrow != std::string::npos,
        "{}: \"{}\" has no \"->\" outside of quotes; a line is THEIRS -> OURS [transpose] "
        "[channels N]",
        where, text);
  MapLine line{.text = where};
  line.theirs = split(std::string_view(text).substr(0, arrow), " + ");
  std::string right = trimmed(std::string_view(text).substr(arrow + 2));
  take_options(right, line, where);
  if (right != "-") {
    line.ours = split(right, ",");
  }
  for (auto* side : {&line.theirs, &line.ours}) {
    std::ranges::for_each(*side, [&](std::string& name) { take_quotes(name, where); });
  }
  const auto bad_word = [](const std::string& word) {
    return word.empty() || word.find_first_of(" \t") != std::string::npos;
  };
  const bool all_named = std::ranges::none_of(line.theirs, &std::string::empty);
  check(all_named && std::ranges::none_of(line.ours, bad_word),
        "{}: \"{}\" is not THEIRS -> OURS [transpose] [channels N]; names of parameters have no "
        "spaces",
        where, text);
  check(line.theirs.size() == 1 || line.ours.size() <= 1,
        "{}: several arrays become several parameters; write one line for each parameter", where);
  const std::string wildcards = wildcards_of(line.theirs.front());
  for (const auto* side : {&line.theirs, &line.ours}) {
    for (const std::string& pattern : *side) {
      check(
          wildcards_of(pattern) == wildcards,
          "{}: \"{}\" and \"{}\" differ in their {{}} and {{*}}; each name of a line has the same "
          "ones",
          where, line.theirs.front(), pattern);
      check(pattern.find(kAnyRest) == std::string::npos || pattern.ends_with(kAnyRest),
            "{}: \"{}\" has {{*}}, the rest of a name, before its end", where, pattern);
    }
  }
  return line;
}

}  // namespace

std::vector<MapLine> read_array_map(const std::filesystem::path& path) {
  io::RawFile file = io::RawFile::open(path);
  check(file.size() <= kMostMapBytes,
        "{} has more than 1 MiB; name a text file with lines THEIRS -> "
        "OURS",
        path.string());
  std::string content(static_cast<size_t>(file.size()), '\0');
  check(content.empty() || file.read(0, content.size(), content.data()), "{} cannot be read",
        path.string());
  std::vector<MapLine> lines;
  size_t number = 0;
  std::istringstream rows(content);
  for (std::string row; std::getline(rows, row);) {
    ++number;
    const std::string text = trimmed(without_comment(row));
    if (!text.empty()) {
      lines.push_back(line_of(text, fmt::format("{}, line {}", path.string(), number)));
    }
  }
  return lines;
}

std::string name_in_map(const std::string& name) {
  const std::string outside = " " + name;
  const bool ordinary =
      trimmed(name) == name &&
      std::ranges::none_of(
          std::array{"->", " + ", " #", "\t#", " \"", "\t\"", "\n"},
          [&](const char* word) { return outside.find(word) != std::string::npos; });
  if (ordinary) {
    return name;
  }
  std::string quoted = "\"";
  for (const char c : name) {
    quoted += c == '"' || c == '\\' ? "\\" : "";
    quoted += c == '\n' ? "\\n" : std::string(1, c);
  }
  return quoted + '"';
}

bool leaves_out(std::span<const MapLine> lines, std::string_view array) {
  const auto named = [&](std::string_view name) {
    return std::ranges::any_of(lines, [&](const MapLine& line) {
      std::vector<std::string> numbers;
      return line.ours.empty() && std::ranges::any_of(line.theirs, [&](const std::string& pattern) {
               return numbers_in(pattern, name, numbers);
             });
    });
  };
  for (size_t dot = array.find('.'); dot != std::string_view::npos;
       dot = array.find('.', dot + 1)) {
    if (named(array.substr(0, dot))) {
      return true;
    }
  }
  return named(array);
}

bool numbers_in(std::string_view pattern, std::string_view name,
                std::vector<std::string>& numbers) {
  numbers.clear();
  for (;;) {
    const Wildcard next = next_wildcard(pattern);
    if (next.bytes == 0) {
      return pattern == name;
    }
    if (!name.starts_with(pattern.substr(0, next.at))) {
      return false;
    }
    name.remove_prefix(next.at);
    pattern.remove_prefix(next.at + next.bytes);
    const size_t taken =
        next.rest ? name.size() : std::min(name.find_first_not_of("0123456789"), name.size());
    if (taken == 0) {
      return false;
    }
    numbers.emplace_back(name.substr(0, taken));
    name.remove_prefix(taken);
  }
}

std::string with_numbers(std::string_view pattern, std::span<const std::string> numbers) {
  std::string out;
  for (size_t i = 0;; ++i) {
    const Wildcard next = next_wildcard(pattern);
    if (next.bytes == 0 || i == numbers.size()) {
      return out + std::string(pattern);
    }
    out += std::string(pattern.substr(0, next.at)) + numbers[i];
    pattern.remove_prefix(next.at + next.bytes);
  }
}

}  // namespace espalier::hub
