// Safetensors files from anywhere: each fault is refused with the names of file and tensor, at once
// and without memory for more than the file holds.
#include "io/safetensors/sharded.h"
#include "tests/io/safetensors_example.h"
#include "tests/support/matchers.h"
#include "tests/support/memory_limit.h"

namespace espalier::io::hostile_safetensors_test {
namespace {

namespace fs = std::filesystem;

class HostileSafetensors : public SafetensorsTest {
 protected:
  std::string refusal_of_bytes(std::string_view bytes) const {
    write_bytes_of_file(path_, bytes);
    const std::string message = failure_of([&] { SafetensorsReader reader(path_); });
    EXPECT_TRUE(message.empty() || message.find(path_.string()) == 0) << message;
    EXPECT_TRUE(message.empty() || message.find("; ") != std::string::npos)
        << "no fix: " << message;
    return message;
  }
  std::string refusal(const std::string& header, size_t data_bytes = 8) const {
    return refusal_of_bytes(safetensors_file(header, data_bytes));
  }
  /// Of a header with tensor "a" of these members and 8 bytes of data.
  std::string refusal_of_a(const std::string& members) const {
    return refusal("{\"a\":{" + members + "}}");
  }
};

constexpr const char* kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

TEST_F(HostileSafetensors, GoodOnesAreRead) {
  EXPECT_EQ(refusal_of_a(kGood), "");
  EXPECT_EQ(refusal_of_a(R"("data_offsets" : [0, 8] , "dtype":"F16","shape":[2,1,2])"), "");
  EXPECT_EQ(refusal_of_a(R"("dtype":"F6_E2M3","shape":[2,2],"data_offsets":[0,3]},)"
                         R"("b":{"dtype":"F4","shape":[10],"data_offsets":[3,8])"),
            "");
  EXPECT_EQ(refusal_of_a(std::string(kGood) + R"(,"more":{"x":[{"y":[1.5,null]}]},"z":-1)"), "")
      << "unknown members";
  EXPECT_EQ(refusal(std::string("{\"a\":{") + kGood + "}} \n "), "") << "padding";
  EXPECT_EQ(refusal(R"({"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                    R"("b":{"dtype":"I64","shape":[0,9],"data_offsets":[0,0]},)"
                    R"("c":{"dtype":"I64","shape":[0],"data_offsets":[8,8]}})"),
            "");
  EXPECT_EQ(refusal("{}", 0), "");
  EXPECT_EQ(refusal(R"({"__metadata__":{}})", 0), "");
  EXPECT_EQ(refusal(R"({"__metadata__":null})", 0), "");
}

TEST_F(HostileSafetensors, EachFaultOfATensorIsNamed) {
  const std::vector<std::pair<std::string, std::string>> faults{
      {R"("shape":[2],"data_offsets":[0,8])", "has no dtype"},
      {R"("dtype":"F32","data_offsets":[0,8])", "has no shape"},
      {R"("dtype":"F32","shape":[2])", "has no data_offsets"},
      {R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])", "has \"dtype\" twice"},
      {R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])", "has \"shape\" twice"},
      {R"("dtype":"F33","shape":[2],"data_offsets":[0,8])", "dtype \"F33\", which is unknown"},
      {R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", "BOOL, F4, F6_E2M3"},
      {R"("dtype":7,"shape":[2],"data_offsets":[0,8])",
       "dtype of tensor \"a\" is 7 instead of a text"},
      {R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])", "is a list instead of a text"},
      {R"("dtype":null,"shape":[2],"data_offsets":[0,8])", "is null instead of a text"},
      {R"("dtype":"F32","shape":2,"data_offsets":[0,8])",
       "shape of tensor \"a\" is 2 instead of a list of whole numbers"},
      {R"("dtype":"F32","shape":"2","data_offsets":[0,8])", "is \"2\" instead of a list"},
      {R"("dtype":"F32","shape":{"0":2},"data_offsets":[0,8])", "is an object instead of a list"},
      {R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])", "shape of tensor \"a\" holds a list"},
      {R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])",
       "holds -2 instead of a whole number from 0"},
      {R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", "holds the number 2.0"},
      {R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])", "holds \"2\""},
      {R"("dtype":"F32","shape":[true],"data_offsets":[0,8])", "holds true"},
      {R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])",
       "holds 9223372036854775808"},
      {R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])",
       "holds the number 99999999999999999999"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])",
       "shape [4294967296, 4294967296] of F32, whose size is no number of bytes"},
      {R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,8])", "no number"},
      {R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8])", "no number of bytes"},
      {R"("dtype":"F4","shape":[3],"data_offsets":[0,8])", "no number of bytes"},
      {R"("dtype":"F32","shape":[3],"data_offsets":[0,8])",
       "of shape [3] and type F32 needs 12 bytes, but data_offsets [0, 8] have 8"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0])", "fewer than two data_offsets"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])", "more than two data_offsets"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,-8])",
       "data_offsets of tensor \"a\" holds -8"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", "data_offsets [8, 0] that descend"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])",
       "begins at byte 4 of the data, and bytes [0, 4) belong to no tensor"},
      {R"("dtype":"F32","shape":[3],"data_offsets":[0,12])",
       "ends at byte 12 of the data, but the file has only 8: it is truncated"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6])",
       "with data_offsets [2, 6] overlaps \"a\", which ends at 4"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[0],"data_offsets":[4,4])",
       "overlaps \"a\""},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"I16","shape":[1],"data_offsets":[6,8])",
       "tensor \"b\" begins at byte 6 of the data, and bytes [4, 6)"}};
  for (const auto& [members, words] : faults) {
    const std::string message = refusal_of_a(members);
    EXPECT_THAT(message, HasSubstr(words)) << members;
    EXPECT_THAT(message, AnyOf(HasSubstr("tensor \"a\""), HasSubstr("tensor \"b\""))) << members;
  }
  std::string shape = "1";
  for (int i = 0; i < 63; ++i) {
    shape += ",1";
  }
  const auto of_rank = [&] {
    return refusal_of_a(R"("dtype":"I64","data_offsets":[0,8],"shape":[)" + shape + "]");
  };
  EXPECT_EQ(of_rank(), "");
  shape += ",1";
  EXPECT_THAT(of_rank(), HasSubstr("a shape of more than 64 extents"));
}

TEST_F(HostileSafetensors, EachFaultOfAHeaderIsNamed) {
  const std::string a = std::string("\"a\":{") + kGood + "}";
  const std::vector<std::pair<std::string, std::string>> faults{
      {"{" + a + "," + a + "}", "tensor \"a\" stands twice in the header"},
      {"{" + a + R"(,"a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}})", "\"a\" stands twice"},
      {"{" + a + R"(,"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}})", "stands twice"},
      {" {" + a + "}", "does not begin with \"{\""},
      {"[{" + a + "}]", "does not begin with \"{\""},
      {"", "does not begin with"},
      {"{" + a, "is no JSON from byte"},
      {"{" + a + "}}", "is no JSON from byte"},
      {"{" + a + "}" + std::string(1, '\0'), "is no JSON from byte 55"},
      {"{" + a + "}" + std::string(1, '\0') + "{}", "is no JSON from byte 55"},
      {"{" + a + ",}", "is no JSON"},
      {"{\"\xff\":{" + std::string(kGood) + "}}", "is no JSON from byte 3"},
      {R"({"a":[]})", "tensor \"a\" is a list instead of an object"},
      {R"({"a":1})", "tensor \"a\" is 1 instead of an object"},
      {R"({"__metadata__":"pt"})", "__metadata__ is \"pt\" instead of an object"},
      {R"({"__metadata__":{"format":1}})", "__metadata__: \"format\" is 1 instead of a text"},
      {R"({"__metadata__":{"format":{}}})", "__metadata__: \"format\" is an object"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", "__metadata__ has \"k\" twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "its header has __metadata__ twice"},
      {"{}", "its last 8 bytes belong to no tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "its last 4 bytes belong to no"},
      {R"({"\u001b[31m":1})", R"(tensor "\u001b[31m" is 1)"}};
  for (const auto& [header, words] : faults) {
    EXPECT_THAT(refusal(header), HasSubstr(words)) << header;
  }
  const std::string longest(100'000, 'x');
  const std::string message = refusal("{\"" + longest + "\":1}");
  EXPECT_THAT(message, HasSubstr("xxx\"…"));
  EXPECT_LT(message.size(), 1000U) << "a long name does not fill the terminal";
}

TEST_F(HostileSafetensors, OtherFilesAreRecognised) {
  using namespace std::string_literals;
  const std::string rest(500, ' ');
  EXPECT_THAT(refusal_of_bytes(""), HasSubstr("has 0 bytes, too few"));
  EXPECT_THAT(refusal_of_bytes("\x01\0\0\0\0\0\0"s), HasSubstr("has 7 bytes, too few"));
  EXPECT_THAT(
      refusal_of_bytes("\x03\0\0\0\0\0\0\0{}"s),
      HasSubstr("its header has 3 bytes, but the file ends after 2 of them: it is truncated"));
  EXPECT_THAT(refusal_of_bytes(std::string(8, '\xff') + "{}"),
              HasSubstr("its header of 18446744073709551615 bytes is longer than the 100000000"));
  EXPECT_THAT(refusal_of_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:1"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(refusal_of_bytes("PK\x03\x04\0\0\x08\x08"s + rest), HasSubstr("torch.save"));
  EXPECT_THAT(refusal_of_bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"s + rest),
              HasSubstr("torch.save"));
  EXPECT_THAT(refusal_of_bytes("\x89HDF\r\n\x1a\n" + rest), HasSubstr("espalier import"));
  EXPECT_THAT(refusal_of_bytes("<!DOCTYPE html>" + rest), HasSubstr("a page of a web site"));
  EXPECT_THAT(refusal_of_bytes("{\n  \"metadata\": {}" + rest), HasSubstr("is JSON"));
  // A header of 0x0a7b bytes begins like a text.
  std::string header = "{}";
  header.resize(0x0a7b, ' ');
  EXPECT_EQ(refusal(header, 0), "");
  EXPECT_THAT(failure_of([&] { SafetensorsReader reader(folder_); }),
              HasSubstr("is not an ordinary file"));
}

TEST_F(HostileSafetensors, NoMemoryForMoreThanTheFileHolds) {
  // 400 bytes claim 2^59 bytes of data; a sparse file has them.
  const std::string claim = R"({"a":{"dtype":"F32","shape":[144115188075855872],)"
                            R"("data_offsets":[0,576460752303423488]}})";
  const MemoryLimit limit(size_t{64} << 20);
  EXPECT_THAT(refusal(claim), HasSubstr("it is truncated"));
  // 4 MB of nested lists, in a member that is skipped, and in one that is not.
  const std::string nested = std::string(2'000'000, '[') + std::string(2'000'000, ']');
  EXPECT_EQ(refusal_of_a(std::string(kGood) + ",\"more\":" + nested), "");
  EXPECT_THAT(refusal_of_a("\"shape\":" + nested), HasSubstr("shape of tensor \"a\" holds a list"));
  // 2 million values.
  std::string numbers = "0";
  for (int i = 0; i < 2'000'000; ++i) {
    numbers += ",0";
  }
  EXPECT_THAT(refusal_of_a("\"shape\":[" + numbers + "]"), HasSubstr("more than 64 extents"));
  EXPECT_EQ(refusal_of_a(std::string(kGood) + ",\"more\":[" + numbers + "]"), "");
}

TEST_F(HostileSafetensors, ManyTensors) {
  std::string header = "{";
  constexpr int kTensors = 100'000;
  for (int i = 0; i < kTensors; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i > 0 ? "," : "", i, kTensors - 1 - i, kTensors - i);
  }
  write_bytes_of_file(path_, safetensors_file(header + "}", kTensors));
  const SafetensorsReader reader(path_);
  EXPECT_EQ(reader.tensors().size(), 100'000U);
  EXPECT_EQ(reader.tensors().front().name, "99999") << "in the order of the data";
  std::vector<std::byte> byte(1);
  reader.read_bytes("7", byte);
  EXPECT_EQ(byte[0], static_cast<std::byte>((kTensors - 8) % 256));
}

}  // namespace
}  // namespace espalier::io::hostile_safetensors_test
