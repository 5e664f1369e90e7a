// Directories of Hugging Face models become checkpoints and directories again: equal bytes, and
// values at the places that each family's formula needs.
#include <cstring>
#include <fstream>

#include "io/checkpoint/checkpoint.h"
#include "io/files/raw_file.h"
#include "io/safetensors/sharded.h"
#include "src/config/dump.h"
#include "src/hub/end_tokens.h"
#include "src/hub/export.h"
#include "src/hub/import.h"
#include "src/hub/layout.h"
#include "src/hub/network_settings.h"
#include "src/train/masks/mask_files.h"
#include "tests/hub/example_models.h"
#include "tests/support/support.h"

namespace espalier::hub::round_trip_test {
namespace {

using testing::TempDir;
using Type = io::SafetensorsType;
namespace fs = std::filesystem;

class FamilyTest : public ::testing::TestWithParam<ExampleModel> {};

/// The values of a parameter in a checkpoint.
std::vector<float> values_of(const io::CheckpointReader& reader, const std::string& name) {
  std::vector<float> out(static_cast<size_t>(reader.info(name).nnz));
  reader.values(name, Tensor(out.data(), DType::fp32, Shape{std::ssize(out)}));
  return out;
}

std::vector<float> numbers_of(const MadeTensor& tensor) {
  std::vector<float> out(tensor.bytes.size() / sizeof(float));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

/// Without pruned elements; zeros of any sign become +0.
MadeTensors with_positive_zeros(MadeTensors tensors) {
  for (auto& [name, tensor] : tensors) {
    const size_t width = io::bits_of(tensor.type) / 8;
    for (size_t at = 0; at < tensor.bytes.size(); at += width) {
      const std::span element = std::span(tensor.bytes).subspan(at, width);
      std::byte others{0};
      for (size_t i = 0; i < width; ++i) {
        others |= i + 1 == width ? element[i] & std::byte{0x7f} : element[i];
      }
      element[width - 1] = others == std::byte{0} ? std::byte{0} : element[width - 1];
    }
  }
  return tensors;
}

TEST(HubFamilies, EachHasAnExample) {
  for (const Family* family : families()) {
    EXPECT_NO_THROW(example_model(std::string(family->architecture))) << family->architecture;
  }
}

TEST_P(FamilyTest, BytesComeBack) {
  for (const Type type : {Type::f32, Type::bf16, Type::f16}) {
    const TempDir dir;
    const MadeTensors made = make_tensors(GetParam().config, type);
    write_model(dir / "hub", GetParam().config, made);
    const ImportReport report = import_model({.from = dir / "hub", .to = dir / "dense.h5"});
    EXPECT_EQ(report.kept, report.parameters);
    EXPECT_EQ(report.architecture, GetParam().architecture);
    export_model({.from = dir / "dense.h5", .to = dir / "back"});
    EXPECT_EQ(difference(made, read_model(dir / "back")), "") << io::name_of(type);
    if (type == Type::f32) {  // the others change torch_dtype
      EXPECT_EQ(io::read_text(dir / "back/config.json", "config"), GetParam().config);
    }
  }
}

TEST_P(FamilyTest, AWrittenConfigReadsAsTheSameNetwork) {
  const ConfigJson json(GetParam().config, "config.json");
  const Family& family = family_of(json);
  io::ModelConfig model;
  family.read(json, model);
  model.context = json.number(std::string(family.positions_key));
  ASSERT_TRUE(family.fits(model));
  EXPECT_EQ(&family_of(model), &family);
  const ConfigJson written(family.write(complete(model)).dump(), "written.json");
  io::ModelConfig again;
  family_of(written).read(written, again);
  again.context = written.number(std::string(family.positions_key));
  io::Config a{.model = model}, b{.model = again};
  EXPECT_EQ(config::to_toml(a), config::to_toml(b));
}

TEST_P(FamilyTest, ZerosBecomeMasksAndTheSparseFormComesBack) {
  const TempDir dir;
  const MadeTensors made = make_tensors(GetParam().config, Type::bf16, 5, 0.6);
  write_model(dir / "hub", GetParam().config, made);
  const ImportReport report =
      import_model({.from = dir / "hub", .to = dir / "pruned.h5", .zeros_are_pruned = true});
  EXPECT_LT(report.kept, report.parameters * 7 / 10);
  export_model({.from = dir / "pruned.h5", .to = dir / "both", .sparse = true});
  const MadeTensors dense = read_model(dir / "both");
  EXPECT_EQ(difference(with_positive_zeros(made), with_positive_zeros(dense)), "");

  // From the sparse form alone: the same masks, also without looking for zeros.
  export_model({.from = dir / "pruned.h5", .to = dir / "sparse", .dense = false, .sparse = true});
  EXPECT_FALSE(fs::exists(dir / "sparse/model.safetensors"));
  EXPECT_LT(fs::file_size(dir / "sparse/sparse.safetensors"),
            fs::file_size(dir / "both/model.safetensors"));
  const ImportReport again = import_model({.from = dir / "sparse", .to = dir / "again.h5"});
  EXPECT_EQ(again.kept, report.kept);
  export_model({.from = dir / "again.h5", .to = dir / "back"});
  EXPECT_EQ(difference(dense, read_model(dir / "back")), "");
  const io::CheckpointReader a(dir / "pruned.h5"), b(dir / "again.h5");
  for (const std::string& name : a.names()) {
    EXPECT_EQ(train::read_mask(a, name), train::read_mask(b, name)) << name;
  }
}

TEST_P(FamilyTest, KeptZerosStayKept) {
  const TempDir dir;
  const MadeTensors made = make_tensors(GetParam().config, Type::f32, 9, 0.5);
  write_model(dir / "hub", GetParam().config, made);
  import_model({.from = dir / "hub", .to = dir / "dense.h5"});
  const io::CheckpointReader reader(dir / "dense.h5");
  for (const std::string& name : reader.names()) {
    EXPECT_EQ(reader.info(name).encoding, "full");
  }
  export_model({.from = dir / "dense.h5", .to = dir / "back"});
  EXPECT_EQ(difference(made, read_model(dir / "back")), "");  // also the signs of zeros
}

TEST_P(FamilyTest, ShardsAndNamesWithoutPrefix) {
  const TempDir dir;
  const ConfigJson config(GetParam().config, "config.json");
  const Family& family = family_of(config);
  MadeTensors made;
  for (auto& [name, tensor] : make_tensors(GetParam().config, Type::f16, 3)) {
    made[name.starts_with(family.prefix) ? name.substr(name.find('.') + 1) : name] = tensor;
  }
  write_model(dir / "hub", GetParam().config, made, 2000);
  ASSERT_TRUE(fs::exists(dir / "hub/model.safetensors.index.json"));
  import_model({.from = dir / "hub", .to = dir / "dense.h5"});
  const ExportReport report =
      export_model({.from = dir / "dense.h5", .to = dir / "back", .shard_bytes = 3000});
  EXPECT_GT(report.files, 2U);
  EXPECT_EQ(difference(made, read_model(dir / "back")), "");
}

TEST_P(FamilyTest, TypesAreConverted) {
  const TempDir dir;
  write_model(dir / "hub", GetParam().config, make_tensors(GetParam().config, Type::f32));
  const ImportReport report =
      import_model({.from = dir / "hub", .to = dir / "bf16.h5", .dtype = DType::bf16});
  EXPECT_EQ(report.config.train.dtype, "bf16");
  export_model({.from = dir / "bf16.h5", .to = dir / "back"});
  EXPECT_EQ(difference(make_tensors(GetParam().config, Type::bf16), read_model(dir / "back")), "");
  EXPECT_THAT(io::read_text(dir / "back/config.json", "config"), HasSubstr("\"bfloat16\""));
  export_model({.from = dir / "bf16.h5", .to = dir / "wide", .dtype = DType::fp32});
  for (const auto& [name, tensor] : read_model(dir / "wide")) {
    EXPECT_EQ(tensor.type, Type::f32) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTest, ::testing::ValuesIn(example_models()),
                         [](const auto& row) {
                           return row.param.architecture + row.param.variant;
                         });

TEST(HubRoundTrip, GptTwoIsTransposed) {
  const TempDir dir;
  const MadeTensors made = write_gpt2(dir / "hub");
  import_model({.from = dir / "hub", .to = dir / "dense.h5"});
  const io::CheckpointReader reader(dir / "dense.h5");
  const auto stored = values_of(reader, "blocks.1.attention.qkv.weight");
  const auto tensor = numbers_of(made.at("transformer.h.1.attn.c_attn.weight"));
  const int64_t in = 24, out = 72;
  ASSERT_EQ(reader.info("blocks.1.attention.qkv.weight").shape, (Shape{out, in}));
  for (int64_t row = 0; row < out; ++row) {
    for (int64_t col = 0; col < in; ++col) {
      ASSERT_EQ(stored[static_cast<size_t>(row * in + col)],
                tensor[static_cast<size_t>(col * out + row)]);
    }
  }
}

TEST(HubRoundTrip, ASmallerContextCutsPositions) {
  const TempDir dir;
  const MadeTensors made = write_gpt2(dir / "hub");
  const ImportReport report =
      import_model({.from = dir / "hub", .to = dir / "dense.h5", .context = 8});
  EXPECT_EQ(report.config.model.context, 8);
  export_model({.from = dir / "dense.h5", .to = dir / "back"});
  const MadeTensors back = read_model(dir / "back");
  EXPECT_EQ(back.at("transformer.wpe.weight").shape, (std::vector<int64_t>{8, 24}));
  const auto& all = made.at("transformer.wpe.weight").bytes;
  EXPECT_EQ(back.at("transformer.wpe.weight").bytes,
            std::vector<std::byte>(all.begin(), all.begin() + std::ssize(all) / 2));
  const ConfigJson json(io::read_text(dir / "back/config.json", "config"), "config.json");
  EXPECT_EQ(json.number("n_positions"), 8);
  EXPECT_EQ(json.number("n_embd"), 24);
}

/// generation_config.json counts, then config.json, as in transformers.
TEST(HubRoundTrip, TokensThatEndAText) {
  struct Row {
    std::string generation, config;
    std::vector<int32_t> tokens;
  };
  for (const auto& [generation, config, tokens] :
       std::vector<Row>{{"", "", {}},
                        {"{}", "{}", {}},
                        {"", R"({"eos_token_id": 7})", {7}},
                        {"", R"({"eos_token_id": [7, 2]})", {7, 2}},
                        {R"({"eos_token_id": 3})", R"({"eos_token_id": 7})", {3}},
                        {R"({"eos_token_id": [3, 4, 99]})", R"({"eos_token_id": 7})", {3, 4}},
                        {R"({"eos_token_id": null})", R"({"eos_token_id": 7})", {7}},
                        {"{damaged", R"({"eos_token_id": 7})", {7}},
                        {R"({"eos_token_id": -1})", R"({"eos_token_id": 41})", {}}}) {
    std::map<std::string, std::string> texts{{"hub.config.json", config}};
    if (!generation.empty()) {
      texts["hub.generation_config.json"] = generation;
    }
    std::vector<std::string> notes;
    EXPECT_EQ(end_tokens(texts, 40, "x.h5", notes), tokens) << generation << config;
  }
}

TEST(HubRoundTrip, TextsTravel) {
  const TempDir dir;
  write_gpt2(dir / "hub");
  const std::map<std::string, std::string> files{
      {"generation_config.json", "{\"eos_token_id\": 3}\n"},
      {"tokenizer_config.json", "{\"model_max_length\": 16}"},
      {"special_tokens_map.json", "{}"},
      {"chat_template.jinja", "{{ messages }}\n"},
      {"tokenizer.json", byte_level_tokenizer(R"({"a":0,"b":1,"ab":2})", R"(["a b"])")}};
  for (const auto& [name, text] : files) {
    std::ofstream(dir / "hub" / name) << text;
  }
  const ImportReport report = import_model({.from = dir / "hub", .to = dir / "dense.h5"});
  EXPECT_EQ(report.tokens, 3);
  export_model({.from = dir / "dense.h5", .to = dir / "back"});
  for (const auto& [name, text] : files) {
    EXPECT_EQ(io::read_text(dir / "back" / name, "text"), text) << name;
  }
  import_model({.from = dir / "hub", .to = dir / "without.h5", .tokenizer = false});
  const auto texts = io::CheckpointReader(dir / "without.h5").meta().extra;
  EXPECT_FALSE(texts.contains("tokenizer"));
  std::vector<std::string> notes;
  EXPECT_EQ(end_tokens(texts, 40, "without.h5", notes), std::vector<int32_t>{3});
}

}  // namespace
}  // namespace espalier::hub::round_trip_test
