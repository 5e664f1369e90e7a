#include "src/core/error.h"

namespace espalier {

void throw_bug(const Rule& rule, const std::string& values) {
  std::string_view file = rule.place.file_name();
  throw Bug(fmt::format("{}:{}: {}{}{}", file, rule.place.line(), rule.text,
                        values.empty() ? "" : ", got", values));
}

}  // namespace espalier
