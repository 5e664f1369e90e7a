#include "src/config/effect.h"

#include <algorithm>

#include "parallel/pipeline/schedule/registry.h"
#include "pruning/registry.h"
#include "src/model/networks/families.h"
#include "src/model/networks/registry.h"
#include "src/optim/parametrization.h"
#include "src/optim/registry.h"
#include "src/optim/schedule.h"

namespace espalier::config {
namespace {

using io::Config;

bool is_decoder(const Config& config) { return config.model.kind == "decoder"; }
bool is_transformer(const Config& config) {
  return is_decoder(config) || config.model.kind == "gpt";
}

const model::Family& family_of(const Config& config) {
  return find(model::families(), "model.family", config.model.family);
}
bool rotates(const Config& config) {
  return is_decoder(config) && family_of(config).rotary_base > 0;
}

bool has_delays(const Config& config, const RunFacts& run) {
  return run.stages > 1 || config.parallel.delay_stages > 1;
}

/// Whether any message is encoded.
bool encodes(const Config& config, const RunFacts& run) {
  const io::ParallelConfig& parallel = config.parallel;
  const auto encoding = [](const std::string& codec) { return codec != "fp32"; };
  return (run.replicas > 1 && parallel.codec.any(encoding)) ||
         (run.replicas > 1 && parallel.zero > 0 && parallel.value_codec.any(encoding)) ||
         (run.stages > 1 && encoding(parallel.activation_codec));
}

}  // namespace

namespace effects {

const Effect kAlways{};

const Effect kTransformer{
    "with model.kind = \"gpt\" or \"decoder\"",
    [](const Config& config, const RunFacts&) { return is_transformer(config); }};
const Effect kMlpRatio{"with model.kind = \"gpt\", or \"decoder\" without model.mlp_width",
                       [](const Config& config, const RunFacts&) {
                         return is_transformer(config) &&
                                (config.model.kind == "gpt" || config.model.mlp_width == 0);
                       }};
const Effect kNorm{"with model.kind = \"gpt\", or \"vision\" with layers of tokens",
                   [](const Config& config, const RunFacts&) {
                     const auto identity = model::network_of(config.model).identity(config.model);
                     return !is_decoder(config) &&
                            std::ranges::any_of(identity, [](const auto& setting) {
                              return setting.first == "norm";
                            });
                   }};
const Effect kMlp{"with model.kind = \"mlp\"",
                  [](const Config& config, const RunFacts&) { return config.model.kind == "mlp"; }};
const Effect kVision{"with model.kind = \"vision\"", [](const Config& config, const RunFacts&) {
                       return config.model.kind == "vision";
                     }};
const Effect kImages{"with data.kind = \"images\"", [](const Config& config, const RunFacts&) {
                       return config.data.kind == "images";
                     }};
const Effect kTokens{"with data.kind = \"tokens\"", [](const Config& config, const RunFacts&) {
                       return config.data.kind == "tokens";
                     }};
const Effect kDecoder{"with model.kind = \"decoder\"",
                      [](const Config& config, const RunFacts&) { return is_decoder(config); }};
const Effect kBiases{"with model.kind = \"decoder\" and a family that has biases",
                     [](const Config& config, const RunFacts&) {
                       const model::Family& family = family_of(config);
                       return is_decoder(config) &&
                              (family.bias || family.output_bias || family.mlp_bias);
                     }};
const Effect kPositions{"with model.kind = \"decoder\" and a family with rotary positions",
                        [](const Config& config, const RunFacts&) { return rotates(config); }};
const Effect kSplit{"without data.validation", [](const Config& config, const RunFacts&) {
                      return config.data.validation.empty();
                    }};

const Effect kHalf{
    "with train.dtype = \"bf16\" or \"fp16\"",
    [](const Config& config, const RunFacts&) { return config.train.dtype != "fp32"; }};
const Effect kSaves{
    "with a train.checkpoint_every other than -1",
    [](const Config& config, const RunFacts&) { return config.train.checkpoint_every >= 0; }};
const Effect kTeacher{"with a train.teacher", [](const Config& config, const RunFacts&) {
                        return !config.train.teacher.empty();
                      }};
const Effect kReplicasOfVision{"with several replicas of model.kind = \"vision\"",
                               [](const Config& config, const RunFacts& run) {
                                 return run.replicas > 1 && config.model.kind == "vision";
                               }};
const Effect kMinLr{"with optimizer.schedule = \"cosine\", \"linear\" or \"polynomial\"",
                    [](const Config& config, const RunFacts&) {
                      return optim::lr_schedule_of(config.optimizer).to_min_lr;
                    }};
const Effect kBetas{
    "with optimizer.kind = \"adamw\" or \"lion\"",
    [](const Config& config, const RunFacts&) { return config.optimizer.kind != "sgd"; }};
const Effect kAdam{"with optimizer.kind = \"adamw\"", [](const Config& config, const RunFacts&) {
                     return config.optimizer.kind == "adamw";
                   }};
const Effect kSgd{"with optimizer.kind = \"sgd\"", [](const Config& config, const RunFacts&) {
                    return config.optimizer.kind == "sgd";
                  }};
const Effect kGpu{"on a GPU", [](const Config&, const RunFacts& run) { return run.on_device; }};

/// `applies` is pruning::reads_key, which needs the key: has_effect.
const Effect kMethod{"with a pruning.method that reads it", nullptr};
const Effect kPruned{"with pruned weights",
                     [](const Config&, const RunFacts& run) { return run.pruned; }};
const Effect kStorage{"with pruned weights; \"tiles\" only on a CPU, on a GPU it is \"sparse\"",
                      [](const Config& config, const RunFacts& run) {
                        const auto keeps = [](const std::string& storage) {
                          return storage == "tiles";
                        };
                        return run.pruned && !(run.on_device && config.sparse.storage.any(keeps));
                      }};
const Effect kBlockStorage{
    "with sparse.storage = \"block\" or \"auto\"", [](const Config& config, const RunFacts& run) {
      return run.pruned && config.sparse.storage.any([](const std::string& storage) {
        return storage == "block" || storage == "auto";
      });
    }};

const Effect kReplicas{"with several replicas",
                       [](const Config&, const RunFacts& run) { return run.replicas > 1; }};
const Effect kStages{"with several stages",
                     [](const Config&, const RunFacts& run) { return run.stages > 1; }};
const Effect kSimulatedStages{
    "with several stages, or delays of parallel.schedule = \"async\"",
    [](const Config& config, const RunFacts& run) { return has_delays(config, run); }};
const Effect kGrid{
    "with several replicas of several stages",
    [](const Config&, const RunFacts& run) { return run.replicas > 1 && run.stages > 1; }};
const Effect kValues{"with parallel.zero = 1 and several replicas",
                     [](const Config& config, const RunFacts& run) {
                       return config.parallel.zero > 0 && run.replicas > 1;
                     }};
const Effect kLinks{"between several GPUs", [](const Config&, const RunFacts& run) {
                      return run.on_device && run.replicas * run.stages > 1;
                    }};
const Effect kCodec{"with a codec other than fp32, between ranks", encodes};

}  // namespace effects

}  // namespace espalier::config
