#pragma once
// For tests that start their own program again as another process: `PROGRAM FLAG ARGUMENT` runs the
// function registered for FLAG, and no test.
#include <map>
#include <string>

namespace espalier {

using ChildMain = int (*)(const std::string& argument);

inline std::map<std::string, ChildMain>& children() {
  static std::map<std::string, ChildMain> all;
  return all;
}

/// Registers a function, at namespace scope: `const ChildProcess kDie("--die", run);`
struct ChildProcess {
  ChildProcess(const std::string& flag, ChildMain run) { children()[flag] = run; }
};

}  // namespace espalier
