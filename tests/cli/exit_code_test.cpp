// Exit codes of errors: causes outside the program are never called a bug.
#include "src/cli/shared/exit_code.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <system_error>

#include "src/core/error.h"

namespace espalier::cli::exit_code_test {
namespace {

template <class Error>
ExitCode code_of(const Error& error) {
  return outcome_of(std::make_exception_ptr(error)).code;
}

TEST(ExitCode, FollowsTheError) {
  EXPECT_EQ(code_of(Failure("x")), kFailed);
  EXPECT_EQ(code_of(Failure("x", true)), kRetry);
  EXPECT_EQ(code_of(Usage("x")), kUsage);
  EXPECT_EQ(code_of(Bug("x")), kBug);
  EXPECT_EQ(code_of(std::logic_error("x")), kBug);
  EXPECT_EQ(code_of(std::bad_alloc()), kFailed);
  // No thread can be started; a path that no file can have.
  EXPECT_EQ(code_of(std::system_error(EAGAIN, std::generic_category())), kRetry);
  EXPECT_EQ(code_of(std::filesystem::filesystem_error(
                "x", std::error_code(ENAMETOOLONG, std::generic_category()))),
            kFailed);
}

}  // namespace
}  // namespace espalier::cli::exit_code_test
