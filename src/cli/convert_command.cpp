// espalier import and export: checkpoints from and to plain HDF5 files of dense arrays, zeros where
// pruned.
#include <array>

#include "io/checkpoint/plain_hdf5.h"
#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/cli/weights_file.h"
#include "src/config/dump.h"
#include "src/train/masks/mask_files.h"
#include "src/train/run/snapshot.h"

namespace espalier::cli {
namespace {

struct ConvertArguments {
  std::string in;
  std::string out;
  ConfigSource config;
};

int import_arrays(const ConvertArguments& arguments) {
  check_output(arguments.out, std::array{arguments.in, arguments.config.file});
  check(
      !io::is_checkpoint(arguments.in),
      "{} is an Espalier checkpoint already: use it unchanged, or run `espalier export` for plain "
      "arrays",
      arguments.in);
  const WeightsFile file = open_weights(arguments.in, arguments.config);
  check_output(arguments.out, file.config.data.train);
  Weights weights(file);
  train::load_plain(arguments.in, *weights.store, weights.prunable);
  write_weights(arguments.out, *weights.store, config::to_toml(file.config), file.characters);
  Progress(true, 0, false)
      .note(fmt::format("wrote {}: {} of {} parameters kept", arguments.out,
                        grouped(weights.store->total_kept()),
                        grouped(weights.store->total_size())));
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
  check_output(arguments.out, std::array{arguments.in});
  const io::CheckpointReader reader(arguments.in);
  io::PlainWriter writer(arguments.out);
  int64_t count = 0;
  for (const std::string& name : reader.names()) {
    const io::StoredParameter info = reader.info(name);
    writer.write(name, info.shape, dense_values(reader, info));
    count += info.shape.count();
  }
  writer.commit();
  Progress(true, 0, false)
      .note(fmt::format("wrote {}: {} arrays, {} numbers", arguments.out, reader.names().size(),
                        grouped(count)));
  return 0;
}

}  // namespace

void register_convert(CLI::App& app, Action& chosen) {
  auto in = std::make_shared<ConvertArguments>();
  CLI::App* imported = app.add_subcommand(
      "import",
      "Make a checkpoint of a plain HDF5 file; zeros of prunable arrays become its masks");
  imported
      ->add_option("file", in->in, "HDF5 file of dense arrays, named as `espalier inspect` shows")
      ->required();
  imported->add_option("-o,--out", in->out, "the checkpoint")->required();
  imported->add_option("--config", in->config.file, "TOML file that describes the network")
      ->required();
  imported->add_option("--set", in->config.overrides, "section.key=value")->allow_extra_args(false);
  imported->callback([in, &chosen] { chosen = [in] { return import_arrays(*in); }; });

  auto out = std::make_shared<ConvertArguments>();
  CLI::App* exported = app.add_subcommand(
      "export", "Write a checkpoint's parameters as dense float32 arrays, for h5py and others");
  exported->add_option("file", out->in, "checkpoint")->required();
  exported->add_option("-o,--out", out->out, "the plain HDF5 file")->required();
  exported->callback([out, &chosen] { chosen = [out] { return export_arrays(*out); }; });
}

}  // namespace espalier::cli
