#include "src/core/error.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace espalier {

bool is_transient(int error) {
  constexpr std::array kPermanent{EACCES, EPERM,  EROFS,        ENOENT, ENOTDIR,
                                  EISDIR, EEXIST, ENAMETOOLONG, ELOOP,  EINVAL};
  return std::ranges::find(kPermanent, error) == kPermanent.end();
}

void throw_bug(const Rule& rule, const std::string& values) {
  std::string_view file = rule.place.file_name();
  throw Bug(fmt::format("{}:{}: {}{}{}", file, rule.place.line(), rule.text,
                        values.empty() ? "" : ", got", values));
}

}  // namespace espalier
