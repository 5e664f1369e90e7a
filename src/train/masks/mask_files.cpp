#include "src/train/masks/mask_files.h"

#include <cctype>
#include <memory>
#include <set>

#include "pruning/pruning.h"
#include "sparse/index/file_index.h"

namespace espalier::train {
namespace {

void check_plain_file(const io::PlainReader& reader, const std::filesystem::path& path,
                      std::span<const sparse::ParameterSpec> specs) {
  for (const sparse::ParameterSpec& spec : specs) {
    check(reader.has(spec.name),
          "{} has no dataset for parameter \"{}\"; name datasets as `espalier inspect` shows them "
          "('/' counts as '.')",
          path.string(), spec.name);
    check(reader.shape(spec.name) == spec.shape,
          "{}: dataset \"{}\" has shape {}, but the model needs {}; reshape the dataset, or "
          "correct [model] in the config",
          path.string(), spec.name, reader.shape(spec.name).text(), spec.shape.text());
  }
}

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

sparse::Mask mask_of_zeros(const io::PlainReader& reader, const std::string& name) {
  const std::vector<float> values = reader.read(name);
  return pruning::mask_from_dense_zeros(name, values);
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

void check_all_layers(const io::PlainReader& reader, const std::filesystem::path& path,
                      std::span<const sparse::ParameterSpec> network) {
  std::set<std::string> names;
  std::set<std::string> forms;
  for (const sparse::ParameterSpec& spec : network) {
    names.insert(spec.name);
    forms.insert(without_numbers(spec.name));
  }
  for (const std::string& name : reader.names()) {
    check(names.contains(name) || !forms.contains(without_numbers(name)),
          "{} has a dataset \"{}\", and the model in the config has no such layer; correct [model] "
          "in the config, or remove the dataset",
          path.string(), name);
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
  const auto reader = std::make_shared<io::PlainReader>(path);
  check_plain_file(*reader, path, specs);
  return [reader, specs = std::move(specs), prunable = std::move(prunable)](size_t p) {
    return prunable[p] ? mask_of_zeros(*reader, specs[p].name)
                       : sparse::Mask(specs[p].shape.count());
  };
}

}  // namespace espalier::train
