#pragma once
// Tests of the real program. Each Workplace is its own folder, with a small text and config, where
// the program runs.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/matchers.h"

namespace espalier {

/// The last checkpoint of a run of c.toml.
const std::string kLast = "run/checkpoints/step-000020.h5";

struct Ran {
  int code = -1;  ///< exit code; 128 + signal
  std::string out, err;

  /// Standard output, which --json makes one JSON object.
  nlohmann::json json() const;
};

class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  /// Runs `espalier ARGUMENTS` through the shell in the folder.
  Ran run(const std::string& arguments) const;
  Ran shell(const std::string& command) const;
  /// Like `run`, and checks that the exit code is 0.
  Ran ok(const std::string& arguments) const;
  Ran shell_ok(const std::string& command) const;
  /// Checks that it fails with this code and one error that has `words`.
  void fails(const std::string& arguments, int code, const std::string& words) const;
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  void write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& name) const;
  /// Column `key` of RUN/metrics.jsonl.
  std::vector<double> curve(const std::string& run, const char* key) const;
  nlohmann::json summary(const std::string& run) const;

  /// Words in an order that a small network can partly learn: each depends on the one before.
  static std::string text(size_t bytes);
  /// 20 steps, pruned after step 8, a checkpoint every 5 steps.
  static std::string config();

 private:
  std::filesystem::path folder_;
};

using Rows = std::vector<std::pair<std::string, std::string>>;

/// A test of the program in its own folder.
class ProgramTest : public ::testing::Test {
 protected:
  const Workplace here;
};
class ProgramTestWithParam : public ProgramTest,
                             public ::testing::WithParamInterface<std::string> {};

/// Checks the exit code; a failure prints the program's output.
void expect_code(const Ran& ran, int code);

/// Checks that the program failed with `code` and printed one error with `words`.
void expect_error(const Ran& ran, int code, const std::string& words);

}  // namespace espalier
