#include "src/train/run/snapshot.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "io/checkpoint/plain_hdf5.h"
#include "parallel/transport/collectives.h"
#include "pruning/pruning.h"
#include "sparse/index/file_index.h"
#include "src/config/parse.h"
#include "src/core/mirror.h"
#include "src/train/run/agreement.h"

namespace espalier::train {
namespace {

constexpr std::array<const char*, 2> kMoments{"moment1", "moment2"};

void check_same_parameters(const io::CheckpointReader& reader,
                           std::span<const sparse::ParameterSpec> specs, bool whole = true) {
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

void check_same_parameters(const io::PlainReader& reader, const std::filesystem::path& path,
                           std::span<const sparse::ParameterSpec> specs) {
  for (const sparse::ParameterSpec& spec : specs) {
    check(reader.has(spec.name),
          "{} has no dataset for parameter \"{}\"; name datasets as `espalier inspect` shows them "
          "('/' counts as '.')",
          path.string(), spec.name);
    check(reader.shape(spec.name) == spec.shape,
          "{}: dataset \"{}\" has shape {}, the model needs {}", path.string(), spec.name,
          reader.shape(spec.name).text(), spec.shape.text());
  }
}

sparse::Mask mask_of_zeros(const io::PlainReader& reader, const std::string& name) {
  const std::vector<float> values = reader.read(name);
  const std::vector<pruning::DenseValues> one{{.name = name, .values = values}};
  return std::move(pruning::masks_from_dense_zeros(one).front());
}

/// Gives the store these masks, unless it has them: moving takes time and memory.
void take_masks(sparse::Store& store, const MaskOf& masks) {
  const size_t count = store.parameters().size();
  bool same = true;
  for (size_t p = 0; p < count && same; ++p) {
    same = masks(p) == store.parameters()[p].index.mask();
  }
  if (same) {
    return;
  }
  std::vector<sparse::Mask> all;
  for (size_t p = 0; p < count; ++p) {
    all.push_back(masks(p));
  }
  store.restart(all);
}

}  // namespace

Progress progress_of(const io::CheckpointReader& reader) {
  const io::CheckpointMeta meta = reader.meta();
  check(!meta.config.empty(),
        "{} holds weights without a config, it cannot be resumed: start from it with --init",
        reader.path().string());
  Progress progress{.step = meta.step,
                    .config = config::parse(meta.config, reader.path().string() + " (config)"),
                    .characters = {}};
  const auto vocabulary = meta.extra.find("vocabulary");
  if (vocabulary != meta.extra.end()) {
    progress.characters = io::Vocabulary::from_text(vocabulary->second);
  }
  const auto text = [&](const char* name) {
    const auto found = meta.extra.find(name);
    return found == meta.extra.end() ? std::string() : found->second;
  };
  progress.codec_choice = text("codec_choice");
  progress.loss_scale = text("loss_scale");
  return progress;
}

namespace {

const sparse::Encoding& encoding_of(const io::CheckpointReader& reader,
                                    const io::ParameterInfo& info) {
  try {
    return sparse::encoding_by_name(info.encoding);
  } catch (const Failure& failure) {
    fail("{}: index of \"{}\": {}", reader.path().string(), info.name, failure.what());
  }
}

}  // namespace

sparse::Mask read_mask(const io::CheckpointReader& reader, const std::string& name) {
  const io::ParameterInfo info = reader.info(name);
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
  check_same_parameters(*reader, path, specs);
  return [reader, specs = std::move(specs), prunable = std::move(prunable)](size_t p) {
    return prunable[p] ? mask_of_zeros(*reader, specs[p].name)
                       : sparse::Mask(specs[p].shape.count());
  };
}

void load(const io::CheckpointReader& reader, sparse::Store& store, bool optimizer, bool whole) {
  check_same_parameters(reader, specs_of(store), whole);
  take_masks(store, [&](size_t p) { return read_mask(reader, store.parameters()[p].spec.name); });
  for (sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    std::vector<float> values(static_cast<size_t>(parameter.kept()));
    const Tensor view(values.data(), DType::fp32, Shape{parameter.kept()});
    // The master copy is the exact value where there is one.
    if (reader.has_optimizer(name, "master")) {
      reader.optimizer(name, "master", view);
    } else {
      reader.values(name, view);
    }
    store.set_values(parameter, values);
    if (!optimizer) {
      continue;
    }
    if (store.state(parameter).apart) {  // what all ranks had of it
      reader.values(name, view);
      store.set_common(parameter, values);
    }
    for (int which = 0; which < store.options().moments; ++which) {
      const char* kind = kMoments.at(static_cast<size_t>(which));
      check(reader.has_optimizer(name, kind),
            "{} holds no {} of \"{}\": it cannot be resumed; start from its weights with --init",
            reader.path().string(), kind, name);
      reader.optimizer(name, kind, view);
      store.set_moment(parameter, which, values);
    }
  }
}

void load_feedback(const io::CheckpointReader& reader, sparse::Store& store, int replica,
                   int replicas) {
  const Tensor flat = store.feedback();
  if (!flat) {
    return;
  }
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    const auto kind = [](int r) { return fmt::format("feedback.{}", r); };
    int saved = 0;
    while (reader.has_optimizer(name, kind(saved))) {
      ++saved;
    }
    const Mirror errors(store.stream(), store.part(flat, parameter));
    const Tensor& mine = errors.host();
    if (saved == replicas) {
      reader.optimizer(name, kind(replica), mine);
      errors.write();
      continue;
    }
    std::vector<float> one(static_cast<size_t>(parameter.kept()));
    std::vector<double> sum(one.size());
    for (int r = 0; r < saved; ++r) {
      reader.optimizer(name, kind(r), Tensor(one.data(), DType::fp32, mine.shape));
      for (size_t i = 0; i < one.size(); ++i) {
        sum[i] += static_cast<double>(one[i]);
      }
    }
    std::ranges::transform(sum, mine.get<float>(),
                           [&](double lost) { return static_cast<float>(lost / replicas); });
    errors.write();
  }
}

void load_low_rank(const io::CheckpointReader& reader, const sparse::Store& store,
                   parallel::LowRank& low_rank) {
  const std::string kind(io::kLowRankKind);
  for (const sparse::Parameter& parameter : store.parameters()) {
    const parallel::LowRankMatrix* matrix = low_rank.find(parameter.offset);
    const std::string& name = parameter.spec.name;
    if (matrix == nullptr || !reader.has_optimizer(name, kind)) {
      continue;
    }
    const Shape saved = reader.optimizer_shape(name, kind);
    check(saved.rank() == 2 && saved.cols() == matrix->cols && saved.rows() <= matrix->rows,
          "{}: {} of \"{}\" has shape {}, which does not fit: the file is damaged, use another "
          "checkpoint",
          reader.path().string(), kind, name, saved.text());
    std::vector<float> columns(static_cast<size_t>(saved.count()));
    reader.optimizer(name, kind, Tensor(columns.data(), DType::fp32, saved));
    const Mirror factor(low_rank.stream(), low_rank.factor(*matrix));
    const auto kept = factor.read().host().span<float>();
    columns.resize(std::min(columns.size(), kept.size()));  // another rank: those that both have
    std::ranges::copy(columns, kept.begin());
    factor.write();
  }
}

void load_plain(const std::filesystem::path& path, sparse::Store& store,
                const std::vector<bool>& prunable) {
  take_masks(store, masks_in(path, specs_of(store), prunable));
  const io::PlainReader reader(path);
  for (sparse::Parameter& parameter : store.parameters()) {
    const std::vector<float> values = reader.read(parameter.spec.name);
    std::vector<float> packed;
    for (const int32_t position : parameter.index.positions()) {
      packed.push_back(values[static_cast<size_t>(position)]);
    }
    store.set_values(parameter, packed);
  }
}

void load_weights(const std::filesystem::path& path, sparse::Store& store,
                  const std::vector<bool>& prunable, bool whole) {
  if (io::is_checkpoint(path)) {
    load(io::CheckpointReader(path), store, false, whole);
  } else {
    load_plain(path, store, prunable);
  }
}

}  // namespace espalier::train
