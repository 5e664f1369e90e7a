#pragma once
// A shared library, loaded on first use. So a program starts without it and fails only where it
// needs the library. Used for GPU libraries.
#include <string>
#include <type_traits>
#include <vector>

namespace espalier {

class SharedLibrary {
 public:
  /// `names`: tried in order, on the system loader's search path. If none loads, throws Failure
  /// with `purpose` (as in "products on a GPU"), the loader's errors and `fix`.
  SharedLibrary(const std::vector<std::string>& names, const std::string& purpose,
                const std::string& fix);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  /// Sets `to` to the function of that name. Throws Failure if the library lacks it: the library's
  /// version differs from the one at build time.
  template <class Function>
  void find(const char* name, Function*& to) const {
    static_assert(std::is_function_v<Function>);
    to = reinterpret_cast<Function*>(address(name));
  }
  bool has(const char* name) const;
  const std::string& name() const { return name_; }

 private:
  void* address(const char* name) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace espalier
