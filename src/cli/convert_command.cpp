// espalier import and export: checkpoints from and to directories of Hugging Face models, and plain
// HDF5 files of dense arrays, zeros where pruned.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "io/checkpoint/plain_hdf5.h"
#include "io/files/folders.h"
#include "io/safetensors/sharded.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/weights_file.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/finite.h"
#include "src/core/trace.h"
#include "src/hub/array_match.h"
#include "src/hub/export.h"
#include "src/hub/import.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/masks/mask_files.h"

namespace espalier::cli {
namespace {

struct ConvertArguments {
  std::string in;
  std::string out;
  ConfigSource config;
  std::string dtype;
  // Of directories:
  bool zeros_are_pruned = false;
  bool no_tokenizer = false;
  int64_t context = 0;
  std::string shard_size = "5GB";
  bool sparse = false;
  bool sparse_only = false;
  // Of HDF5 files:
  std::string map;
  std::string names;  ///< config whose parameters are listed
  const CLI::App* command = nullptr;
};

std::optional<DType> dtype_of(const ConvertArguments& arguments) {
  return arguments.dtype.empty() ? std::nullopt : std::optional(dtype_by_name(arguments.dtype));
}

/// "1.2 GB in 0.8 s (1.5 GB/s)"
std::string rate_text(uint64_t bytes, double seconds) {
  const auto number = static_cast<double>(bytes);
  return fmt::format("{} in {:.1f} s ({}/s)", bytes_text(number), seconds,
                     bytes_text(number / std::max(seconds, 1e-9)));
}

/// A folder, or a file that is named like one of safetensors or their index.
bool is_hub_model(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) || path.ends_with(io::kSafetensorsSuffix) ||
         path.ends_with(".json");
}

/// Names that HDF5 files have; other outputs of `export` are folders.
bool is_hdf5_name(const std::string& path) {
  return path.ends_with(".h5") || path.ends_with(".hdf5");
}

/// All files that an import of `path`, a folder or a file in one, may read.
std::vector<std::string> files_beside(const fs::path& path) {
  std::error_code ignored;
  std::vector<std::string> files{path.string()};
  const fs::path folder = fs::is_directory(path, ignored) ? path : fs::absolute(path).parent_path();
  for (const fs::path& entry : io::entries_of(folder)) {
    files.push_back(entry.string());
  }
  return files;
}

int import_hub(const ConvertArguments& arguments) {
  check(arguments.config.file.empty() && arguments.config.overrides.empty(),
        "{} is not an ordinary file: with --config or --set, name an HDF5 file of arrays. The "
        "config.json of a model's folder describes it: leave out --config and --set",
        arguments.in);
  check_output(arguments.out, files_beside(arguments.in));
  const double started = now_seconds();
  WorkProgress progress("import, elements");
  const hub::ImportReport report = hub::import_model(
      {.from = arguments.in,
       .to = arguments.out,
       .zeros_are_pruned = arguments.zeros_are_pruned,
       .dtype = dtype_of(arguments),
       .context = arguments.context,
       .tokenizer = !arguments.no_tokenizer,
       .on_progress = [&progress](int64_t done, int64_t total) { progress.show(done, total); }});
  progress.close();
  for (const std::string& text : report.notes) {
    print_note(text);
  }
  print_note(fmt::format(
      "wrote {}: {}, {} of {} parameters kept, {}; the network for `train --init` is in it",
      arguments.out, report.architecture, grouped(report.kept), grouped(report.parameters),
      rate_text(report.bytes, now_seconds() - started)));
  return 0;
}

int export_hub(const ConvertArguments& arguments) {
  check_output_folder(arguments.out);
  const double started = now_seconds();
  const int64_t shard = config::parse_bytes(arguments.shard_size);
  check(shard > 0, "--shard-size {} is too small; name a size such as 5GB", arguments.shard_size);
  WorkProgress progress("export, elements");
  const hub::ExportReport report = hub::export_model(
      {.from = arguments.in,
       .to = arguments.out,
       .dtype = dtype_of(arguments),
       .shard_bytes = static_cast<uint64_t>(shard),
       .dense = !arguments.sparse_only,
       .sparse = arguments.sparse || arguments.sparse_only,
       .on_progress = [&progress](int64_t done, int64_t total) { progress.show(done, total); }});
  progress.close();
  const uint64_t bytes = (arguments.sparse_only ? 0 : report.dense_bytes) +
                         (arguments.sparse || arguments.sparse_only ? report.sparse_bytes : 0);
  print_note(fmt::format("wrote {}: {}, {} tensors in {} file{}, {}{}", arguments.out,
                         report.architecture, report.tensors, report.files,
                         report.files == 1 ? "" : "s", rate_text(bytes, now_seconds() - started),
                         report.tokenizer ? "" : "; the checkpoint holds no tokenizer"));
  return 0;
}

/// Lists the parameters of a network.
int list_names(const ConvertArguments& arguments) {
  const io::Config config = config::load(arguments.names, arguments.config.overrides);
  Rows rows{{"parameter", "shape"}};
  for (const auto& [name, shape] : hub::expected_names(config)) {
    rows.push_back({name, shape});
  }
  print(table(rows));
  return 0;
}

/// "fp16", "fp16 and fp32"
std::string types_text(const std::map<std::string, DType>& types) {
  std::set<std::string_view> names;
  for (const auto& [parameter, type] : types) {
    names.insert(name_of(type));
  }
  return fmt::format("{}", fmt::join(names, " and "));
}

int import_arrays(const ConvertArguments& arguments) {
  if (!arguments.names.empty()) {
    if (!arguments.in.empty() || !arguments.out.empty()) {
      throw Usage("--names CONFIG.toml lists names only; leave out the file and -o");
    }
    constexpr std::string_view kImport = "with a file to import";
    check_used(*arguments.command, {{"--config", false, kImport},
                                    {"--map", false, kImport},
                                    {"--dtype", false, kImport},
                                    {"--zeros-are-pruned", false, kImport},
                                    {"--context", false, kImport},
                                    {"--no-tokenizer", false, kImport}});
    return list_names(arguments);
  }
  if (arguments.in.empty() || arguments.out.empty()) {
    throw Usage(
        "name the model to import, and the checkpoint with -o (--names CONFIG.toml lists "
        "the names of a network's parameters)");
  }
  if (!arguments.map.empty() && is_hub_model(arguments.in)) {
    throw Usage("--map is for HDF5 files; the tensors of a Hugging Face model have known names");
  }
  if (is_hub_model(arguments.in)) {
    return import_hub(arguments);
  }
  if (arguments.config.file.empty()) {
    check(io::path_exists(arguments.in),
          "{} does not exist; name the directory of a Hugging Face model or an HDF5 file of arrays",
          arguments.in);
    throw Usage(
        fmt::format("--config is missing: a TOML file that describes the network of {} (a folder "
                    "of a Hugging Face model needs none)",
                    arguments.in));
  }
  constexpr std::string_view kFolders = "with a Hugging Face model";
  check_used(*arguments.command,
             {{"--zeros-are-pruned", false,
               "with a Hugging Face model; zeros of plain arrays are always pruned"},
              {"--context", false, kFolders},
              {"--no-tokenizer", false, kFolders}});
  check_output(arguments.out, std::array{arguments.in, arguments.config.file, arguments.map});
  check(
      !io::is_checkpoint(arguments.in),
      "{} is an Espalier checkpoint already: use it unchanged, or run `espalier export` for plain "
      "arrays",
      arguments.in);
  const double started = now_seconds();
  const io::Config config = config_for_type(arguments.config, DType::fp32);
  check_output(arguments.out, config.data.train);
  const auto lines =
      arguments.map.empty() ? std::vector<hub::MapLine>() : hub::read_array_map(arguments.map);
  const auto reader = std::make_shared<io::PlainReader>(
      arguments.in, [&](const std::string& name) { return hub::leaves_out(lines, name); });
  const hub::ArrayMatch match = hub::match_arrays(*reader, config, lines);
  reader->set_views(match.views);
  const WeightsFile file = described_weights(arguments.in, config, match.problem);
  Weights weights(file);
  sparse::Store& store = *weights.store;
  auto types = types_in(*reader, store);
  if (const auto dtype = dtype_of(arguments)) {
    std::ranges::for_each(types, [&](auto& type) { type.second = *dtype; });
  }
  const io::Config named =
      config_for_type(arguments.config, types.at(store.parameters().front().spec.name));
  const int64_t all = store.total_size();
  WorkProgress progress("import, elements");
  // Reading visits each element twice, writing once.
  const auto show = [&](int64_t visits) { progress.show(visits / 3, all); };
  train::load_plain(reader, store, weights.prunable, [&](int64_t done, int64_t) { show(done); });
  write_weights(arguments.out, store, config::to_toml(named), file.characters, {}, types,
                [&](int64_t done) { show(2 * all + done); });
  progress.close();
  print_notes(*reader, match, file);
  uint64_t bytes = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    bytes += static_cast<uint64_t>(parameter.kept()) * size_of(types.at(parameter.spec.name));
  }
  print_note(fmt::format("wrote {}: {} of {} parameters kept, {}, {}", arguments.out,
                         grouped(store.total_kept()), grouped(all), types_text(types),
                         rate_text(bytes, now_seconds() - started)));
  return 0;
}

/// One parameter of a checkpoint as a dense array. Reads the master copy if there is one, because
/// it is exact.
std::vector<float> dense_values(const io::CheckpointReader& reader,
                                const io::StoredParameter& info) {
  std::vector<float> packed(static_cast<size_t>(info.nnz));
  const Tensor view(packed.data(), DType::fp32, Shape{info.nnz});
  if (reader.has_optimizer(info.name, "master")) {
    reader.optimizer(info.name, "master", view);
  } else {
    reader.values(info.name, view);
  }
  check_finite(view, reader.path().string(), info.name);
  if (info.encoding == "full") {
    return packed;
  }
  const sparse::Mask mask = train::read_mask(reader, info.name);  // checks the count of the shape
  std::vector<float> dense(static_cast<size_t>(info.shape.count()));
  size_t next = 0;
  for (const int32_t position : mask.positions()) {
    dense[static_cast<size_t>(position)] = packed[next++];
  }
  return dense;
}

int export_arrays(const ConvertArguments& arguments) {
  if (!is_hdf5_name(arguments.out)) {
    return export_hub(arguments);
  }
  constexpr std::string_view kFolders =
      "if -o names a folder; one that ends in .h5 is a file of plain float32 arrays";
  check_used(*arguments.command, {{"--sparse", false, kFolders},
                                  {"--sparse-only", false, kFolders},
                                  {"--dtype", false, kFolders},
                                  {"--shard-size", false, kFolders}});
  check_output(arguments.out, std::array{arguments.in});
  const io::CheckpointReader reader(arguments.in);
  io::PlainWriter writer(arguments.out);
  int64_t count = 0;
  int64_t arrays = 0;
  WorkProgress progress("export, arrays");
  for (const std::string& name : reader.names()) {
    progress.show(arrays++, std::ssize(reader.names()));
    const io::StoredParameter info = reader.info(name);
    writer.write(name, info.shape, dense_values(reader, info));
    count += info.shape.count();
  }
  writer.commit();
  progress.close();
  print_note(fmt::format("wrote {}: {} arrays, {} numbers", arguments.out, reader.names().size(),
                         grouped(count)));
  return 0;
}

}  // namespace

void register_convert(CLI::App& app, Action& chosen) {
  auto in = std::make_shared<ConvertArguments>();
  CLI::App* imported = app.add_subcommand(
      "import", "Make a checkpoint of a Hugging Face directory or of a plain HDF5 file");
  imported->footer(
      "A directory holds config.json, safetensors files and perhaps tokenizer.json or\n"
      "tokenizer.model (docs/hub.md).\n"
      "An HDF5 file holds arrays of weights, and masks by the conventions of "
      "torch.nn.utils.prune,\n"
      "of scipy, or as a tree of their own. Without masks, zeros of prunable arrays become masks.");
  const auto add_dtype = [](CLI::App* command, ConvertArguments& to) {
    option(*command, "--dtype", to.dtype, "type of all values; default: as they are",
           CLI::IsMember({"fp32", "bf16", "fp16"}));
  };
  imported->add_option("file", in->in,
                       "directory of a Hugging Face model, or HDF5 file of arrays "
                       "(docs/bring-your-masks.md)");
  imported->add_option("-o,--out", in->out, "the checkpoint");
  imported->add_flag("--zeros-are-pruned", in->zeros_are_pruned,
                     "zeros of prunable parameters become their masks");
  add_dtype(imported, *in);
  option(*imported, "--context", in->context, "model.context; default: all positions",
         CLI::PositiveNumber);
  imported->add_flag("--no-tokenizer", in->no_tokenizer,
                     "leave tokenizer.json or tokenizer.model out");
  imported->add_option("--config", in->config.file,
                       "of an HDF5 file: TOML file that describes the network");
  imported->add_option("--map", in->map,
                       "of an HDF5 file: text file with lines THEIRS -> OURS of array names");
  imported->add_option("--names", in->names,
                       "list the names and shapes of the parameters of this TOML file's network");
  imported->add_option("--set", in->config.overrides, "section.key=value")->allow_extra_args(false);
  in->command = imported;
  imported->callback([in, &chosen] { chosen = [in] { return import_arrays(*in); }; });

  auto out = std::make_shared<ConvertArguments>();
  CLI::App* exported = app.add_subcommand(
      "export", "Write a checkpoint as a Hugging Face directory or as plain HDF5 arrays");
  exported->footer(
      "transformers loads the directory (docs/hub.md). An output that ends in .h5 or .hdf5 is a\n"
      "file of dense float32 arrays, for h5py and others. Pruned elements are zeros.");
  exported->add_option("file", out->in, "checkpoint")->transform(checkpoint_path)->required();
  exported->add_option("-o,--out", out->out, "the directory, or the plain HDF5 file")->required();
  add_dtype(exported, *out);
  exported
      ->add_option("--shard-size", out->shard_size,
                   "of a safetensors file, at most; KB, MB, GB: powers of 1000, KiB, MiB, GiB: of "
                   "1024")
      ->capture_default_str();
  exported->add_flag("--sparse", out->sparse,
                     "also write sparse.safetensors: kept values and positions");
  exported->add_flag("--sparse-only", out->sparse_only, "write no dense tensors");
  out->command = exported;
  exported->callback([out, &chosen] { chosen = [out] { return export_arrays(*out); }; });
}

}  // namespace espalier::cli
