// JSON and TOML from anywhere, before the libraries that read them by recursion: levels, keys,
// sizes.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/config/toml_text.h"
#include "io/files/raw_file.h"
#include "io/run/parse_json.h"
#include "tests/support/failure.h"

namespace espalier::io::hostile_text_test {
namespace {

namespace fs = std::filesystem;

TEST(HostileText, LevelsOfJsonAreCounted) {
  EXPECT_EQ(json_levels("1"), 0);
  EXPECT_EQ(json_levels(R"({"a": [1, [2]], "b": {}})"), 3);
  EXPECT_EQ(json_levels(R"(["[[[", "\"[[", "\\", []])"), 2);
  EXPECT_EQ(json_levels("]]]["), 0) << "no JSON: the parser stops at the first";
}

TEST(HostileText, JsonOfManyLevelsIsDiscarded) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(parse_json(nested(64)).is_array());
  EXPECT_TRUE(parse_json(nested(65)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
  EXPECT_TRUE(parse_json("{\"a\": ").is_discarded());
  EXPECT_EQ(parse_json("{\"a\": 1}")["a"], 1);
}

TEST(HostileText, PartsOfKeysAreCounted) {
  EXPECT_EQ(longest_key(""), 1);
  EXPECT_EQ(longest_key("a = 1.5\n[b.c]\nd = [1.5, 2.5, 3.5]\n"), 2);
  EXPECT_EQ(longest_key("a . b\t.c=1"), 3);
  EXPECT_EQ(longest_key("a = {b.c.d = 1}"), 3);
  EXPECT_EQ(longest_key(R"("="."[".'.' = 1)"), 3) << "quoted parts";
  EXPECT_EQ(longest_key("# a.b.c.d\na = 'a.b.c' # it's.a.b\n"), 1);
  EXPECT_EQ(longest_key("a = \"\\\".b.c.d\"\n"), 1) << "an escaped quote";
  EXPECT_EQ(longest_key("a = \"\"\"\n x.y.z \"\" ' \\\" .q\"\"\"\"\"\nb.c = 1"), 2);
  EXPECT_EQ(longest_key("a = {x = \"\"\" \" \"\"\", a.b.c.d = 1}"), 4) << "quotes in a text";
  EXPECT_EQ(longest_key("a = '''x.y\n'z' ''' \nb.c.d=1"), 3);
  EXPECT_EQ(longest_key("a = \"torn.x.y"), 1);
}

TEST(HostileText, ATextOfMoreBytesIsNotRead) {
  const fs::path path = fs::temp_directory_path() / fmt::format("espalier-huge-{}", ::getpid());
  std::ofstream(path) << "123456";
  EXPECT_EQ(read_text(path, "config", 6), "123456");
  EXPECT_THAT(failure_of([&] { read_text(path, "config", 5); }),
              HasSubstr("has 6 bytes, more than the 5 that are read"));
  fs::remove(path);
}

}  // namespace
}  // namespace espalier::io::hostile_text_test
