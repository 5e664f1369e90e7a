// Libraries that are loaded at first use.
#include "src/core/shared_library.h"

#include "src/core/error.h"
#include "tests/support/failure.h"

namespace espalier::shared_library_test {
namespace {

TEST(SharedLibrary, CallsWhatItFinds) {
  const SharedLibrary math({"libnowhere.so.7", "libm.so.6"}, "the test", "install it");
  EXPECT_EQ(math.name(), "libm.so.6");
  double (*power)(double, double) = nullptr;
  math.find("pow", power);
  EXPECT_EQ(power(3, 4), 81);
  EXPECT_TRUE(math.has("cos"));
  EXPECT_FALSE(math.has("cosine_of_nothing"));
}

TEST(SharedLibrary, SaysWhatIsMissing) {
  const std::string message =
      failure_of([] { SharedLibrary({"libnowhere.so.7"}, "Training on a moon", "fly there"); });
  EXPECT_THAT(message, HasSubstr("Training on a moon needs a library"));
  EXPECT_THAT(message, HasSubstr("libnowhere.so.7"));
  EXPECT_THAT(message, HasSubstr("fly there"));
  const SharedLibrary math({"libm.so.6"}, "the test", "install it");
  void (*function)() = nullptr;
  const std::string other = failure_of([&] { math.find("cosine_of_nothing", function); });
  EXPECT_THAT(other, HasSubstr("libm.so.6 lacks the function cosine_of_nothing"));
}

}  // namespace
}  // namespace espalier::shared_library_test
