// Safetensors files: written and read again bit for bit, in one file and in shards; golden bytes of
// the reference implementation; rounding; folders; disks that fail.
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "io/safetensors/sharded.h"
#include "tests/io/safetensors_example.h"
#include "tests/support/failing_files.h"

namespace espalier::io::safetensors_test {
namespace {

namespace fs = std::filesystem;
using testing::FailingFiles;

class Safetensors : public SafetensorsTest {};
class SafetensorsFolder : public SafetensorsTest {};
class SafetensorsDisk : public SafetensorsTest {};

void expect_all_types(const ShardedSafetensors& model) {
  const std::vector<SafetensorsEntry> entries = all_types();
  EXPECT_EQ(model.names().size(), entries.size());
  for (const SafetensorsEntry& entry : entries) {
    ASSERT_TRUE(model.has(entry.name));
    const SafetensorsTensor& tensor = model.tensor(entry.name);
    EXPECT_EQ(tensor.type, entry.type) << entry.name;
    EXPECT_EQ(tensor.shape, entry.shape) << entry.name;
    std::vector<std::byte> bytes(tensor.bytes());
    model.read_bytes(entry.name, bytes);
    EXPECT_EQ(bytes, bytes_of(entry)) << entry.name;
  }
}

TEST_F(Safetensors, EveryTypeComesBackBitForBit) {
  write_all_types(path_, {.metadata = {{"format", "pt"}, {"épalier", "\"\n"}}});
  EXPECT_THAT(files(), ElementsAre("model.safetensors"));
  const ShardedSafetensors model(path_);
  expect_all_types(model);
  EXPECT_EQ(model.metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"épalier", "\"\n"}}));
  EXPECT_EQ(model.shards().front().tensors().front().type, SafetensorsType::u64) << "wide first";
  EXPECT_EQ(model.shards().front().tensors().back().type, SafetensorsType::boolean);
}

TEST_F(Safetensors, ShardsHoldWhatOneFileHolds) {
  for (const uint64_t most : {uint64_t{1}, uint64_t{8}, uint64_t{64}, uint64_t{100}}) {
    const fs::path folder = folder_ / std::to_string(most);
    write_all_types(folder / "model.safetensors", {.max_shard_bytes = most});
    const ShardedSafetensors model(folder);
    EXPECT_GT(model.shards().size(), 1U);
    expect_all_types(model);
    EXPECT_EQ(model.metadata().at("format"), "pt");
    for (const SafetensorsReader& shard : model.shards()) {
      uint64_t bytes = 0;
      for (const SafetensorsTensor& tensor : shard.tensors()) {
        bytes += tensor.bytes();
      }
      EXPECT_TRUE(bytes <= most || shard.tensors().size() == 1 ||
                  shard.tensors().front().bytes() == bytes);
    }
  }
}

/// The bytes of the reference implementation for the same tensors (of its own tests).
TEST_F(Safetensors, GoldenBytes) {
  const auto written = [&](const SafetensorsEntry& entry,
                           std::map<std::string, std::string> texts) {
    SafetensorsWriter writer(path_, {entry}, {.metadata = std::move(texts)});
    writer.write(entry.name, std::vector<float>{0, 1, 2, 3, 4, 5});
    writer.commit();
    return read_text(path_, "file");
  };
  std::string numbers;
  for (const float x : {0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F}) {
    numbers.append(reinterpret_cast<const char*>(&x), sizeof(x));
  }
  using namespace std::string_literals;
  EXPECT_EQ(written({.name = "attn.0", .shape = {1, 2, 3}}, {}),
            "\x40\0\0\0\0\0\0\0"s
            R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})" +
                numbers);
  EXPECT_EQ(written({.name = "attn0", .shape = {1, 1, 2, 3}}, {}),
            "\x48\0\0\0\0\0\0\0"s
            R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )" +
                numbers);
  SafetensorsWriter(path_, {}, {.metadata = {{"framework", "pt"}}}).commit();
  EXPECT_EQ(read_text(path_, "file"),
            "\x28\0\0\0\0\0\0\0{\"__metadata__\":{\"framework\":\"pt\"}}     "s);
  EXPECT_EQ(SafetensorsReader(path_).metadata().at("framework"), "pt");
  SafetensorsWriter(path_, {}, {.metadata = {}}).commit();
  EXPECT_EQ(read_text(path_, "file"), "\x08\0\0\0\0\0\0\0{}      "s);
}

TEST_F(Safetensors, NumbersAreRoundedToNearestEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0F,  -0.0F,  1.0F / 3,  -2.5F,     65504.0F,  65520.0F,
                                  1e30F, 1e-30F, 0x1.01p0F, 0x1.03p0F, kInfinity, -kInfinity};
  const auto n = std::ssize(values);
  SafetensorsWriter writer(path_, {{.name = "f64", .type = SafetensorsType::f64, .shape = {n}},
                                   {.name = "f32", .type = SafetensorsType::f32, .shape = {n}},
                                   {.name = "f16", .type = SafetensorsType::f16, .shape = {n}},
                                   {.name = "bf16", .type = SafetensorsType::bf16, .shape = {n}}});
  for (const char* name : {"bf16", "f16", "f32", "f64"}) {
    writer.write(name, std::span(values).first(5));
    writer.write(name, std::span(values).subspan(5));
  }
  writer.commit();
  const SafetensorsReader file(path_);
  std::vector<float> as_fp16;
  std::vector<float> as_bf16;
  for (const float x : values) {
    as_fp16.push_back(to_float(to_fp16(x)));
    as_bf16.push_back(to_float(to_bf16(x)));
  }
  EXPECT_EQ(file.read("f64"), values);
  EXPECT_EQ(file.read("f32"), values);
  EXPECT_EQ(file.read("f16"), as_fp16);
  EXPECT_EQ(file.read("bf16"), as_bf16);
  EXPECT_EQ(as_bf16[8], 0x1.00p0F) << "a tie goes to the even one";
  EXPECT_EQ(as_bf16[9], 0x1.04p0F);
  EXPECT_TRUE(std::isinf(as_fp16[5]));

  std::vector<float> part(3);
  file.read("f16", part, 4);
  EXPECT_THAT(part, ElementsAre(as_fp16[4], as_fp16[5], as_fp16[6]));
  std::vector<bf16> narrow(values.size());
  file.read("f64", Tensor(narrow.data(), DType::bf16, Shape{n}));
  std::vector<bf16> same(values.size());
  file.read("bf16", Tensor(same.data(), DType::bf16, Shape{3, n / 3}));
  EXPECT_EQ(narrow, same);
  EXPECT_THROW(file.read("f16", part, n - 2), Bug);
}

/// Vector code has the bits of the scalar functions.
TEST_F(Safetensors, EveryHalfAndMoreAreConverted) {
  std::vector<fp16> halves(1 << 16);
  std::vector<float> values(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<uint16_t>(i);
    // All exponents and signs; mantissas of ties and of their neighbours among them.
    const auto low = static_cast<uint32_t>((0x7fffU + i % 3) & 0xffffU);
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(i) << 16U | low);
  }
  const auto n = std::ssize(values);
  SafetensorsWriter writer(path_, {{.name = "f16", .type = SafetensorsType::f16, .shape = {n}},
                                   {.name = "x16", .type = SafetensorsType::f16, .shape = {n}},
                                   {.name = "xb16", .type = SafetensorsType::bf16, .shape = {n}}});
  writer.write("f16", Tensor(halves.data(), DType::fp16, Shape{n}));
  writer.write("x16", values);
  writer.write("xb16", values);
  writer.commit();
  const SafetensorsReader file(path_);
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  const std::vector<float> from_half = file.read("f16");
  const std::vector<float> as_half = file.read("x16");
  const std::vector<float> as_bf16 = file.read("xb16");
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits(from_half[i]), bits(to_float(halves[i]))) << i;
    ASSERT_EQ(bits(as_half[i]), bits(to_float(to_fp16(values[i])))) << i;
    ASSERT_EQ(bits(as_bf16[i]), bits(to_float(to_bf16(values[i])))) << i;
  }
}

TEST_F(Safetensors, PiecesJoin) {
  constexpr int64_t kCount = (int64_t{1} << 20) + 12345;  // several pieces of each type
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 251) - 125;  // exact in bf16 and fp16
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto type :
       {SafetensorsType::f64, SafetensorsType::f32, SafetensorsType::f16, SafetensorsType::bf16}) {
    entries.push_back({.name = std::string(name_of(type)), .type = type, .shape = {kCount}});
  }
  SafetensorsWriter writer(path_, entries);
  for (const SafetensorsEntry& entry : entries) {
    writer.write(entry.name, values);
  }
  writer.commit();
  const SafetensorsReader file(path_);
  for (const SafetensorsEntry& entry : entries) {
    EXPECT_TRUE(file.read(entry.name) == values) << entry.name;
    std::vector<float> part(700'001);
    file.read(entry.name, part, 300'003);
    EXPECT_TRUE(std::ranges::equal(part, std::span(values).subspan(300'003, part.size())));
  }
}

TEST_F(Safetensors, ValuesOfOtherTypesAreRefused) {
  write_all_types(path_);
  const SafetensorsReader file(path_);
  for (const char* name : {"i64", "mask", "fp8", "fp8.wide"}) {
    EXPECT_THAT(failure_of([&] { file.read(name); }),
                AllOf(HasSubstr(path_.string()), HasSubstr(name),
                      HasSubstr("values are read from F64, F32, F16 and BF16")));
  }
  EXPECT_THAT(failure_of([&] { file.read("w"); }),
              HasSubstr("has no tensor \"w\"; of its 17 tensors the first are: \"u64\""));
}

TEST_F(Safetensors, TheListOfTensorsIsChecked) {
  const auto refusal = [&](std::vector<SafetensorsEntry> entries) {
    return failure_of([&] { SafetensorsWriter(path_, entries); });
  };
  EXPECT_THAT(refusal({{.name = "a"}, {.name = "a"}}),
              HasSubstr("two tensors would be named \"a\""));
  EXPECT_THAT(refusal({{.name = "__metadata__"}}), HasSubstr("the format's own name"));
  EXPECT_THAT(refusal({{.name = "a", .shape = {-1}}}), HasSubstr("shape [-1] of F32"));
  EXPECT_THAT(refusal({{.name = "a", .shape = {1LL << 40, 1LL << 40}}}), HasSubstr("no number"));
  EXPECT_THAT(refusal({{.name = "a", .type = SafetensorsType::f4, .shape = {3}}}),
              HasSubstr("no number of bytes"));
  EXPECT_THAT(refusal({{.name = "\xff"}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(failure_of([&] { SafetensorsWriter(folder_ / "model.bin", {}); }),
              HasSubstr("does not end in .safetensors"));
  EXPECT_TRUE(files().empty());
  SafetensorsWriter writer(path_, {{.name = "a", .shape = {2}}});
  const std::vector<float> values(2);
  EXPECT_THROW(writer.write("b", values), Bug);
  EXPECT_THROW(writer.commit(), Bug);
  writer.write("a", values);
  EXPECT_THROW(writer.write("a", values), Bug);
  writer.commit();
}

TEST_F(Safetensors, WithoutCommitNoFileStays) {
  {
    SafetensorsWriter writer(path_, all_types(), {.max_shard_bytes = 50});
    EXPECT_EQ(files().size() + 1, writer.files().size()) << "temporary files; the index is last";
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(Safetensors, AModelIsReplacedByOneOfTheSameFilesOnly) {
  const auto write = [&](uint64_t most) {
    return failure_of([&] { write_all_types(path_, {.max_shard_bytes = most}); });
  };
  EXPECT_EQ(write(100), "");
  const auto first = files();
  EXPECT_EQ(write(100), "");
  EXPECT_EQ(files(), first);
  expect_all_types(ShardedSafetensors(folder_));
  EXPECT_THAT(write(1000), HasSubstr("belongs to an earlier model with another number of files"));
  EXPECT_THAT(write(1), HasSubstr("belongs to an earlier model"));
  EXPECT_EQ(files(), first);
  write_bytes_of_file(folder_ / "other-00001-of-00002.safetensors", "");  // of another model
  for (const std::string& name : first) {
    fs::remove(folder_ / name);
  }
  EXPECT_EQ(write(1000), "");
  EXPECT_THAT(write(100), HasSubstr("model.safetensors belongs to an earlier model"));
}

TEST_F(SafetensorsFolder, WhichFileIsRead) {
  const auto opened = [&] { return ShardedSafetensors(folder_).path().filename().string(); };
  const auto refusal = [&] { return failure_of(opened); };
  EXPECT_THAT(refusal(), HasSubstr("holds no safetensors file, but is empty"));
  write_bytes_of_file(folder_ / "config.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("holds no safetensors file, but \"config.json\""));
  write_bytes_of_file(folder_ / "pytorch_model.bin", "PK");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("holds \"pytorch_model.bin\""), HasSubstr("convert with: python3 -c"),
                    HasSubstr("glob.glob('*.bin')")));
  write_all_types(folder_ / "adapter.safetensors");
  EXPECT_EQ(opened(), "adapter.safetensors");
  write_all_types(folder_ / "other.safetensors", {.max_shard_bytes = 100});
  EXPECT_EQ(opened(), "other.safetensors.index.json") << "the only index";
  fs::remove(folder_ / "other.safetensors.index.json");
  EXPECT_THAT(refusal(), HasSubstr("name one of them, or download the index"));
  write_all_types(path_);
  EXPECT_EQ(opened(), "model.safetensors");
  EXPECT_THAT(failure_of([&] { ShardedSafetensors(folder_ / "missing"); }),
              HasSubstr("missing cannot be opened: No such file or directory"));
}

TEST_F(SafetensorsFolder, PartsOfAModelThatAreMissingAreNamed) {
  write_all_types(path_, {.max_shard_bytes = 100});
  const fs::path index = folder_ / "model.safetensors.index.json";
  const std::string text = read_text(index, "index");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    write_bytes_of_file(index, changed);
    return failure_of([&] { ShardedSafetensors model(folder_); });
  };
  EXPECT_EQ(with("w.f32", "w.f32"), "");
  EXPECT_THAT(with("w.f32", "w.f33"), AllOf(HasSubstr("places tensor \"w.f33\" in model-0000"),
                                            HasSubstr("which has no such tensor")));
  EXPECT_THAT(with("model-00001-of", "model-00009-of"),
              HasSubstr("missing: \"model-00009-of-00002.safetensors\""));
  for (const char* outside : {"../x", "/etc/passwd", "..", ".", "", "a/b", "a\\\\b", "a\\u0000"}) {
    EXPECT_THAT(with("model-00001-of-00002.safetensors", outside),
                HasSubstr("which is no name of a file in the index's folder"))
        << outside;
  }
  EXPECT_THAT(with("\"weight_map\"", "\"weights\""), HasSubstr("has no \"weight_map\""));
  EXPECT_THAT(with("\"weight_map\": {", "\"weight_map\": [\"a\"], \"w\": {"),
              HasSubstr("weight_map is a list instead of an object"));
  EXPECT_THAT(with("\"weight_map\": {", "\"weight_map\": {}, \"weight_map\": {"),
              HasSubstr("has \"weight_map\" twice"));
  EXPECT_THAT(with("\"weight_map\": {", "\"weight_map\": {\"i8\": \"m\", "),
              HasSubstr("lists tensor \"i8\" twice"));
  EXPECT_THAT(with("\"weight_map\": {", "\"weight_map\": {\"x\": 5, "),
              HasSubstr("the shard of tensor \"x\" is 5 instead of the name of a file"));
  EXPECT_THAT(with("\"weight_map\": {", "\"weight_map\": {\"x\": {}, "), HasSubstr("an object"));
  EXPECT_THAT(with("{", "[{"), HasSubstr("outermost value is a list"));
  EXPECT_THAT(with("{", "{,"), HasSubstr("is no JSON from byte 2 on"));
  EXPECT_EQ(with("\"metadata\": {", "\"other\": [{\"a\": [[1]]}], \"metadata\": {\"b\": null, "),
            "");

  // Tensors of its files that the index does not list are part of the model.
  std::string fewer = text;
  const size_t line = fewer.find("    \"i8\"");
  fewer.erase(line, fewer.find('\n', line) + 1 - line);
  write_bytes_of_file(index, fewer);
  EXPECT_TRUE(ShardedSafetensors(index).has("i8"));
  EXPECT_THAT(failure_of([&] { ShardedSafetensors(index).read("i9"); }),
              HasSubstr("has no tensor \"i9\""));
  // Which one would count?
  std::string other = text;
  other.replace(other.find("model-00001-of"), 14, "model-00009-of");
  fs::copy_file(folder_ / "model-00001-of-00002.safetensors",
                folder_ / "model-00009-of-00002.safetensors");
  write_bytes_of_file(index, other);
  EXPECT_THAT(failure_of([&] { ShardedSafetensors model(index); }), HasSubstr("both have tensor"));
}

/// The old model, files without an index, or the new model.
TEST_F(SafetensorsDisk, EachCallOfAWriterMayFail) {
  for (const uint64_t most : {uint64_t{1000}, uint64_t{100}}) {
    const fs::path folder = folder_ / std::to_string(most);
    const fs::path path = folder / "model.safetensors";
    const auto write = [&](const std::string& round) {
      write_all_types(path, {.max_shard_bytes = most, .metadata = {{"round", round}}});
    };
    write("old");
    FailingFiles counted;
    {
      const FileSystemScope scope(counted);
      write("old");
    }
    const int64_t calls = counted.calls(testing::kCalls);
    ASSERT_GT(calls, 8);
    int failed = 0;
    for (int64_t number = 1; number <= calls; ++number) {
      SCOPED_TRACE(fmt::format("call {} of {}", number, calls));
      const int error = number % 2 == 0 ? ENOSPC : EIO;
      std::string message;
      {
        FailingFiles failing(testing::kCalls, number, error);
        const FileSystemScope scope(failing);
        message = failure_of([&] { write("new"); });
      }
      if (!message.empty()) {
        ++failed;
        EXPECT_THAT(message, AllOf(HasSubstr(folder.string()), HasSubstr(cause_of(error))));
      }
      // A temporary file stays only where its removal failed.
      const bool whole =
          failure_of([&] {
            const ShardedSafetensors model(folder);
            expect_all_types(model);
            std::set<std::string> rounds;
            for (const SafetensorsReader& shard : model.shards()) {
              rounds.insert(shard.metadata().at("round"));
            }
            EXPECT_EQ(rounds.size(), 1U) << "no mixture";
            EXPECT_TRUE(rounds.contains("old") || message.empty() || rounds.contains("new"));
          }).empty();
      EXPECT_TRUE(whole || most == 100) << "one file is the old or the new one";
      write("old");
    }
    EXPECT_GE(failed, 8);
  }
}

TEST_F(SafetensorsDisk, ReadsThatFailNameTensorAndCause) {
  write_all_types(path_);
  const SafetensorsReader file(path_);
  {
    FailingFiles failing(testing::kCalls, 1, EIO);
    const FileSystemScope scope(failing);
    EXPECT_THAT(failure_of([&] { file.read("w.f32"); }),
                AllOf(HasSubstr(path_.string()), HasSubstr("tensor \"w.f32\" cannot be read"),
                      HasSubstr("Input/output error")));
    for (const int64_t number : {1, 2, 3}) {
      FailingFiles opening(testing::kCalls, number, EIO);
      const FileSystemScope inner(opening);
      EXPECT_THAT(failure_of([&] { SafetensorsReader again(path_); }),
                  AllOf(HasSubstr(path_.string()), HasSubstr("Input/output error")));
    }
  }
  EXPECT_EQ(file.read("w.f32").size(), 15U);
  fs::resize_file(path_, fs::file_size(path_) - 100);
  EXPECT_THAT(failure_of([&] {
                for (const SafetensorsTensor& tensor : file.tensors()) {
                  std::vector<std::byte> bytes(tensor.bytes());
                  file.read_bytes(tensor.name, bytes);
                }
              }),
              HasSubstr("has become shorter while tensor"));
}

}  // namespace
}  // namespace espalier::io::safetensors_test
