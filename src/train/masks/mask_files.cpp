#include "src/train/masks/mask_files.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <set>

#include "pruning/pruning.h"
#include "sparse/index/file_index.h"
#include "src/core/finite.h"
#include "src/model/layers/embedding.h"

namespace espalier::train {
namespace {

/// "blocks.#.norm" of "blocks.12.norm".
std::string without_numbers(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit || out.empty() || out.back() != '#') {
      out += digit ? '#' : c;
    }
  }
  return out;
}

/// The mask that the file has for the array, or its non-zero elements.
sparse::Mask mask_of_array(const io::PlainReader& reader, const std::string& name) {
  if (!reader.has_mask(name)) {
    const std::vector<float> values = reader.read(name);
    check_numbers(reader, name, values);
    return pruning::mask_from_dense_zeros(name, values);
  }
  const std::vector<uint8_t> kept = reader.kept(name);
  sparse::Mask mask(static_cast<int64_t>(kept.size()));
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == 0) {
      mask.set(static_cast<int64_t>(i), false);
    }
  }
  return mask;
}

const sparse::Encoding& encoding_of(const io::CheckpointReader& reader,
                                    const io::StoredParameter& info) {
  try {
    return sparse::encoding_by_name(info.encoding);
  } catch (const Failure& failure) {
    fail("{}: index of \"{}\": {}", reader.path().string(), info.name, failure.what());
  }
}

}  // namespace

void check_same_parameters(const io::CheckpointReader& reader,
                           std::span<const sparse::ParameterSpec> specs, bool whole) {
  const std::string file = reader.path().string();
  for (const sparse::ParameterSpec& spec : specs) {
    check(reader.has(spec.name),
          "{} is a checkpoint of another model: it has no parameter \"{}\" (compare [model] with "
          "`espalier inspect`)",
          file, spec.name);
    const Shape shape = reader.info(spec.name).shape;
    check(shape == spec.shape,
          "{} is a checkpoint of another model: \"{}\" has shape {} there and {} here (compare "
          "[model] with `espalier inspect`)",
          file, spec.name, shape.text(), spec.shape.text());
  }
  check(!whole || reader.names().size() == specs.size(),
        "{} is a checkpoint of another model: it has {} parameters, this one has {} (compare "
        "[model] with `espalier inspect`)",
        file, reader.names().size(), specs.size());
}

void check_arrays(const io::PlainReader& reader, std::span<const sparse::ParameterSpec> specs) {
  io::NamedShapes missing;
  for (const sparse::ParameterSpec& spec : specs) {
    if (!reader.has(spec.name)) {
      missing.emplace_back(spec.name, spec.shape.text());
      continue;
    }
    check(reader.shape(spec.name) == spec.shape,
          "{}: dataset \"{}\" has shape {}, but the model needs {}; import it first (espalier "
          "import {} -o OUT.h5 --config CONFIG reads convolutions, and other layouts by --map), or "
          "correct [model] in the config",
          reader.path().string(), spec.name, reader.shape(spec.name).text(), spec.shape.text(),
          reader.path().string());
  }
  check(missing.empty(),
        "{} has no dataset for {} of {} parameters of the model; import it first (espalier import "
        "{} -o OUT.h5 --config CONFIG finds other names), or correct [model] in the config:{}",
        reader.path().string(), missing.size(), specs.size(), reader.path().string(),
        io::expected_and_found(missing, reader.named_shapes()));
}

void check_numbers(const io::PlainReader& reader, const std::string& name,
                   std::span<const float> values) {
  if (all_finite(std::as_bytes(values), DType::fp32)) {
    return;
  }
  const bool nan = std::ranges::any_of(values, [](float x) { return std::isnan(x); });
  fail("{}: the file holds {} in {}; correct its values", reader.path().string(),
       nan ? "a NaN" : "an infinity, or a number beyond 3.40e38, the largest of fp32,", name);
}

void check_nothing_left(const io::PlainReader& reader,
                        std::span<const sparse::ParameterSpec> network) {
  const std::string path = reader.path().string();
  for (const std::string& mask : reader.loose_masks()) {
    fail(
        "{}: {} is named like a mask, and no array has its name; name it after its weight "
        "(NAME_mask, NAME.mask or masks.NAME), or import the file first: espalier import {} -o "
        "OUT.h5 --config CONFIG",
        path, mask, path);
  }
  std::set<std::string> names;
  std::set<std::string> forms;
  for (const sparse::ParameterSpec& spec : network) {
    names.insert(spec.name);
    forms.insert(without_numbers(spec.name));
  }
  const std::string embedding(model::kTokenEmbedding);
  check(!names.contains(embedding) || names.contains("head.weight") || !reader.has("head.weight") ||
            !reader.has(embedding) || reader.read("head.weight") == reader.read(embedding),
        "{}: head.weight differs from {}, and the config ties them; set model.tie_embeddings = "
        "false",
        path, embedding);
  for (const std::string& name : reader.names()) {
    check(names.contains(name) || !forms.contains(without_numbers(name)),
          "{} has a dataset \"{}\", and the model in the config has no such layer; correct [model] "
          "in the config, or remove the dataset",
          path, name);
  }
}

sparse::Mask read_mask(const io::CheckpointReader& reader, const std::string& name) {
  const io::StoredParameter info = reader.info(name);
  if (info.encoding == sparse::Encoding::full.name) {
    return sparse::Mask(info.shape.count());
  }
  const sparse::Encoding& encoding = encoding_of(reader, info);
  const std::vector<uint8_t> bytes = reader.index(name);
  try {
    return sparse::mask_from_file(encoding, info.shape.count(), info.nnz, bytes);
  } catch (const Failure& failure) {
    fail("{}: index of \"{}\": {}; the file is damaged, use another checkpoint",
         reader.path().string(), name, failure.what());
  }
}

std::vector<sparse::ParameterSpec> specs_of(const sparse::Store& store) {
  std::vector<sparse::ParameterSpec> specs;
  for (const sparse::Parameter& parameter : store.parameters()) {
    specs.push_back(parameter.spec);
  }
  return specs;
}

MaskOf masks_in(const std::filesystem::path& path, std::vector<sparse::ParameterSpec> specs,
                std::vector<bool> prunable) {
  if (io::is_checkpoint(path)) {
    const auto reader = std::make_shared<io::CheckpointReader>(path);
    check_same_parameters(*reader, specs);
    return
        [reader, specs = std::move(specs)](size_t p) { return read_mask(*reader, specs[p].name); };
  }
  return masks_in(std::make_shared<io::PlainReader>(path), std::move(specs), std::move(prunable));
}

MaskOf masks_in(std::shared_ptr<const io::PlainReader> reader,
                std::vector<sparse::ParameterSpec> specs, std::vector<bool> prunable) {
  check_arrays(*reader, specs);
  return [reader = std::move(reader), specs = std::move(specs),
          prunable = std::move(prunable)](size_t p) {
    return prunable[p] ? mask_of_array(*reader, specs[p].name)
                       : sparse::Mask(specs[p].shape.count());
  };
}

}  // namespace espalier::train
