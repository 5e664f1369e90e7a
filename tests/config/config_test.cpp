// Configs: every key round-trips; every error message names the place, the cause and the fix.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/config/patterned.h"
#include "parallel/wire/codec.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "src/core/error.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::config::config_test {
namespace {

using io::Patterned;
using parallel::CodecSpec;
using parallel::parse_codec;
using parallel::to_text;

std::string failure_of_toml(const std::string& text) {
  return failure_of([&] { parse(text, "run.toml"); });
}

std::string failure_of_override(const std::string& assignment) {
  return failure_of([&] { parse("", "run.toml", std::vector{assignment}); });
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
  }
}

/// Sets a field to some other value that its limits allow.
struct Change {
  const Limits& limits;
  void operator()(bool* value) const { *value = limits.choices.empty() ? !*value : *value; }
  void operator()(int64_t* value) const { *value += limits.choices.empty() ? 1 : 0; }
  void operator()(double* value) const { *value = limits.automatic ? 0.3 : *value * 0.5 + 0.1; }
  void operator()(std::string* value) const {
    *value = limits.choices.empty() ? "a \"quoted\" \\ word\n" : limits.choices.back().name;
  }
  void operator()(std::vector<std::string>* value) const {
    *value = limits.choices.empty() ? std::vector<std::string>{"a b", "c\\d", ""} : limits.names();
  }
  void operator()(std::vector<int64_t>* value) const { *value = {7, 8, 9}; }
  void operator()(std::vector<double>* value) const { *value = {0.5, 1, 0.1}; }
  void operator()(Patterned* value) const {
    *value = {
        .fallback = limits.choices.front().name,
        .patterns = {{"z.*", limits.choices.back().name}, {"a.*", limits.choices.front().name}}};
  }
};

TEST(Config, DefaultsRoundTrip) {
  const Config config;
  const std::string dump = to_toml(config);
  EXPECT_EQ(to_toml(parse(dump, "dump")), dump);
  EXPECT_EQ(to_toml(parse("", "empty")), dump);
}

TEST(Config, EveryFieldRoundTripsAwayFromItsDefault) {
  for (const Field& field : fields()) {
    Config config;
    std::visit(Change{field.limits}, field.slot(config));
    const std::string value = toml_value(field, config);
    Config read;
    apply_override(read, field.key() + "=" + value);
    EXPECT_EQ(toml_value(field, read), value) << field.key();
    EXPECT_EQ(to_toml(read), to_toml(config)) << field.key();
  }
}

TEST(Config, EveryOptionRoundTripsBehindItsKey) {
  for (const Field* option : members()) {
    if (option->of_key.empty()) {
      continue;
    }
    const Field& key = *find_field(option->section, option->of_key);
    Config config;
    word_of(key, config) = option->of.empty() ? word_of(key, config) : option->of.back();
    std::visit(Change{option->limits}, option->slot(config));
    Config read;
    apply_override(read, key.key() + "=" + toml_value(key, config));
    EXPECT_EQ(toml_value(*option, read), toml_value(*option, config)) << option->key();
    EXPECT_EQ(to_toml(read), to_toml(config)) << option->key();
    Config same;
    apply_override(same, fmt::format("{}={}:{}={}", key.key(), word_of(key, config), option->label,
                                     option_value(*option, config)));
    EXPECT_EQ(to_toml(same), to_toml(config)) << option->key();
  }
}

TEST(Config, OptionsStandInOrderOrBehindTheirLabels) {
  const auto pruning = [](const std::string& method) {
    const io::PruningConfig read =
        parse("[pruning]\nmethod = \"" + method + "\"\n", "run.toml").pruning;
    return std::tuple(read.method, read.n, read.m);
  };
  EXPECT_EQ(pruning("nm"), std::tuple("nm", 2, 4));
  EXPECT_EQ(pruning("nm:1"), std::tuple("nm", 1, 4));
  EXPECT_EQ(pruning("nm:1:8"), std::tuple("nm", 1, 8));
  EXPECT_EQ(pruning("nm:m=8"), std::tuple("nm", 2, 8));
  EXPECT_EQ(pruning("nm:n=3:8"), std::tuple("nm", 3, 8));
  Config config = parse("[train]\ndtype = \"fp32:tf32\"\n", "run.toml");
  EXPECT_TRUE(config.train.tf32);
  apply_override(config, "optimizer.schedule=step:0.5:30,60");
  EXPECT_EQ(config.optimizer.decay_at, (std::vector<int64_t>{30, 60}));
  apply_override(config, "optimizer.schedule=step:at=90");
  EXPECT_EQ(config.optimizer.decay_factor, 0.1) << "options that are left out get their defaults";
  apply_override(config, "sparse.storage=block:16");
  apply_override(config, "sparse.storage={\"head.*\" = \"dense\"}");
  EXPECT_EQ(config.sparse.block, 16) << "the default of the table stays";
  expect_parts(
      failure_of_toml("[sparse]\nstorage = {default = \"auto:8\", \"head.*\" = \"block:16\"}\n"),
      {"run.toml:2: sparse.storage = \"block:16\" of the pattern \"head.*\" has options",
       "write {default = \"auto:16\", \"head.*\" = \"block\"}"});
  expect_parts(failure_of_override("sparse.storage={\"head.*\" = \"blok:16\"}"),
               {"\"blok:16\" is unknown"});
  const auto refused = [](const std::string& method) {
    return failure_of_toml("[pruning]\nmethod = \"" + method + "\"\n");
  };
  expect_parts(refused("magnitude:2"),
               {"run.toml:2", "\"2\" is no option of \"magnitude\"; available: none"});
  expect_parts(refused("nm:1:8:2"), {"\"2\" is no option of \"nm\"; available: n, m"});
  expect_parts(refused("nm:k=2"), {"\"k=2\" is no option of \"nm\"; available: n, m"});
  expect_parts(refused("nm:"), {"pruning.method:n", "expected an integer"});
  expect_parts(refused("nm:1#"), {"pruning.method:n", "expected an integer"});
  expect_parts(refused("nm:m=1"), {"pruning.method:m = 1 is out of range; allowed: >= 2"});
  expect_parts(refused("rigl:0.3:er"), {"\"er\" is unknown", "available: erk, uniform"});
  expect_parts(refused("nmm:1"), {"did you mean \"nm\"?"});
}

TEST(Config, EveryKeyIsDeclaredOnceAndHasHelp) {
  std::vector<std::string> keys;
  const std::string text = help();
  const nlohmann::json json = to_json(Config{});
  for (const Field& field : fields()) {
    keys.push_back(field.key());
    EXPECT_FALSE(field.help.empty()) << field.key();
    EXPECT_NE(text.find("  " + field.name + " = "), std::string::npos) << field.key();
    EXPECT_TRUE(json.at(field.section).contains(field.name)) << field.key();
    EXPECT_EQ(failure_of([&] { check_limits(field, Config{}, "default"); }), "");
  }
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
  // A new member of a struct needs a row; with the row this number increases.
  EXPECT_EQ(keys.size(), 100U);
  EXPECT_EQ(members().size(), 134U);
}

TEST(Config, ReadsValuesOfEveryType) {
  const Config config = parse(R"(
    [model]
    width = 96
    heads = 3
    tie_embeddings = true
    [data]
    train = ["a.txt", "b.txt"]
    [optimizer]
    lr = 1            # an integer is a number too
    [train]
    dtype = "bf16"
  )",
                              "run.toml");
  EXPECT_EQ(config.model.width, 96);
  EXPECT_TRUE(config.model.tie_embeddings);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.train.dtype, "bf16");
}

TEST(Config, UnknownKeysNameTheNearestAndThePlace) {
  expect_parts(failure_of_toml("[model]\nwidth = 64\nlayer = 3\n"),
               {"unknown key \"model.layer\"", "run.toml:3", "did you mean \"layers\"?"});
  expect_parts(failure_of_toml("[model]\nlr = 3\n"), {"run.toml:2", "\"optimizer.lr\""});
  expect_parts(failure_of_toml("[modle]\nlayers = 3\n"),
               {"unknown section [modle]", "run.toml:1", "did you mean \"model\"?"});
  expect_parts(failure_of_toml("layers = 3\n"), {"outside a section", "\"model.layers\""});
  expect_parts(failure_of_toml("[model]\nquux = 3\n"), {"known: kind, layers, heads"});
  expect_parts(failure_of_override("train.step=3"), {"\"train.step\"", "did you mean \"steps\"?"});
  expect_parts(failure_of_override("trian.steps=3"), {"did you mean \"train.steps\"?"});
  expect_parts(failure_of_override("steps"), {"section.key=value"});
}

TEST(Config, WrongTypesNameTheValueAndTheExpectedType) {
  expect_parts(failure_of_toml("[train]\n\nsteps = \"many\"\n"),
               {"run.toml:3", "train.steps", "many", "string", "expected an integer"});
  expect_parts(failure_of_toml("[train]\nsteps = 1.5\n"), {"1.5", "expected an integer"});
  expect_parts(failure_of_toml("[parallel]\nerror_feedback = 1\n"), {"expected true or false"});
  expect_parts(failure_of_toml("[data]\ntrain = [1]\n"), {"expected a list of strings"});
  expect_parts(failure_of_toml("[sparse]\nstorage = 3\n"), {"a string or a table"});
  expect_parts(failure_of_toml("[train\nsteps = 1\n"), {"run.toml:1", "not valid TOML"});
  expect_parts(failure_of_override("train.steps=many"), {"--set", "expected an integer"});
}

TEST(Config, LimitsNameTheValueAndTheRange) {
  expect_parts(failure_of_toml("[pruning]\nsparsity = 1.0\n"),
               {"run.toml:2", "pruning.sparsity = 1", ">= 0 and < 1"});
  expect_parts(failure_of_toml("[pruning]\nsparsity = -0.5\n"), {"-0.5", ">= 0 and < 1"});
  expect_parts(failure_of_toml("[optimizer]\nlr = nan\n"), {"out of range"});
  expect_parts(failure_of_toml("[optimizer]\nlr = inf\n"), {"out of range"});
  expect_parts(failure_of_toml("[train]\nsteps = 0\n"), {"train.steps = 0", ">= 1"});
  expect_parts(failure_of_toml("[model]\ncontext = 0\n"), {"model.context = 0"});
  expect_parts(failure_of_toml("[model]\nhidden = [16, 0]\n"), {"model.hidden = 0"});
  expect_parts(failure_of_toml("[train]\ndtype = \"bf61\"\n"),
               {"did you mean \"bf16\"?", "available: fp32, bf16, fp16"});
}

/// Sets an integer key, or the one element of its list, and returns the value it has then.
int64_t set_integer(const Field& field, int64_t value) {
  Config config;
  set_member(config, fmt::format("{}={}", field.path(), value));
  const Slot slot = field.read(config);
  const auto* list = std::get_if<std::vector<int64_t>*>(&slot);
  return list != nullptr ? (*list)->at(0) : *std::get<int64_t*>(slot);
}

TEST(Config, NumbersAreWithinTheirLimitsInFp32Too) {
  for (const auto& [setting, why] : std::vector<std::pair<std::string, std::string>>{
           {"model.dropout=0.99999999", "is 1 in fp32, out of range; allowed: >= 0 and < 1"},
           {"optimizer.beta2=0.999999999", "is 1 in fp32"},
           {"optimizer.momentum=0.999999999", "is 1 in fp32"},
           {"optimizer.epsilon=1e-50", "is 0 in fp32, out of range; allowed: > 0"},
           {"train.teacher_temperature=1e-50", "is 0 in fp32"},
           {"optimizer.lr=1e39", "is inf in fp32"},
           {"optimizer.clip=1e39", "is inf in fp32"},
           {"optimizer.clip=1e-46", "is 0 in fp32; write 0"},
           {"train.loss_scale=1e-46", "is 0 in fp32; write 0"}}) {
    expect_parts(failure_of_override(setting), {setting.substr(0, setting.find('=')), why});
  }
  EXPECT_EQ(failure_of_override("optimizer.beta2=0.9999999"), "");
}

TEST(Config, StringsAreUtf8WithoutNul) {
  expect_parts(
      failure_of_override("run.out=a\xff"),
      {"--set run.out=a\uFFFD: run.out = \"a\uFFFD\" has a NUL or bytes that are not UTF-8"});
  expect_parts(failure_of_override("data.train=[\"a\\u0000b\"]"),
               {"data.train = \"a\\u0000b\" has a NUL"});
  expect_parts(failure_of_toml("[sparse]\nindex = {default = \"auto\", \"a\\u0000*\" = \"auto\"}"),
               {"run.toml:2: sparse.index = \"a\\u0000*\" has a NUL"});
  EXPECT_EQ(failure_of_override("run.out=\u00e4\uFFFD"), "");
}

TEST(Config, NumbersOfChannelsAreAListOrOne) {
  const Config config = parse(
      "[model]\nkind = \"mlp\"\n[data]\nkind = \"images\"\nmean = [0, 0.5]\n"
      "deviation = 0.25\n",
      "run.toml");
  EXPECT_EQ(config.data.mean, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(config.data.deviation, (std::vector<double>{0.25}));
  expect_parts(failure_of_override("data.mean=[0.5, 123.7]"),
               {"data.mean = 123.7", "out of range; allowed: >= 0 and <= 1"});
  expect_parts(failure_of_override("data.deviation=[0.0]"), {"data.deviation = 0", "> 0"});
  expect_parts(failure_of_override("data.mean=[\"a\"]"), {"data.mean", "a list of numbers"});
}

TEST(Config, KeysOfImagesNeedImages) {
  for (const std::string setting :
       {"format=\"cifar10\"", "mean=0.5", "deviation=0.5", "crop=4", "flip=true"}) {
    const std::string key = setting.substr(0, setting.find('='));
    expect_parts(failure_of_toml("[data]\n" + setting + "\n"),
                 {"data." + key, "is for data.kind = \"images\", and data.kind is \"bytes\""});
    EXPECT_EQ(failure_of_toml("[model]\nkind = \"mlp\"\n[data]\nkind = \"images\"\n" + setting),
              "");
  }
  expect_parts(failure_of_toml("[data]\norder = \"epochs\"\n"),
               {"data.order = \"epochs\"", "set data.order = \"random\"", "windows of tokens"});
}

TEST(Config, ARunPrunesBeforeItEnds) {
  const auto failure = [](const std::string& pruning) {
    return failure_of([&] {
      check_prunes_in_time(parse("[train]\nsteps = 20\n[pruning]\n" + pruning, "run.toml"));
    });
  };
  EXPECT_EQ(failure("method = \"magnitude\"\nat_step = 19"), "");
  expect_parts(failure("method = \"magnitude\"\nat_step = 20"),
               {"pruning.at_step = 20 lies after the last step, train.steps = 20"});
  expect_parts(failure("method = \"magnitude\"\nfrom_step = 30\nto_step = 40"),
               {"pruning.from_step = 30 lies after"});
  // The sparsity is still 0 at from_step.
  for (const std::string gradual : {"from_step = 19\nto_step = 40", "from_step = 10\nto_step = 40",
                                    "from_step = 10\nto_step = 20"}) {
    expect_parts(failure("method = \"magnitude\"\n" + gradual),
                 {"first prunes after step 2", "nothing would be pruned"});
  }
  EXPECT_EQ(failure("method = \"magnitude\"\nfrom_step = 9\nto_step = 40"), "");
  EXPECT_EQ(failure("method = \"magnitude\"\nfrom_step = 18\nto_step = 19"), "");
  EXPECT_EQ(failure("method = \"none\"\nat_step = 30"), "");
  EXPECT_EQ(failure("method = \"early-bird\"\nevery = 2\nto_step = 30"), "");
}

TEST(Config, EveryIntegerKeepsItsValueOrIsRefusedByName) {
  constexpr int64_t kTwo32 = int64_t{1} << 32;
  int integers = 0;
  Config config;
  for (const Field* row : members()) {
    const Field& field = *row;
    const Slot slot = field.slot(config);
    if (!field.limits.choices.empty() || (!std::holds_alternative<int64_t*>(slot) &&
                                          !std::holds_alternative<std::vector<int64_t>*>(slot))) {
      continue;
    }
    ++integers;
    const Limits& limits = field.limits;
    ASSERT_TRUE(std::isfinite(limits.at_least)) << field.key();
    const auto least = static_cast<int64_t>(limits.at_least);
    const int64_t most = std::isfinite(limits.at_most) ? static_cast<int64_t>(limits.at_most)
                                                       : std::numeric_limits<int32_t>::max();
    for (const int64_t value : {least, most}) {
      EXPECT_EQ(set_integer(field, value), value) << field.key();
    }
    std::vector<int64_t> refused{least - 1, most + 1, INT64_MIN, INT64_MAX, 1 - kTwo32};
    if (most < kTwo32 + least) {
      refused.push_back(kTwo32 + least);  // as 32 bits: allowed
    }
    for (const int64_t value : refused) {
      expect_parts(failure_of([&] { set_integer(field, value); }),
                   {fmt::format("{} = {} is out of range", field.key(), value)});
    }
    expect_parts(failure_of_override(field.path() + "=9223372036854775808"), {field.path()});
    expect_parts(
        failure_of_toml(fmt::format("[{}]\n{} = 9223372036854775808\n", field.section, field.name)),
        {"run.toml:2"});
  }
  EXPECT_GT(integers, 30);
}

TEST(Config, GradientsAreWideOrOfTheTypeOfWeights) {
  for (const std::string type : {"auto", "fp32", "fp16"}) {
    const std::string text =
        fmt::format("[train]\ndtype = \"fp16\"\ngradient_dtype = \"{}\"\n", type);
    EXPECT_EQ(parse(text, "run.toml").train.gradient_dtype, type);
  }
  expect_parts(failure_of_toml("[train]\ndtype = \"fp16\"\ngradient_dtype = \"bf16\"\n"),
               {"train.gradient_dtype = \"bf16\"", "train.dtype = \"fp16\"", "\"auto\""});
}

TEST(Config, NoMasterCopyNeeds16BitsAndUncodedValues) {
  for (const std::string type : {"bf16", "fp16"}) {
    const std::string text = fmt::format("[train]\ndtype = \"{}\"\nmaster_copy = false\n", type);
    EXPECT_FALSE(parse(text, "run.toml").train.master_copy);
  }
  expect_parts(failure_of_toml("[train]\nmaster_copy = false\n"),
               {"train.master_copy = false", "train.dtype = \"fp32\"", "\"bf16\""});
  expect_parts(failure_of_toml("[train]\ndtype = \"bf16\"\nmaster_copy = false\n[parallel]\nzero "
                               "= 1\nvalue_codec = \"linear8\"\n"),
               {"parallel.value_codec = \"linear8\"", "train.master_copy = false"});
}

TEST(Config, UnknownChoicesListTheChoices) {
  expect_parts(failure_of_toml("[model]\nkind = \"conv\"\n"),
               {"run.toml:2: model.kind = \"conv\" is unknown; available: gpt, decoder, mlp"});
  expect_parts(failure_of_toml("[optimizer]\nstate_bits = 4\n"),
               {"optimizer.state_bits = 4 is unknown; available: 8, 32"});
}

TEST(Config, CodecsTakeNumbersWithinTheirLimits) {
  const Config config = parse(R"(
    [parallel]
    codec = {default = "maxmin:4:512", "head.*" = "topk:0.05", "*.mlp.*" = "dynamic8:256"}
    activation_codec = "fp8-e4m3:64"
  )",
                              "run.toml");
  EXPECT_EQ(config.parallel.codec.for_name("head.weight"), "topk:0.05");
  EXPECT_EQ(parse_codec("maxmin:4:512"), (CodecSpec{.name = "maxmin", .bits = 4, .bucket = 512}));
  EXPECT_EQ(parse_codec("topk:0.05:1000"),
            (CodecSpec{.name = "topk", .bucket = 1000, .share = 0.05}));
  for (const std::string text : {"fp32", "maxmin:4:512", "maxmin:2:fp16", "topk:0.05", "sign:64",
                                 "adaptive:50:1.5", "adaprec:8:5:table:1+maxmin:4:64+fastest"}) {
    EXPECT_EQ(to_text(parse_codec(text)), text);
  }
  const auto refused = [](const std::string& key, const std::string& value) {
    return failure_of_toml(fmt::format("[parallel]\n{} = \"{}\"\n", key, value));
  };
  expect_parts(refused("codec", "maxmn"), {"run.toml:2", "maxmn", "did you mean \"maxmin\"?"});
  expect_parts(refused("codec", "maxmin:9"), {"parallel.codec", "bits = 9", "1 .. 8"});
  expect_parts(refused("codec", "maxmin:0"), {"bits = 0", "1 .. 8"});
  expect_parts(refused("codec", "maxmin:4:0"), {"bucket = 0"});
  expect_parts(refused("codec", "maxmin:four"), {"\"four\" is not a number"});
  expect_parts(refused("codec", "bf16:4"), {"too many numbers"});
  expect_parts(refused("codec", "topk:1.5"), {"above 0 and at most 1"});
  expect_parts(refused("activation_codec", "adaptive"), {"adaptive", "unknown"});
  expect_parts(refused("codec", "linear8:64:fp16"), {"too many numbers"});
}

TEST(Config, CodecsThatChooseTakeNumbersOfTheirOwn) {
  EXPECT_EQ(parse_codec("adaptive"), (CodecSpec{.name = "adaptive", .every = 100, .error = 1}));
  EXPECT_EQ(parse_codec("adaptive-time:50:0.5"),
            (CodecSpec{.name = "adaptive-time", .every = 50, .error = 0.5}));
  EXPECT_EQ(parse_codec("adaprec"), (CodecSpec{.name = "adaprec",
                                               .every = 100,
                                               .trial = 20,
                                               .candidates = {"fp32", "fp8-e5m2", "table:1"}}));
  EXPECT_EQ(
      parse_codec("adaprec:8:5:maxmin:4:64+fastest"),
      (CodecSpec{
          .name = "adaprec", .every = 8, .trial = 5, .candidates = {"maxmin:4:64", "fastest"}}));
  const auto refused = [](const std::string& codec) {
    return failure_of_toml(fmt::format("[parallel]\ncodec = \"{}\"\n", codec));
  };
  expect_parts(refused("adaptive:0"), {"parallel.codec", "steps between two choices = 0"});
  expect_parts(refused("adaptive:9223372036854775807"), {"out of range"});
  expect_parts(refused("adaptive:9:0"), {"allowed error is out of range"});
  expect_parts(refused("adaptive:9:nan"), {"allowed error is out of range"});
  expect_parts(refused("adaptive:9:1:1"), {"too many numbers", "adaptive:EVERY:ERROR"});
  expect_parts(refused("fastest:9"), {"too many numbers"});
  expect_parts(refused("adaprec:8:4"), {"steps of a trial = 4", "5 .. "});
  expect_parts(refused("adaprec:8:5:fp32"), {"one codec to choose from"});
  expect_parts(refused("adaprec:8:5:fp32+adaptive"), {"\"adaptive\" cannot be tried"});
  expect_parts(refused("adaprec:8:5:fp32+maxmin:9"), {"bits = 9"});
  expect_parts(refused("adaprec:8:5:fp32+zip"), {"zip"});
}

TEST(Config, RulesOfDecoders) {
  const auto refused = [](const std::string& keys) {
    return failure_of_toml("[model]\nkind = \"decoder\"\n" + keys);
  };
  EXPECT_EQ(refused("family = \"mistral\"\nkv_heads = 2\nwindow = 8\n"), "");
  expect_parts(refused("family = \"lama\"\n"), {"lama", "did you mean \"llama\"?"});
  expect_parts(refused("family = \"llama:swish\"\n"), {"swish", "silu"});
  expect_parts(refused("rotary = \"longrope:2\"\n"), {"longrope", "yarn"});
  expect_parts(refused("width = 100\nheads = 3\n"), {"100", "3", "model.head_width"});
  EXPECT_EQ(refused("width = 100\nheads = 3\nhead_width = 32\n"), "");
  expect_parts(refused("kv_heads = 3\n"), {"model.kv_heads = 3", "model.heads = 4", "divisor"});
  expect_parts(refused("family = \"gpt2\"\nkv_heads = 2\n"), {"gpt2", "set 0"});
  expect_parts(refused("family = \"opt\"\nrotary = \"none:10000\"\n"), {"learned", "remove"});
  expect_parts(refused("head_width = 5\n"), {"even", "model.rotary:share"});
  expect_parts(refused("family = \"gemma3:residual=parallel\"\n"), {"gemma3", "remove"});
  expect_parts(refused("family = \"llama:biases=all\"\n"), {"all", "none"});
  expect_parts(refused("family = \"neox\"\nheads = 8\nwidth = 32\n"), {"0.25", "even"});
  expect_parts(refused("rotary = \"linear:0.5\"\n"), {"0.5", "1 or more"});
  expect_parts(refused("rotary = \"yarn:low=4:high=2\"\n"), {"must be above low"});
  expect_parts(refused("heads = 65536\nhead_width = 65536\n"), {"65536", "fewer"});
  expect_parts(failure_of_toml("[model]\nkv_heads = 2\n"),
               {"model.kv_heads", "\"decoder\"", "\"gpt\"", "remove"});
}

TEST(Config, RulesAcrossFields) {
  expect_parts(failure_of_toml("[model]\nwidth = 100\nheads = 3\n"), {"100", "3", "divisible"});
  expect_parts(failure_of_toml("[train]\nglobal_batch = 10\nmicro_batch = 4\n"), {"10", "4"});
  expect_parts(failure_of_toml("[pruning]\nfrom_step = 5\n"), {"both"});
  expect_parts(failure_of_toml("[pruning]\nfrom_step = 5\nto_step = 5\n"), {"is not below"});
  expect_parts(failure_of_toml("[pruning]\nat_step = 1\nfrom_step = 5\nto_step = 9\n"),
               {"exclude each other"});
  expect_parts(failure_of_toml("[pruning]\nmethod = \"nm:4:4\"\n"), {"below"});
  expect_parts(failure_of_toml("[pruning]\nmethod = \"random\"\n[sparse]\nindex = \"nm\"\n"),
               {"sparse.index = \"nm\"", "it is \"random\"", "\"auto\""});
  expect_parts(failure_of_toml("[pruning]\nmethod = \"nm\"\n[sparse]\n"
                               "index = {default = \"nm\", \"blocks.*\" = \"block\"}\n"),
               {"sparse.index = \"block\"", "it is \"nm\""});
  for (const char* method : {"rigl-nm:1:4", "set-nm", "random-nm"}) {
    const std::string chosen = fmt::format("[pruning]\nmethod = \"{}\"\n", method);
    EXPECT_EQ(failure_of_toml(chosen + "[sparse]\nindex = \"nm\"\n"), "");
    expect_parts(failure_of_toml(chosen + "from_step = 5\nto_step = 9\n"),
                 {"gradually", "1 - n/m"});
    expect_parts(failure_of_toml(chosen + "[sparse]\nindex = \"block\"\n"), {"it is", "-nm"});
  }
  expect_parts(failure_of_toml("[pruning]\nmethod = \"file\"\n"), {"set a file"});
  for (const std::string method : {"movement", "elsa"}) {
    const std::string chosen = "[pruning]\nmethod = \"" + method + "\"\n";
    expect_parts(failure_of_toml(chosen), {method, "there are none", "set pruning.at_step"});
    expect_parts(failure_of_toml(chosen + "at_step = 0\n"), {"there are none"});
    expect_parts(failure_of_toml(chosen + "from_step = 5\nto_step = 5\n"), {"is not below"});
    expect_parts(failure_of_toml(chosen + "at_step = 5\n[parallel]\nschedule = \"async\"\n"),
                 {method, "whole steps", "1f1b"});
  }
  expect_parts(failure_of_toml("[train]\ndtype = \"bf16\"\n[pruning]\nmethod = \"grasp\"\n"),
               {"grasp", "rounding", "fp32"});
  const std::string pruning = "[train]\nsteps = 100\n[pruning]\n";
  const std::string rigl = pruning + "method = \"rigl\"\n";
  expect_parts(failure_of_toml(rigl + "at_step = 75\n"), {"step 75 to step 75, 75 % of", "100"});
  expect_parts(failure_of_toml(rigl + "at_step = 9\nto_step = 9\n"),
               {"step 9 to step 9, which is not later;"});
  expect_parts(failure_of_toml(rigl + "from_step = 9\n"), {"both"});
  expect_parts(failure_of_toml(pruning + "method = \"rigl:1.0\"\n"), {">= 0 and < 1"});
  expect_parts(failure_of_toml(pruning + "method = \"set:distribution=er\"\n"),
               {"available: erk, uniform"});
  EXPECT_EQ(failure_of_toml(rigl + "at_step = 9\nto_step = 90\nevery = 7\n"), "");
  EXPECT_EQ(failure_of_toml(rigl + "from_step = 9\nto_step = 90\n"), "");
  const std::string optimizer = "[optimizer]\nkind = \"sgd\"\nlr = 1e-3\n";
  expect_parts(failure_of_toml(optimizer + "schedule = \"step\"\n"),
               {"no step", "step:0.1:3000,4500"});
  expect_parts(failure_of_toml(optimizer + "schedule = \"step:at=30,30\"\n"), {"30,30", "ascend"});
  expect_parts(failure_of_toml(optimizer + "schedule = \"stairs\"\n"), {"polynomial", "step"});
  expect_parts(failure_of_toml(optimizer + "min_lr = 1.0\n"), {"optimizer.min_lr"});
  EXPECT_EQ(failure_of_toml(optimizer + "min_lr = 1.0\nschedule = \"step:at=30\"\n"), "");
  expect_parts(failure_of_toml(optimizer + "nesterov = true\nmomentum = 0\n"), {"momentum"});
  expect_parts(failure_of_toml("[optimizer]\nnesterov = true\n"), {"adamw", "sgd"});
  expect_parts(failure_of_toml("[train]\nlabel_smoothing = 1\n"), {"label_smoothing", "< 1"});
  expect_parts(failure_of_toml("[train]\nlabel_smoothing = 0.1\nteacher = \"t.h5\"\n"),
               {"label_smoothing", "teacher"});
  expect_parts(failure_of_toml("[model]\nkind = \"mlp\"\n"), {"\"images\""});
  expect_parts(failure_of_toml("[data]\nvalidation_fraction = 0\n"), {"nothing to evaluate on"});
  expect_parts(failure_of_toml("[train]\nmemory_budget = \"lots\"\n"), {"not a size", "GiB"});
  EXPECT_EQ(failure_of_toml("[model]\nkind = \"mlp\"\n[data]\nkind = \"images\"\n"), "");
}

TEST(Config, OverridesTakeTomlValuesAndBareWords) {
  const std::vector<std::string> overrides{
      "train.steps=7",
      "optimizer.lr=3e-4",
      "run.out=runs/a=b",
      "train.dtype=bf16",
      "data.train=book.txt",
      "data.validation=[\"v\"]",
      "run.trace=false",
      "pruning.file=2024",
      "pruning.method=file",
      "model.hidden=[1, 2]",
      "optimizer.clip=0",
      "sparse.index={default = \"int32\", \"b.*\" = \"golomb\", \"a.*\" = \"bitmap\"}"};
  const Config config = parse("[train]\nsteps = 5\n", "run.toml", overrides);
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.run.out, "runs/a=b");
  EXPECT_EQ(config.train.dtype, "bf16");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"book.txt"});
  EXPECT_EQ(config.data.validation, std::vector<std::string>{"v"});
  EXPECT_FALSE(config.run.trace);
  EXPECT_EQ(config.pruning.file, "2024");
  EXPECT_EQ(config.sparse.index.fallback, "int32");
  ASSERT_EQ(config.sparse.index.patterns.size(), 2U);
  EXPECT_EQ(config.sparse.index.patterns[0].first, "b.*") << "the order of the file stays";
  expect_parts(failure_of_override("run.out=\"a\nv = 3"), {"--set"});
}

TEST(Config, PatternsApplyByNameAndTheLastMatchWins) {
  const Patterned value{.fallback = "d", .patterns = {{"blocks.*", "x"}, {"*.mlp.?", "y"}}};
  EXPECT_EQ(value.for_name("head"), "d");
  EXPECT_EQ(value.for_name("blocks.3.attention.qkv"), "x");
  EXPECT_EQ(value.for_name("blocks.3.mlp.1"), "y");
  EXPECT_TRUE(io::glob_match("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(io::glob_match("*", ""));
  EXPECT_FALSE(io::glob_match("a*b", "a-b-"));
  EXPECT_FALSE(io::glob_match("?", ""));
}

TEST(Config, FilesAreReadAndMissingOnesNamed) {
  const testing::TempDir dir;
  const std::filesystem::path path = dir / "run.toml";
  std::ofstream(path) << "[train]\nsteps = 11\n";
  EXPECT_EQ(load(path).train.steps, 11);
  std::filesystem::remove(path);
  expect_parts(failure_of([&] { load(path); }), {path.string(), "No such file"});
  expect_parts(failure_of([] { load("/"); }), {"not an ordinary file"});
}

TEST(Config, SizesAreParsed) {
  EXPECT_EQ(parse_bytes("1024"), 1024);
  EXPECT_EQ(parse_bytes("16GiB"), int64_t{16} << 30);
  EXPECT_EQ(parse_bytes("1.5 kB"), 1500);
  EXPECT_EQ(parse_bytes("60KB"), 60'000);
  for (const char* bad : {"", "GiB", "-1GiB", "16 gigs", "0", "1e30GiB", "nan"}) {
    EXPECT_NE(failure_of([&] { parse_bytes(bad); }), "") << bad;
  }
}

}  // namespace
}  // namespace espalier::config::config_test
