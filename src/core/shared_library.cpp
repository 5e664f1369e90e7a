#include "src/core/shared_library.h"

#include <dlfcn.h>

#include "src/core/error.h"

namespace espalier {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& purpose,
                             const std::string& fix) {
  std::string reasons;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  fail("{} needs a library that cannot be loaded ({}): {}", purpose, reasons, fix);
}

SharedLibrary::~SharedLibrary() { static_cast<void>(dlclose(handle_)); }

bool SharedLibrary::has(const char* name) const { return dlsym(handle_, name) != nullptr; }

void* SharedLibrary::address(const char* name) const {
  void* found = dlsym(handle_, name);
  check(found != nullptr,
        "{} lacks the function {}: it is not the version that this program was built for; install "
        "that version",
        name_, name);
  return found;
}

}  // namespace espalier
