#include "src/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "src/core/error.h"

namespace espalier::cli {
namespace {

/// Columns of UTF-8 text on a terminal, one per character (no wide characters occur here).
size_t columns(std::string_view text) {
  size_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

}  // namespace

void print(std::string_view text) {
  const bool ok =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(ok, "standard output cannot be written: {}", std::generic_category().message(errno));
}

void print_json(const nlohmann::ordered_json& object) {
  // File names may contain bytes that are not UTF-8.
  print(object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], columns(row[c]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - columns(row[c]), ' ');
      line += c == 0 ? row[c] + padding : "  " + padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string grouped(int64_t number) {
  std::string text = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

}  // namespace espalier::cli
