// Fingerprints of files: every byte of small ones counts, large ones take no time.
#include "io/data/fingerprint.h"

#include <unistd.h>

#include <chrono>
#include <set>
#include <vector>

#include "src/core/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::io::fingerprint_test {
namespace {

namespace fs = std::filesystem;

class Fingerprint : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  static std::string of(const std::vector<std::string>& files) { return fingerprint(files); }

  const testing::TempDir folder_;
};

TEST_F(Fingerprint, StampsTellWhichFileWasWrittenInPlace) {
  const std::string a = file("a", "Espalier");
  const std::string b = file("b", "Espalier");
  fs::last_write_time(b, fs::last_write_time(b) - std::chrono::seconds(9));
  const FileStamps stamps({a, b, (folder_ / "none").string()});
  EXPECT_EQ(stamps.changed(), "");
  fs::rename(file("c", "another file"), a);
  EXPECT_EQ(stamps.changed(), "") << "a reader has the old one open";
  file("b", "espalier");
  EXPECT_EQ(stamps.changed(), b);
}

TEST_F(Fingerprint, IsThatOfTheContent) {
  // Of one file, `xxh64sum FILE` prints the same.
  EXPECT_EQ(of({file("a", "Espalier")}), of({file("b", "Espalier")}));
  EXPECT_EQ(of({file("a", "a")}), "1 bytes, xxHash64 d24ec4f1a98c6e5b");
  EXPECT_EQ(of({}), "");
  EXPECT_THAT(failure_of([&] { of({(folder_ / "none").string()}); }),
              HasSubstr("none cannot be opened"));
}

TEST_F(Fingerprint, ChangesWithEveryByteAndWithTheCut) {
  std::set<std::string> seen;
  const std::string text(1000, 'x');
  seen.insert(of({file("a", text)}));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'y';
    seen.insert(of({file("a", other)}));
  }
  seen.insert(of({file("a", text + "x")}));
  seen.insert(of({file("a", text), file("b", text)}));
  seen.insert(of({file("a", text + "x"), file("b", text.substr(1))}));
  EXPECT_EQ(seen.size(), text.size() + 4);
}

TEST_F(Fingerprint, OfALargeFileTakesNoTime) {
  const std::string first = file("large", "head");
  constexpr uintmax_t kSize = uintmax_t{100} << 30;  // sparse: no disk is used
  std::error_code error;
  fs::resize_file(first, kSize, error);
  if (error) {
    GTEST_SKIP() << "no sparse files here: " << error.message();
  }
  const auto begin = std::chrono::steady_clock::now();
  std::set<std::string> seen{of({first})};
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const uintmax_t at : {uintmax_t{0}, uintmax_t{65'535}, kSize - 65'536, kSize - 1}) {
    std::fstream edit(first, std::ios::in | std::ios::out | std::ios::binary);
    edit.seekp(static_cast<std::streamoff>(at)).put('!');
    edit.close();
    seen.insert(of({first}));
  }
  fs::resize_file(first, kSize + 1);
  seen.insert(of({first}));
  EXPECT_EQ(seen.size(), 6U) << "head, tail and size count";
}

}  // namespace
}  // namespace espalier::io::fingerprint_test
