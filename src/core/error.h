#pragma once
// Errors: one root, two kinds.
//
//   Failure  the run's environment is wrong (file, config, network, peer). The message names the
//            cause and the fix. `check` and `fail` throw it. Exit code 1, or 5 if it is retryable
//            (2 for its child `Usage`).
//   Bug      an internal invariant is broken. `require` throws it with file:line and the values
//            that disagree. Exit code 3.
//
// Libraries throw; only src/cli prints or exits.
#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace espalier {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An error outside the program; the message gives the cause and the fix.
class Failure : public Error {
 public:
  explicit Failure(const std::string& message, bool retryable = false)
      : Error(message), retryable_(retryable) {}
  /// Whether the same command may succeed later: a peer, the disk or a device failed.
  bool retryable() const { return retryable_; }

 private:
  bool retryable_;
};

/// A wrong command line (exit code 2).
class Usage : public Failure {
 public:
  using Failure::Failure;
};

/// An internal error.
class Bug : public Error {
 public:
  using Error::Error;
};

/// Throws Failure with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
  throw Failure(fmt::format(message, std::forward<Args>(args)...));
}

/// Throws Failure with a formatted message unless `ok`.
template <class... Args>
void check(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]] {
    throw Failure(fmt::format(message, std::forward<Args>(args)...));
  }
}

/// Whether a system call that failed with this errno may succeed later: not if the path, its
/// permissions or its length are wrong.
bool is_transient(int error);

/// Throws Failure with a formatted message unless `ok`; retryable if `is_transient(error)`.
template <class... Args>
void check_system(bool ok, int error, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]] {
    throw Failure(fmt::format(message, std::forward<Args>(args)...), is_transient(error));
  }
}

/// A rule and the source location that states it; converted from the string at the call of
/// `require`.
struct Rule {
  std::string_view text;
  std::source_location place;
  // NOLINTNEXTLINE(google-explicit-constructor): the implicit conversion records the caller's place
  Rule(const char* rule, std::source_location at = std::source_location::current())
      : text(rule), place(at) {}
};

[[noreturn]] void throw_bug(const Rule& rule, const std::string& values);

/// Throws Bug unless `ok`; the message carries file:line, the rule and the values.
/// Example: require(x.rows() == y.rows(), "rows must match", x.rows(), y.rows());
template <class... Values>
void require(bool ok, const Rule& rule, const Values&... values) {
  if (!ok) [[unlikely]] {
    std::string text;
    ((text += fmt::format(" {}", values)), ...);
    throw_bug(rule, text);
  }
}

}  // namespace espalier
