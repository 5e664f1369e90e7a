#include "src/model/networks/layer_list.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "src/core/error.h"

namespace espalier::model {
namespace {

std::optional<int64_t> number_of(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  return whole && value >= 0 && value <= 65536 ? std::optional(value) : std::nullopt;
}

}  // namespace

Words::Words(const std::string& text) : text_(text) {
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    words_.push_back(word);
  }
}

bool Words::at_number() const { return !done() && number_of(words_[next_]).has_value(); }

bool Words::skip(std::string_view word) {
  const bool here = !done() && words_[next_] == word;
  next_ += here ? 1 : 0;
  return here;
}

int64_t Words::number(const char* what) {
  const std::string given = word();
  const auto value = number_of(given);
  check(value.has_value(), "model.network: '{}' needs {} (a number up to 65536), not '{}'", text_,
        what, given);
  return *value;
}

void Words::options(std::initializer_list<Option> known) {
  std::vector<std::string> seen;
  while (!done()) {
    const std::string name = word();
    const auto found = std::ranges::find(known, name, &Option::name);
    check(found != known.end() && std::ranges::find(seen, name) == seen.end(),
          "model.network: '{}' has an unexpected '{}'", text_, name);
    seen.push_back(name);
    if (found->number != nullptr) {
      *found->number = number("a number there");
    } else {
      *found->flag = true;
    }
  }
}

std::string Words::rest() const {
  return fmt::format("{}",
                     fmt::join(words_.begin() + static_cast<ptrdiff_t>(next_), words_.end(), " "));
}

std::pair<int64_t, std::string> repeated(const std::string& text) {
  Words words(text);
  if (!words.at_number()) {
    return {1, words.rest()};
  }
  const int64_t times = words.number("a number of layers");
  check(words.skip("x") && !words.done() && times > 0 && times <= 1000,
        "model.network: '{}' begins with a number; repetitions are '3 x conv 64 3', up to 1000",
        text);
  return {times, words.rest()};
}

}  // namespace espalier::model
