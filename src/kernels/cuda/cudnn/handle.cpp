#include <cstdlib>
#include <string_view>
#include <utility>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/library.h"

namespace espalier::kernels::ESPALIER_GPU {

Cudnn::Cudnn(cudnn::Stream stream) {
  try {
    check_cudnn(cudnn_functions()->Create(&handle_), "handle", 0);
    check_cudnn(cudnn_functions()->SetStream(handle_, stream), "stream", 0);
  } catch (const Failure& failure) {
    why_not_ = failure.what();
  }
}

Cudnn::~Cudnn() {
  attention_.clear();
  convolutions_.clear();
  if (handle_ != nullptr) {
    static_cast<void>(cudnn_functions()->Destroy(handle_));
  }
}

namespace {

/// The support of `key` in `kept`, which `plan` finds at the first use.
template <class Key, class Plan>
CudnnSupport& find_or_plan(std::map<Key, CudnnSupport>& kept, const Key& key,
                           const std::string& why_not, const Plan& plan) {
  const auto found = kept.find(key);
  if (found != kept.end()) {
    return found->second;
  }
  CudnnSupport made = why_not.empty() ? plan() : CudnnSupport{.plan = nullptr, .why_not = why_not};
  return kept.emplace(key, std::move(made)).first->second;
}

}  // namespace

CudnnSupport& Cudnn::plan(const AttentionKey& key) {
  return find_or_plan(attention_, key, why_not_,
                      [&] { return plan_attention(key, {.handle = handle_}); });
}

CudnnSupport& Cudnn::plan(const ConvolutionKey& key) {
  return find_or_plan(convolutions_, key, why_not_,
                      [&] { return plan_convolution(key, {.handle = handle_}); });
}

std::string run_kept(Stream& stream, const Cudnn& cudnn, CudnnSupport& kept,
                     std::span<const CudnnPlace> places, void* workspace) {
  if (kept.plan == nullptr) {
    return kept.why_not;
  }
  const bool recording = keep_for_recording(stream, kept.plan);
  try {
    run_plan(cudnn.handle(), *kept.plan, places, workspace);
  } catch (const Failure& failure) {
    if (recording) {
      throw;  // the recording may have failed, not the plan
    }
    kept.why_not = failure.what();
    kept.plan.reset();
    return kept.why_not;
  }
  return {};
}

CudnnUse cudnn_use(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "own") {
    return CudnnUse::own;
  }
  if (name == "cudnn") {
    return CudnnUse::cudnn;
  }
  check(name.empty() || name == "auto", "{} is \"{}\": set it to auto, own or cudnn", variable,
        name);
  return CudnnUse::any;
}

}  // namespace espalier::kernels::ESPALIER_GPU
