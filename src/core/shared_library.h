#pragma once
// A shared library that is loaded when it is first needed, so that a program starts, and does
// everything else, where it is missing: libraries of GPUs.
#include <string>
#include <type_traits>
#include <vector>

namespace espalier {

class SharedLibrary {
 public:
  /// `names`: tried in order, as the system's loader looks for them. Throws Failure when it finds
  /// none: what needs the library (`purpose`, as in "products on a GPU"), the loader's reasons, and
  /// `fix`.
  SharedLibrary(const std::vector<std::string>& names, const std::string& purpose,
                const std::string& fix);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  /// Sets `to` to the function of that name. Throws Failure when the library has none: it is
  /// another version than this program was built for.
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
