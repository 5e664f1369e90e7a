#include "src/train/stage/teacher.h"

#include <fmt/ranges.h>

#include "io/checkpoint/checkpoint.h"
#include "src/config/parse.h"
#include "src/core/trace.h"
#include "src/train/stage/store_options.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;

/// Compares what decides whether the teacher can read the student's samples.
void check_same_data(const io::Config& config, const io::Config& teacher) {
  const std::string& file = config.train.teacher;
  const auto same = [&file](std::string_view key, const std::string& here,
                            const std::string& there) {
    check(here == there,
          "train.teacher = \"{}\" was trained with {} = \"{}\", and this run has \"{}\"; use a "
          "teacher with the same {}",
          file, key, there, here, key);
  };
  same("model.kind", config.model.kind, teacher.model.kind);
  same("data.kind", config.data.kind, teacher.data.kind);
  const auto text = [](const std::vector<double>& numbers) {
    return fmt::format("[{}]", fmt::join(numbers, ", "));
  };
  same("data.mean", text(config.data.mean), text(teacher.data.mean));
  same("data.deviation", text(config.data.deviation), text(teacher.data.deviation));
  check(teacher.model.context >= config.model.context || config.data.kind == "images",
        "train.teacher = \"{}\" reads sequences of up to {} tokens, and model.context is {}; set a "
        "shorter model.context, or use a teacher with a longer one",
        file, teacher.model.context, config.model.context);
}

io::Config config_in(const io::CheckpointMeta& meta, const io::Config& config) {
  const std::string& file = config.train.teacher;
  check(!meta.config.empty(),
        "train.teacher = \"{}\" holds weights without a config, so its network is unknown; use a "
        "checkpoint that `espalier train` wrote",
        file);
  io::Config found = config::parse_saved(meta.config, file + " (config)");
  check_same_data(config, found);
  found.train.dtype = config.train.dtype;
  found.train.gradient_dtype = "auto";
  return found;
}

std::unique_ptr<sparse::Store> make_store(const TeacherFile& file, Stream& stream,
                                          const kernels::Kernels& kernels,
                                          const model::Layers& layers, bool dry) {
  sparse::StoreOptions options = store_options(file.config, false);
  if (dry) {
    options.planned = file.start.kept;
  } else {
    options.start = file.start.masks;
  }
  return std::make_unique<sparse::Store>(stream, kernels, model::parameters_of(layers), options);
}

}  // namespace

void check_teacher_file(const io::Config& config) {
  const std::string& name = config.train.teacher;
  if (name.empty()) {
    return;
  }
  check(fs::is_regular_file(name),
        "train.teacher = \"{}\": there is no such file; name a checkpoint, such as "
        "runs/dense/checkpoints/step-002000.h5",
        name);
  check(io::is_checkpoint(name),
        "train.teacher = \"{}\" is not an Espalier checkpoint; use a file that `espalier train` "
        "wrote",
        name);
}

std::optional<TeacherFile> open_teacher(const io::Config& config) {
  check_teacher_file(config);
  const std::string& name = config.train.teacher;
  if (name.empty()) {
    return {};
  }
  const io::CheckpointReader reader(name);
  const io::CheckpointMeta meta = reader.meta();
  TeacherFile file{.path = name, .config = config_in(meta, config), .start = {}};
  if (const auto found = meta.extra.find("vocabulary"); found != meta.extra.end()) {
    file.characters = io::Vocabulary::from_text(found->second);
  }
  if (const auto found = meta.extra.find("manifest"); found != meta.extra.end()) {
    file.manifest = found->second;
  }
  file.problem = model::network_of(file.config.model)
                     .problem_of(file.config.model, [&](const std::string& parameter) {
                       check(reader.has(parameter),
                             "train.teacher = \"{}\" holds no weights \"{}\", which its config "
                             "describes; use an intact checkpoint",
                             name, parameter);
                       return reader.info(parameter).shape;
                     });
  const model::Layers layers = model::make_layers(file.config.model, file.problem);
  file.start =
      initial_masks(file.config, model::parameters_of(layers), {.resume = {}, .init = name});
  return file;
}

void check_teacher_fits_data(const TeacherFile& file, const model::ProblemShape& problem,
                             const io::Vocabulary& characters) {
  const std::string path = file.path.string();
  check(file.problem.classes == problem.classes,
        "train.teacher = \"{}\" predicts {} classes, and the data have {} (tokens of the "
        "vocabulary, or classes of images); use a teacher of the same data",
        path, file.problem.classes, problem.classes);
  check(file.characters.size() == 0 || characters.size() == 0 || file.characters == characters,
        "train.teacher = \"{}\" was trained with other characters than those of data.train; use a "
        "teacher of a text with the same characters",
        path);
  const bool tokens = problem.input_dtype == DType::int32;
  check(tokens || file.problem.features == problem.features,
        "train.teacher = \"{}\" reads images of {} pixels, and the data have {}; use a teacher of "
        "the same data",
        path, file.problem.features, problem.features);
  check(tokens || file.problem.image.rank() == 0 || file.problem.image == problem.image,
        "train.teacher = \"{}\" reads images of {}, and those of the data are {} (height, width, "
        "channels); use a teacher of the same data",
        path, file.problem.image.text(), problem.image.text());
}

Teacher::Teacher(const TeacherFile& file, const io::Config& config, Stream& stream,
                 const kernels::Kernels& kernels, bool dry)
    : stream_(stream),
      kernels_(kernels),
      dtype_(dtype_by_name(config.train.dtype)),
      network_(model::make_layers(file.config.model, file.problem)),
      distillation_{.weight = static_cast<float>(config.train.teacher_weight),
                    .temperature = static_cast<float>(config.train.teacher_temperature),
                    .losses = {},
                    .logits = [this](int64_t first, int64_t rows) {
                      rows_.reset();
                      rows_.emplace(*tape_);
                      return network_.logits_of(*pass_, hidden_, first, rows);
                    }} {
  store_ = make_store(file, stream, kernels, network_.layers(), dry);
  network_.bind(*store_, kernels);
  for (sparse::Parameter& parameter : store_->parameters()) {
    if (dry) {
      store_->refresh(parameter);  // allocates what loading does
    }
  }
}

void Teacher::allocate(size_t tape_bytes) {
  Arena& arena = stream_.arena();
  tape_ = std::make_unique<model::Tape>(arena, tape_bytes, arena.dry());
}

const model::DistillationTarget& Teacher::predict(const model::Pass& student,
                                                  const Tensor& losses) {
  const Span span(Track::compute, "teacher");
  rows_.reset();
  tape_->clear();
  pass_.emplace(model::Pass{.stream = stream_,
                            .kernels = kernels_,
                            .tape = *tape_,
                            .dtype = dtype_,
                            .samples = student.samples,
                            .inputs = student.inputs,
                            .after_layer = student.after_layer});
  const sparse::Store::Pass values(*store_, 0);
  hidden_ = network_.hidden(*pass_);
  pass_->after_layer = nullptr;  // of the student's pass
  distillation_.losses = losses;
  return distillation_;
}

}  // namespace espalier::train
