#include "src/train/codec_choice/codec_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/checkpoint/checkpoint.h"
#include "io/config/patterned.h"
#include "io/files/mapped_file.h"
#include "parallel/flat.h"
#include "src/core/rng.h"

namespace espalier::train {
namespace {

static_assert(std::endian::native == std::endian::little, "raw files are read as they are");

Buffer flat_floats(Arena& arena, int64_t count) {
  return arena.allocate(Memory::gradient, "values to encode", DType::fp32, Shape{count});
}

CodecValues one_part(Buffer values, std::string kind) {
  const int64_t count = values.tensor().count();
  return {.values = std::move(values), .parts = {{"", {0, count}}}, .kind = std::move(kind)};
}

float draw(const std::string& kind, uint64_t seed, int64_t element) {
  const Philox words = philox(seed, 0, static_cast<uint64_t>(element));
  if (kind == "uniform") {
    return uniform(words[0]);
  }
  const auto pair = normal_pair(words[0], words[1]);
  return kind == "normal" ? pair[0] : pair[0] * std::exp(1.5F * pair[1]);
}

/// "moment1" or "values".
std::string kind_of(const io::CheckpointReader& reader, const std::vector<std::string>& names,
                    const std::string& wanted) {
  const auto without = std::ranges::find_if(
      names, [&](const std::string& name) { return !reader.has_optimizer(name, "moment1"); });
  if (wanted.empty()) {
    return without == names.end() ? "moment1" : "values";
  }
  check(wanted != "moment1" || without == names.end(),
        "{} holds no moment1 of \"{}\"; use --what values, or a checkpoint of a training run",
        reader.path().string(), without == names.end() ? "" : *without);
  return wanted;
}

}  // namespace

CodecValues raw_values(Arena& arena, const std::filesystem::path& path, DType dtype) {
  require(is_number(dtype), "raw files hold fp32, bf16 or fp16", name_of(dtype));
  const io::MappedFile file(path);
  const std::span<const uint8_t> bytes = file.bytes();
  check(bytes.size() % size_of(dtype) == 0,
        "{} has {} bytes, not a multiple of {}, the size of a number of type {}; set --dtype to "
        "the file's type, or use a complete file",
        path.string(), bytes.size(), size_of(dtype), name_of(dtype));
  const auto count = static_cast<int64_t>(bytes.size() / size_of(dtype));
  Buffer values = flat_floats(arena, count);
  auto* const out = values.tensor().get<float>();
  with_number(dtype, [&](auto number) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&number, bytes.data() + static_cast<size_t>(i) * sizeof number, sizeof number);
      out[i] = to_float(number);
    }
  });
  return one_part(std::move(values), std::string(name_of(dtype)));
}

CodecValues checkpoint_values(Arena& arena, const std::filesystem::path& path,
                              const CheckpointChoice& choice) {
  const io::CheckpointReader reader(path);
  CodecValues found;
  std::vector<std::string> names;
  int64_t count = 0;
  for (const std::string& name : reader.names()) {
    if (!io::glob_match(choice.pattern, name)) {
      continue;
    }
    const int64_t kept = reader.info(name).nnz;
    if (kept > 0) {
      names.push_back(name);
      found.parts.push_back({name, {count, kept}});
      count += kept;
    }
  }
  check(!names.empty(),
        "{} has no parameter \"{}\" with kept elements; `espalier inspect` lists the names",
        path.string(), choice.pattern);
  found.kind = kind_of(reader, names, choice.what);
  found.values = flat_floats(arena, count);
  for (const CodecValues::Part& part : found.parts) {
    const Tensor out =
        parallel::flat_part(found.values.tensor(), part.range.first, part.range.count);
    if (found.kind == "moment1") {
      reader.optimizer(part.name, "moment1", out);
    } else {
      reader.values(part.name, out);
    }
  }
  return found;
}

CodecValues synthetic_values(Arena& arena, const std::string& kind, int64_t count, uint64_t seed) {
  check(kind == "normal" || kind == "heavy" || kind == "uniform",
        "unknown distribution \"{}\"; use one of normal, heavy, uniform", kind);
  check(count >= 1, "--count = {} leaves nothing to encode; set at least 1", count);
  Buffer values = flat_floats(arena, count);
  const std::span<float> out = values.tensor().span<float>();
  for (int64_t i = 0; i < count; ++i) {
    out[static_cast<size_t>(i)] = draw(kind, seed, i);
  }
  return one_part(std::move(values), kind);
}

}  // namespace espalier::train
