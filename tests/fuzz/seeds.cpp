// fuzz_seeds FOLDER: writes a folder for each target with binary inputs, valid ones. Those of text
// are in the corpus as they are.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <random>

#include "io/checkpoint/plain_hdf5.h"
#include "io/safetensors/writer.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "sparse/index/file_index.h"
#include "src/config/parse.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "tests/fuzz/small_store.h"

namespace espalier::fuzz {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

fs::path root;

fs::path file_of(const std::string& target, const std::string& name) {
  fs::create_directories(root / target);
  return root / target / name;
}

void write(const std::string& target, const std::string& name, const Bytes& bytes) {
  std::ofstream file(file_of(target, name), std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

void add(Bytes& to, uint64_t number, size_t bytes) {
  while (bytes-- > 0) {
    to.push_back(static_cast<uint8_t>(number >> (8 * bytes)));
  }
}

/// Kept with the probability `density`, in blocks of `edge` x `edge`.
sparse::Mask random_mask(int64_t rows, int64_t cols, double density, int64_t edge) {
  std::mt19937 random(7);
  sparse::Mask mask(rows * cols, false);
  for (int64_t row = 0; row < rows; row += edge) {
    for (int64_t col = 0; col < cols; col += edge) {
      const bool kept = std::bernoulli_distribution(density)(random);
      for (int64_t i = 0; i < edge * edge && kept; ++i) {
        mask.set((row + i / edge) * cols + col + i % edge, true);
      }
    }
  }
  return mask;
}

void write_indices() {
  Arena arena;
  const sparse::IndexShape shape{.cols = 16, .height = 2, .width = 2, .n = 2, .m = 4};
  for (const sparse::Encoding* encoding : sparse::encodings()) {
    const bool full = *encoding == sparse::Encoding::full;
    sparse::Mask mask = full ? sparse::Mask(128) : random_mask(8, 16, 0.3, 2);
    for (int64_t i = 0; i < mask.size() && *encoding == sparse::Encoding::nm; ++i) {
      mask.set(i, i % 4 < 2);
    }
    const sparse::Index index(arena, mask, *encoding, shape);
    Bytes bytes{static_cast<uint8_t>(sparse::number_of(*encoding))};
    add(bytes, static_cast<uint64_t>(mask.size()), 2);
    add(bytes, static_cast<uint64_t>(mask.kept()), 2);
    const Bytes coded = full ? Bytes() : sparse::to_file(index, *encoding).bytes;
    bytes.insert(bytes.end(), coded.begin(), coded.end());
    write("index", std::string(encoding->name), bytes);
  }
}

void write_messages() {
  Arena arena;
  Stream stream(arena, 1);
  constexpr uint64_t kCount = 70;
  std::mt19937 random(3);
  std::vector<float> values(kCount);
  std::ranges::generate(values, [&] { return std::normal_distribution<float>()(random); });
  const auto codecs = kernels::wire_codecs();
  for (size_t i = 0; i < codecs.size(); ++i) {
    const auto takes = [&](kernels::WireNumbers numbers) { return codecs[i]->numbers == numbers; };
    const uint64_t bits = takes(kernels::WireNumbers::bits) ? 3 : 0;
    const uint64_t share = takes(kernels::WireNumbers::share) ? 51 : 0;
    const uint64_t bucket = takes(kernels::WireNumbers::none) ? 0 : 32;
    parallel::CodecSpec spec{.name = std::string(codecs[i]->name)};
    spec.bits = static_cast<int64_t>(bits);
    spec.share = static_cast<double>(share) / 255;
    spec.bucket = static_cast<int64_t>(bucket);
    const kernels::WireFormat format = parallel::format_of(spec);
    std::vector<std::byte> message(kernels::wire_bytes(format, kCount));
    kernels::by_name("cpu").encode(
        stream, {.x = Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(kCount)}),
                 .wire = message,
                 .format = format});
    Bytes bytes{static_cast<uint8_t>(i), static_cast<uint8_t>(bits)};
    add(bytes, bucket, 2);
    add(bytes, share, 1);
    add(bytes, kCount, 2);
    add(bytes, 0, 1);
    const auto* coded = reinterpret_cast<const uint8_t*>(message.data());
    bytes.insert(bytes.end(), coded, coded + message.size());
    write("wire", std::string(codecs[i]->name), bytes);
  }
}

/// Big-endian numbers of a header, then `data` bytes.
Bytes idx(std::initializer_list<uint64_t> header, size_t data) {
  Bytes bytes;
  for (const uint64_t number : header) {
    add(bytes, number, 4);
  }
  for (size_t i = 0; i < data; ++i) {
    bytes.push_back(static_cast<uint8_t>(i % 10));
  }
  return bytes;
}

/// [length of the first][the first][the second]
Bytes pair_of(const Bytes& first, const Bytes& second) {
  Bytes bytes;
  add(bytes, first.size(), 2);
  bytes.insert(bytes.end(), first.begin(), first.end());
  bytes.insert(bytes.end(), second.begin(), second.end());
  return bytes;
}

void write_images() {
  write("images", "five", pair_of(idx({0x803, 5, 2, 3}, 30), idx({0x801, 5}, 5)));
  write("images", "channels", pair_of(idx({0x804, 3, 2, 3, 2}, 36), idx({0x801, 3}, 3)));
  for (const uint8_t labels : {1, 2}) {
    Bytes record(labels, 7);
    record.resize(labels + 3072U, labels);
    Bytes bytes = pair_of(record, record);
    bytes.insert(bytes.begin(), labels - 1U);
    write("cifar", labels == 1 ? "ten" : "hundred", bytes);
  }
}

void write_tokens() {
  const Bytes numbers{1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 1, 0, 2, 0, 3, 0, 4, 0};
  for (uint8_t kind = 0; kind < 4; ++kind) {
    Bytes bytes{kind, 0, 1};
    bytes.insert(bytes.end(), numbers.begin(), numbers.end());
    write("tokens", fmt::format("plain_{}", kind), bytes);
  }
  for (const auto& [magic, version, width] :
       std::vector<std::array<int32_t, 3>>{{20240520, 1, 2}, {20240801, 7, 4}}) {
    std::array<int32_t, 256> header{magic, version, static_cast<int32_t>(numbers.size()) / width};
    Bytes bytes{2, 0, 1};
    const auto* first = reinterpret_cast<const uint8_t*>(header.data());
    bytes.insert(bytes.end(), first, first + sizeof(header));
    bytes.insert(bytes.end(), numbers.begin(), numbers.end());
    write("tokens", fmt::format("header_{}", width), bytes);
  }
}

/// A checkpoint of the small network, with half of each matrix pruned. (Those with other encodings
/// in the corpus are of earlier versions.)
void write_checkpoint(const std::string& name) {
  Arena arena;
  Stream stream(arena, 1);
  sparse::Store saved(stream, kernels::by_name("cpu"), small_specs(), {.feedback = true});
  std::vector<sparse::Mask> masks = saved.masks();
  for (int64_t i = 0; i < masks[0].size(); ++i) {
    masks[0].set(i, i % 3 != 0);
  }
  for (int64_t i = 0; i < masks[2].size(); ++i) {
    masks[2].set(i, i % 7 == 0);
  }
  saved.restart(masks);
  saved.initialise(1);
  const auto alone = parallel::self_communicator();
  const train::RunProgress progress{.step = 3,
                                    .config = config::parse("", "seed.toml"),
                                    .characters = io::Vocabulary("ab"),
                                    .codec_choice = "a=maxmin:4:512;",
                                    .loss_scale = "65536 1 0"};
  for (const char* target : {"checkpoint", "weights"}) {
    train::save(file_of(target, name), saved, progress, *alone);
  }
}

void write_plain(const std::string& target) {
  io::PlainWriter writer(file_of(target, "network"));
  for (const sparse::ParameterSpec& spec : small_specs()) {
    std::vector<float> values(static_cast<size_t>(spec.shape.count()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 3);
    }
    writer.write(spec.name, spec.shape, values);
  }
  writer.commit();
}

void write_safetensors() {
  using io::SafetensorsType;
  const std::vector<io::SafetensorsEntry> tensors{
      {.name = "w", .type = SafetensorsType::bf16, .shape = {3, 2}},
      {.name = "bias", .type = SafetensorsType::f32, .shape = {3}},
      {.name = "half", .type = SafetensorsType::f16, .shape = {1, 1, 5}},
      {.name = "double", .type = SafetensorsType::f64, .shape = {}},
      {.name = "empty", .type = SafetensorsType::i64, .shape = {0, 7}},
      {.name = "mask \"é\"", .type = SafetensorsType::boolean, .shape = {5}}};
  const fs::path path = file_of("safetensors", "types.safetensors");
  io::SafetensorsWriter writer(path, tensors, {.metadata = {{"format", "pt"}, {"a", "\n"}}});
  for (const io::SafetensorsEntry& tensor : tensors) {
    const Bytes bytes(*io::safetensors_bytes(tensor.type, tensor.shape), 0x3f);
    writer.write_bytes(tensor.name, std::as_bytes(std::span(bytes)));
  }
  writer.commit();
  fs::rename(path, path.parent_path() / "types");
}

}  // namespace
}  // namespace espalier::fuzz

int main(int count, char** arguments) {
  using namespace espalier::fuzz;
  if (count != 2) {
    fmt::print(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  root = arguments[1];
  write_indices();
  write_messages();
  write_images();
  write_tokens();
  write_checkpoint("golomb");
  write_plain("plain_hdf5");
  write_plain("weights");
  write_safetensors();
  return 0;
}
