#include "src/train/checkpoint/snapshot.h"

#include <algorithm>

#include "src/config/parse.h"
#include "src/core/finite.h"
#include "src/core/mirror.h"
#include "src/model/networks/registry.h"
#include "src/train/masks/mask_files.h"

namespace espalier::train {
namespace {

/// Sets the store's masks unless they are equal: a change costs time and memory.
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

Tensor view_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(values.size())});
}

}  // namespace

RunProgress progress_of(const io::CheckpointReader& reader) {
  const io::CheckpointMeta meta = reader.meta();
  check(!meta.config.empty(),
        "{} holds weights without a config and cannot be resumed; start from it with --init",
        reader.path().string());
  const auto text = [&](const char* name) {
    const auto found = meta.extra.find(name);
    return found == meta.extra.end() ? std::string() : found->second;
  };
  io::Config defaults;
  defaults.train.parametrization = "standard";  // as versions computed that did not save the key
  RunProgress progress{.step = meta.step,
                       .config = config::parse_saved(
                           meta.config, reader.path().string() + " (config)", {}, defaults),
                       .characters = io::Vocabulary::from_text(text("vocabulary")),
                       .codec_choice = text("codec_choice"),
                       .loss_scale = text("loss_scale"),
                       .model_texts = io::texts_of_model(meta)};
  if (const std::string manifest = text("manifest"); !manifest.empty()) {
    progress.manifest = manifest_of(manifest, reader.path().string());
  }
  return progress;
}

void check_same_model(const io::Config& config, const io::Config& saved, const std::string& file) {
  auto same = [&file](std::string_view key, std::string_view here, std::string_view there) {
    check(here == there,
          "{} is a checkpoint of another model: model.{} is {} there and {} in the config", file,
          key, there, here);
  };
  same("kind", config.model.kind, saved.model.kind);
  const model::NetworkKind& network = model::network_of(config.model);
  const model::Settings here = network.identity(config.model);
  const model::Settings there = network.identity(saved.model);
  for (size_t i = 0; i < here.size(); ++i) {
    same(here[i].first, here[i].second, there[i].second);
  }
}

void load(const io::CheckpointReader& reader, sparse::Store& store, const LoadOptions& options) {
  check_same_parameters(reader, specs_of(store), options.whole);
  if (options.masks) {
    take_masks(store, [&](size_t p) { return read_mask(reader, store.parameters()[p].spec.name); });
  }
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
    check_finite(view, reader.path().string(), name);
    store.set_values(parameter, values);
    if (!options.optimizer) {
      continue;
    }
    if (store.state(parameter).separate_master) {  // the common value of all ranks
      reader.values(name, view);
      store.set_common(parameter, values);
    }
    const auto read = [&](const char* kind) {
      check(reader.has_optimizer(name, kind),
            "{} holds no {} of \"{}\": it cannot be resumed; start from its weights with --init",
            reader.path().string(), kind, name);
      reader.optimizer(name, kind, view);
      check_finite(view, reader.path().string(), fmt::format("{} of {}", kind, name));
    };
    for (int which = 0; which < store.options().moments; ++which) {
      read(kMomentKinds.at(static_cast<size_t>(which)));
      store.set_moment(parameter, which, values);
    }
    for (int which = 0; which < store.pruning_arrays(parameter); ++which) {
      read(kPruningKinds.at(static_cast<size_t>(which)));
      store.set_pruning_array(parameter, which, values);
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
    std::vector<float> one(static_cast<size_t>(parameter.kept()));
    if (saved == replicas) {
      reader.optimizer(name, kind(replica), view_of(one));
      std::ranges::copy(one, mine.get<float>());
      errors.write();
      continue;
    }
    std::vector<double> sum(one.size());
    for (int r = 0; r < saved; ++r) {
      reader.optimizer(name, kind(r), view_of(one));
      for (size_t i = 0; i < one.size(); ++i) {
        sum[i] += static_cast<double>(one[i]);
      }
    }
    std::ranges::transform(sum, mine.get<float>(),
                           [&](double lost) { return static_cast<float>(lost / replicas); });
    errors.write();
  }
}

void load_plain(std::shared_ptr<const io::PlainReader> reader, sparse::Store& store,
                const std::vector<bool>& prunable,
                const std::function<void(int64_t done, int64_t total)>& on_progress) {
  const int64_t all = store.total_size();
  int64_t done = 0;
  const auto advance = [&](int64_t to) {
    done = std::max(done, to);
    if (on_progress) {
      on_progress(done, 2 * all);
    }
  };
  std::vector<int64_t> ends;  // of the parameters, in elements
  for (const sparse::Parameter& parameter : store.parameters()) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + parameter.size());
  }
  const MaskOf masks = masks_in(reader, specs_of(store), prunable);
  take_masks(store, [&](size_t p) {
    sparse::Mask mask = masks(p);
    advance(ends[p]);
    return mask;
  });
  for (size_t p = 0; p < ends.size(); ++p) {
    sparse::Parameter& parameter = store.parameters()[p];
    const std::vector<float> values = reader->read(parameter.spec.name);
    std::vector<float> packed;
    for (const int32_t position : parameter.index.positions()) {
      packed.push_back(values[static_cast<size_t>(position)]);
    }
    check_numbers(*reader, parameter.spec.name, packed);
    store.set_values(parameter, packed);
    advance(all + ends[p]);
  }
}

void load_weights(const std::filesystem::path& path, sparse::Store& store,
                  const std::vector<bool>& prunable, bool whole) {
  if (io::is_checkpoint(path)) {
    load(io::CheckpointReader(path), store, {.whole = whole});
  } else {
    load_plain(std::make_shared<io::PlainReader>(path), store, prunable);
  }
}

}  // namespace espalier::train
