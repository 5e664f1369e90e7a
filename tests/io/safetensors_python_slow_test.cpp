// The reference implementation (the Python package "safetensors") reads our files and writes them
// again with the same bytes; it and our reader agree about thousands of damaged files.
//
// Its Python is that of ESPALIER_SAFETENSORS_PYTHON, else a virtual environment that pip makes in
// the build folder. Skipped where pip cannot reach the package.
#include <gmock/gmock.h>

#include <cstdlib>

#include "io/safetensors/reader.h"
#include "src/core/rng.h"
#include "tests/io/safetensors_example.h"

namespace espalier::io::safetensors_python_slow_test {
namespace {

namespace fs = std::filesystem;

bool runs(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

/// A Python with safetensors; empty if there is none.
std::string python() {
  const char* chosen = std::getenv("ESPALIER_SAFETENSORS_PYTHON");
  const fs::path build = fs::path(ESPALIER_PROGRAM).parent_path() / "../..";
  const std::string folder = (build.lexically_normal() / "safetensors-venv").string();
  const std::string own = folder + "/bin/python";
  const auto works = [](const std::string& program) {
    return runs(program + " -c 'import safetensors'");
  };
  for (const std::string& program : {std::string(chosen != nullptr ? chosen : "python3"), own}) {
    if (works(program)) {
      return program;
    }
  }
  const bool made = runs("python3 -m venv --clear " + folder) &&
                    runs(own +
                         " -m pip install --quiet --disable-pip-version-check --retries 1 "
                         "--timeout 20 safetensors");
  return made && works(own) ? own : "";
}

class SafetensorsPython : public SafetensorsTest {
 protected:
  void SetUp() override {
    SafetensorsTest::SetUp();
    python_ = python();
    if (python_.empty()) {
      GTEST_SKIP() << "no Python with safetensors: set ESPALIER_SAFETENSORS_PYTHON";
    }
  }
  void run(const std::string& code) const {
    const fs::path script = folder_ / "script.py";
    write_bytes_of_file(script, code);
    ASSERT_EQ(
        std::system(fmt::format("{} {} {}", python_, script.string(), path_.string()).c_str()), 0);
  }

  std::string python_;
};

TEST_F(SafetensorsPython, TheReferenceWritesOurFilesAgain) {
  write_all_types(path_);
  run(R"(
import ctypes, safetensors, sys
path = sys.argv[1]
tensors = safetensors.deserialize(open(path, "rb").read())
names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
         "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
         "U16": "uint16", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
         "F8_E5M2": "float8_e5m2"}
specs, kept = {}, []
for name, tensor in reversed(tensors):  # another order gives the same file
    data, dtype = bytes(tensor["data"]), names[tensor["dtype"]]
    if hasattr(safetensors, "TensorSpec"):
        kept.append(ctypes.create_string_buffer(data, max(1, len(data))))
        specs[name] = safetensors.TensorSpec(dtype=dtype, shape=tensor["shape"], data_len=len(data),
                                             data_ptr=ctypes.addressof(kept[-1]))
    else:  # before 0.8
        specs[name] = {"dtype": dtype, "shape": tensor["shape"], "data": data}
safetensors.serialize_file(specs, path + ".again", {"format": "pt"})
)");
  const fs::path again = path_.string() + ".again";
  EXPECT_TRUE(read_text(again, "file") == read_text(path_, "file"));
  const SafetensorsReader reader(again);
  EXPECT_EQ(reader.tensors().size(), all_types().size());
  for (const SafetensorsEntry& entry : all_types()) {
    std::vector<std::byte> bytes(reader.tensor(entry.name).bytes());
    reader.read_bytes(entry.name, bytes);
    EXPECT_EQ(bytes, bytes_of(entry)) << entry.name;
  }
}

/// One or two characters of a header replaced, removed or inserted, or digits by others; sometimes
/// the end of the data is lost.
std::string damaged(std::string bytes, uint64_t round) {
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) {
    const Philox words = philox(11, round, next++);
    return espalier::below(uint64_t{words[0]} << 32 | words[1], bound);
  };
  constexpr std::string_view kCharacters("0123456789-.eE{}[]\",: \\utFB_\0\xff", 31);
  std::string header = bytes.substr(8);
  const size_t data = header.size() - header.find_last_of("} ") - 1;
  std::string end = header.substr(header.size() - data);
  header.resize(header.size() - data);
  for (uint64_t changes = 1 + below(4) / 3; changes > 0; --changes) {
    const size_t at = below(header.size());
    const char character = kCharacters[below(kCharacters.size())];
    if (const uint64_t way = below(8); way == 0) {
      header.erase(at, 1);
    } else if (way <= 2) {
      header.insert(at, 1, character);
    } else if (const size_t digit = header.find_first_of("0123456789", at);
               way <= 6 && digit != std::string::npos) {
      header[digit] = static_cast<char>('0' + below(10));
    } else {
      header[at] = character;
    }
  }
  if (below(8) == 0) {
    end.resize(end.size() - below(end.size()));
  }
  return safetensors_file(header, 0) + end;
}

TEST_F(SafetensorsPython, BothAgreeAboutDamagedFiles) {
  const std::vector<std::string> originals{
      safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]}})",
                       12),
      safetensors_file(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],)"
                       R"("data_offsets":[4,7]},"é\n":{"shape":[],"data_offsets":[0,4],)"
                       R"("dtype":"I32"},"c":{"dtype":"BF16","shape":[0,5],"data_offsets":[7,7]}})"
                       "    ",
                       7)};
  constexpr uint64_t kRounds = 20'000;
  const fs::path all = path_.string() + ".all";
  std::ofstream out(all, std::ios::binary);
  std::vector<std::string> refusals;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const std::string bytes = damaged(originals[round % originals.size()], round);
    const auto length = static_cast<uint32_t>(bytes.size());
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << bytes;
    write_bytes_of_file(path_, bytes);
    refusals.push_back(failure_of([&] { SafetensorsReader reader(path_); }));
  }
  out.close();
  run(R"(
import safetensors, struct, sys
data, verdicts, at = open(sys.argv[1] + ".all", "rb").read(), "", 0
while at < len(data):
    length, = struct.unpack_from("<I", data, at)
    try:
        safetensors.deserialize(data[at + 4:at + 4 + length])
        verdicts += "1"
    except safetensors.SafetensorError:
        verdicts += "0"
    at += 4 + length
open(sys.argv[1] + ".verdicts", "w").write(verdicts)
)");
  const std::string verdicts = read_text(path_.string() + ".verdicts", "verdicts");
  ASSERT_EQ(verdicts.size(), kRounds);
  int both = 0;
  int only_reference = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const std::string& refusal = refusals[round];
    const bool reference = verdicts[round] == '1';
    both += reference && refusal.empty() ? 1 : 0;
    only_reference += reference && !refusal.empty() ? 1 : 0;
    ASSERT_TRUE(reference || !refusal.empty()) << "only ours reads round " << round;
    // What header.h says that is refused besides.
    ASSERT_TRUE(!reference || refusal.empty() || refusal.find("twice") != std::string::npos ||
                refusal.find("does not begin with") != std::string::npos)
        << "round " << round << ": " << refusal;
  }
  std::printf("read by both: %d, only by the reference: %d, of %d\n", both, only_reference,
              static_cast<int>(kRounds));
  EXPECT_GT(both, 500);
}

}  // namespace
}  // namespace espalier::io::safetensors_python_slow_test
