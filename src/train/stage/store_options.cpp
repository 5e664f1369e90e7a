#include "src/train/stage/store_options.h"

#include "pruning/plan.h"
#include "src/optim/registry.h"

namespace espalier::train {

sparse::StoreOptions store_options(const io::Config& config, bool training, bool generation) {
  auto encoding = [index = config.sparse.index](const std::string& name) {
    const std::string& wanted = index.for_name(name);
    return wanted == "auto" ? std::nullopt : std::optional(sparse::encoding_by_name(wanted));
  };
  const DType dtype = dtype_by_name(config.train.dtype);
  return {.dtype = dtype,
          .gradient = dtype,
          .training = training,
          .moments = optim::optimizer_of(config.optimizer).moments,
          .state_bits = static_cast<int>(config.optimizer.state_bits),
          .offload = config.optimizer.offload,
          .master_copy = config.train.master_copy,
          .encoding = encoding,
          .index_shape = pruning::shape_of(config.pruning),
          .block = {.edge = config.sparse.block > 0 ? config.sparse.block : config.pruning.block,
                    .exact = config.sparse.block > 0},
          .keep_rows = generation,
          .storage =
              [storage = config.sparse.storage, training, generation](const std::string& name) {
                const std::string& wanted = storage.for_name(name);
                if (wanted == "auto") {  // storage_choice.h resolves it later by timing
                  return training || generation ? sparse::Storage::sparse : sparse::Storage::dense;
                }
                const sparse::Storage& named = sparse::storage_by_name(wanted);
                return named.keeps_forms && !training ? sparse::Storage::sparse : named;
              },
          .feedback = training && config.parallel.error_feedback,
          .pruning_arrays =
              [arrays = pruning::arrays_of(config.pruning),
               exclude = config.pruning.exclude](const sparse::ParameterSpec& spec) {
                return spec.prunable && !spec.borrowed && !pruning::is_excluded(spec.name, exclude)
                           ? arrays
                           : 0;
              },
          .sharding = {}};
}

}  // namespace espalier::train
