// espalier inspect FILE.h5: lists the arrays of a checkpoint or a plain HDF5 file. Reads and
// verifies every dataset. If any is damaged, names it and exits with code 1.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/paths.h"
#include "src/core/error.h"
#include "src/core/finite.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/masks/mask_files.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectArguments {
  std::string file;
  bool json = false;
};

Json extents_of(const Shape& shape) {
  Json extents = Json::array();
  for (const int64_t extent : shape.extents()) {
    extents.push_back(extent);
  }
  return extents;
}

double share(int64_t part, int64_t all) {
  return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
}

bool reported(const Json& damaged, const std::string& dataset) {
  return std::ranges::any_of(damaged, [&](const Json& row) { return row["dataset"] == dataset; });
}

/// Lists every dataset with its bytes; appends damaged ones to `damaged`, and those with a NaN or
/// an infinity to `not_finite`.
size_t verify(const io::CheckpointReader& reader, Json& damaged, Json& not_finite) {
  size_t bytes = 0;
  for (const auto& row : reader.verify_all()) {
    bytes += row.bytes;
    if (!row.ok) {
      damaged.push_back({{"dataset", row.dataset}, {"error", row.error}});
    }
    if (!row.finite) {
      not_finite.push_back(row.dataset);
    }
  }
  return bytes;
}

Json parameters_of(const io::CheckpointReader& reader, Json& damaged) {
  Json rows = Json::array();
  for (const std::string& name : reader.names()) {
    try {
      const io::StoredParameter info = reader.info(name);
      if (!reported(damaged, "/params/" + name + "/index")) {
        train::read_mask(reader, name);  // throws unless the index keeps nnz elements
      }
      rows.push_back({{"name", name},
                      {"shape", extents_of(info.shape)},
                      {"size", info.shape.count()},
                      {"kept", info.nnz},
                      {"sparsity", 1.0 - share(info.nnz, info.shape.count())},
                      {"encoding", info.encoding},
                      {"dtype", std::string(name_of(info.dtype))},
                      {"value_bytes", info.value_bytes},
                      {"index_bytes", info.index_bytes},
                      {"optimizer", info.optimizer}});
    } catch (const Failure& failure) {
      damaged.push_back({{"dataset", "/params/" + name}, {"error", failure.what()}});
    }
  }
  return rows;
}

int64_t sum(const Json& rows, const char* key) {
  int64_t total = 0;
  for (const Json& row : rows) {
    total += row[key].get<int64_t>();
  }
  return total;
}

Json inspect_checkpoint(const std::string& path) {
  const io::CheckpointReader reader(path);
  const io::CheckpointMeta meta = reader.meta();
  Json damaged = Json::array();
  Json not_finite = Json::array();
  const size_t bytes = verify(reader, damaged, not_finite);
  Json rows = parameters_of(reader, damaged);
  const int64_t size = sum(rows, "size");
  const int64_t kept = sum(rows, "kept");
  Json manifest;
  if (meta.extra.contains("manifest")) {
    try {
      manifest = train::json_of(train::manifest_of(meta.extra.at("manifest"), path));
    } catch (const Failure& failure) {
      damaged.push_back({{"dataset", "/meta"}, {"error", failure.what()}});
    }
  }
  const int64_t stored = sum(rows, "value_bytes") + sum(rows, "index_bytes");
  return {
      {"file", path},
      {"kind", "checkpoint"},
      {"step", meta.step},
      {"vocabulary",
       meta.extra.contains("vocabulary") ? Json(meta.extra.at("vocabulary").size() / 2) : Json()},
      {"parameters", size},
      {"kept_parameters", kept},
      {"sparsity", size == 0 ? 0.0 : 1.0 - share(kept, size)},
      {"bytes", bytes},
      {"weight_and_index_bytes", stored},
      {"optimizer_bytes", static_cast<int64_t>(bytes) - stored},
      {"bytes_per_parameter", share(static_cast<int64_t>(bytes), size)},
      {"arrays", std::move(rows)},
      {"damaged", std::move(damaged)},
      {"not_finite", std::move(not_finite)},
      {"manifest", std::move(manifest)},
      {"codec_choice",
       meta.extra.contains("codec_choice") ? Json(meta.extra.at("codec_choice")) : Json()},
      {"config", meta.config}};
}

Json inspect_plain(const std::string& path) {
  const io::PlainReader reader(path);
  Json rows = Json::array();
  Json damaged = Json::array();
  Json not_finite = Json::array();
  for (const std::string& name : reader.names()) {
    try {
      const std::vector<float> values = reader.read(name);
      if (!all_finite(std::as_bytes(std::span(values)), DType::fp32)) {
        not_finite.push_back(name);
      }
      const std::vector<uint8_t> kept = reader.kept(name);
      const int64_t zeros =
          kept.empty() ? std::ranges::count(values, 0.0F) : std::ranges::count(kept, uint8_t{0});
      const auto size = static_cast<int64_t>(values.size());
      rows.push_back({{"name", name},
                      {"shape", extents_of(reader.shape(name))},
                      {"size", size},
                      {"kept", size - zeros},
                      {"sparsity", share(zeros, size)}});
    } catch (const Failure& failure) {
      damaged.push_back({{"dataset", name}, {"error", failure.what()}});
    }
  }
  const int64_t size = sum(rows, "size");
  return {{"file", path},
          {"kind", "plain"},
          {"parameters", size},
          {"kept_parameters", sum(rows, "kept")},
          {"sparsity", share(size - sum(rows, "kept"), size)},
          {"arrays", std::move(rows)},
          {"masks", reader.masks()},
          {"loose_masks", reader.loose_masks()},
          {"skipped", reader.skipped()},
          {"damaged", std::move(damaged)},
          {"not_finite", std::move(not_finite)}};
}

std::string joined(const Json& list, const char* separator) {
  std::string text;
  for (const Json& element : list) {
    text += text.empty() ? "" : separator;
    text += element.is_string() ? element.get<std::string>() : element.dump();
  }
  return text;
}

/// "12 x sparse, 4 x dense"
std::string counts_of(const Json& storages) {
  std::map<std::string, int64_t> counts;
  for (const Json& storage : storages) {
    ++counts[storage.get<std::string>()];
  }
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) {
    words.push_back(fmt::format("{} x {}", count, name));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::vector<std::string> row_of(const Json& array, bool checkpoint) {
  std::vector<std::string> row{
      array["name"].get<std::string>(), "[" + joined(array["shape"], ", ") + "]",
      grouped(array["size"].get<int64_t>()), grouped(array["kept"].get<int64_t>()),
      percent(array["sparsity"].get<double>())};
  if (checkpoint) {
    row.push_back(array["encoding"].get<std::string>());
    row.push_back(array["dtype"].get<std::string>());
    row.push_back(bytes_text(array["value_bytes"].get<double>()));
    row.push_back(bytes_text(array["index_bytes"].get<double>()));
    row.push_back(joined(array["optimizer"], ","));
  }
  return row;
}

std::string text_of(const Json& found) {
  const bool checkpoint = found["kind"] == "checkpoint";
  Rows rows{{"parameter", "shape", "elements", "kept", "sparsity"}};
  if (checkpoint) {
    for (const char* head : {"index", "type", "values", "positions", "optimizer"}) {
      rows.front().emplace_back(head);
    }
  }
  for (const Json& array : found["arrays"]) {
    rows.push_back(row_of(array, checkpoint));
  }
  rows.push_back({"total", "", grouped(found["parameters"].get<int64_t>()),
                  grouped(found["kept_parameters"].get<int64_t>()),
                  percent(found["sparsity"].get<double>())});
  std::string text = table(rows) + "\n";
  if (!checkpoint) {
    for (const auto& [mask, array] : found["masks"].items()) {
      text += fmt::format("{}: mask of {}\n", mask, array.get<std::string>());
    }
    for (const Json& mask : found["loose_masks"]) {
      text += fmt::format("{}: named like a mask, but no array has its name\n",
                          mask.get<std::string>());
    }
    const std::string skipped = joined(found["skipped"], ", ");
    return text + (skipped.empty() ? "" : "no arrays, skipped: " + skipped + "\n");
  }
  text += fmt::format(
      "step {}; {} in all: weights and positions {}, optimizer {}; {:.3g} bytes a "
      "parameter\n",
      found["step"].get<int64_t>(), bytes_text(found["bytes"].get<double>()),
      bytes_text(found["weight_and_index_bytes"].get<double>()),
      bytes_text(found["optimizer_bytes"].get<double>()),
      found["bytes_per_parameter"].get<double>());
  for (const auto& [key, value] : found["manifest"].items()) {
    text += fmt::format("{:<18} {}\n", key,
                        key == "storages"   ? counts_of(value)
                        : value.is_string() ? value.get<std::string>()
                                            : value.dump());
  }
  return found["damaged"].empty() ? text + "all checksums are right\n" : text;
}

int inspect(const InspectArguments& arguments) {
  const Json found = io::is_checkpoint(arguments.file) ? inspect_checkpoint(arguments.file)
                                                       : inspect_plain(arguments.file);
  if (arguments.json) {
    print_json(found);
  } else {
    print(text_of(found));
  }
  for (const Json& dataset : found["not_finite"]) {
    print_note(fmt::format("{} has a NaN or an infinity: other commands refuse the file",
                           dataset.get<std::string>()));
  }
  for (const Json& row : found["damaged"]) {
    print_error(row["error"].get<std::string>());
  }
  return found["damaged"].empty() ? 0 : 1;
}

}  // namespace

void register_inspect(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "List and verify what a checkpoint or plain HDF5 file holds");
  command->add_option("file", arguments->file, "HDF5 file")->transform(checkpoint_path)->required();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &chosen] { chosen = [arguments] { return inspect(*arguments); }; });
}

}  // namespace espalier::cli
