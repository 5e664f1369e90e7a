#include "src/kernels/backend.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "src/kernels/cpu/tables.h"
#include "src/kernels/cuda/tables.h"
#include "src/kernels/dry/table.h"

namespace espalier::kernels {
namespace {

const Kernels& named(std::string_view name, std::string_view requested_by) {
  if (name == "cuda" && !cuda::absence().empty()) {
    fail("{} requests backend 'cuda', but {}; or use auto or cpu", requested_by, cuda::absence());
  }
  std::string known;
  for (const Kernels* table : available()) {
    if (table->name == name) {
      return *table;
    }
    known += known.empty() ? "" : ", ";
    known += table->name;
  }
  fail(
      "{} requests backend '{}', which this build or this machine does not have; use auto, cpu, {}",
      requested_by, name, known);
}

}  // namespace

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> found = cpu::tables();
  const std::vector<const Kernels*> on_gpu = cuda::tables();
  found.insert(found.end(), on_gpu.begin(), on_gpu.end());
  found.push_back(&dry::table());
  return found;
}

const Kernels& by_name(std::string_view name) {
  if (name != "auto" && name != "cpu") {
    return named(name, "run.backend");
  }
  const char* wanted = std::getenv("ESPALIER_KERNELS");
  if (wanted != nullptr && *wanted != '\0') {
    return named(wanted, "the environment variable ESPALIER_KERNELS");
  }
  return name == "auto" ? *available().front() : *cpu::tables().front();
}

int usable_threads(int threads) {
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  return std::max(1, std::min(threads, omp_get_thread_limit()));
}

Backend::Backend(const Kernels& kernels, int threads, int local_rank)
    : kernels_(kernels),
      device_(kernels.open != nullptr ? kernels.open(local_rank) : nullptr),
      side_(device_ ? device_->queue().make_queue() : nullptr),
      host_(device_ ? device_->pinned() : host_memory()),
      on_device_(device_ ? std::make_unique<Arena>(host_, &device_->memory()) : nullptr),
      stream_(on_device_ ? *on_device_ : host_, usable_threads(threads),
              device_ ? &device_->queue() : nullptr, side_.get()) {}

Planning planning(const Kernels& kernels) {
  return {.kernels = kernels.plan != nullptr ? kernels.plan : &dry::table(),
          .device = kernels.open != nullptr};
}

Planning planning(std::string_view name) {
  if (name != "cuda") {
    return planning(by_name(name));
  }
  const Kernels* plan = cuda::plan_table();
  return {.kernels = plan != nullptr ? plan : &dry::table(), .device = true};
}

std::vector<std::string> devices() { return cuda::devices(); }
std::vector<size_t> device_free_bytes() { return cuda::free_bytes(); }

std::vector<std::string> libraries() { return cuda::libraries(); }

const Kernels& beside(const Kernels& kernels) {
  return kernels.open == nullptr ? kernels : by_name("cpu");
}

}  // namespace espalier::kernels
