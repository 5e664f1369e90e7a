#pragma once
// Error messages of failed actions.
#include <string>

#include "src/core/error.h"
#include "tests/support/matchers.h"

namespace espalier {

/// The message of the Failure that `action` throws; empty when it throws none.
template <class Action>
std::string failure_of(Action action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace espalier
