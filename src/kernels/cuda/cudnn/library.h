#pragma once
// cuDNN as it is loaded when attention is first asked for (CUDNN_DIR, or where toolkits are), and
// what a queue keeps of it. In tests functions of the host take its place
// (tests/simt/cudnn_host.cpp).
#include <map>
#include <memory>
#include <string>

#include "src/core/shared_library.h"
#include "src/core/stream.h"
#include "src/kernels/cuda/attention/attention_plan.h"
#include "src/kernels/cuda/cudnn/api.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Null where there is none that will do: version 9, 9.10.2 or later.
const cudnn::Functions* cudnn_functions();
/// Its file and version, or why our kernels compute instead.
std::string cudnn_state();

/// A handle, which works for one stream, and the plans that were made so far. Needs the functions.
class Cudnn {
 public:
  explicit Cudnn(cudnn::Stream stream);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  cudnn::Handle handle() const { return handle_; }
  /// That of this shape, made at its first use.
  AttentionPlan& plan(const AttentionKey& key);

 private:
  cudnn::Handle handle_ = nullptr;
  std::string why_not_;  ///< without a handle: cuDNN could not start
  std::map<AttentionKey, AttentionPlan> plans_;
};

/// Of the stream's queue; made when it is first asked for.
Cudnn& cudnn_of(Stream& stream);
/// Whether calls are recorded: then the recording keeps the plan for its replays.
bool keep_for_recording(Stream& stream, const std::shared_ptr<const CudnnPlan>& plan);

}  // namespace espalier::kernels::ESPALIER_GPU
