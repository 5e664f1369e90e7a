#include <cstdlib>
#include <string>

#include "src/kernels/cpu/tables.h"
#include "src/kernels/cuda/tables.h"
#include "src/kernels/dry/table.h"

namespace espalier::kernels {
namespace {

const Kernels& named(std::string_view name, std::string_view asked_by) {
  if (name == "cuda" && !cuda::absence().empty()) {
    fail("{} asks for backend 'cuda', but {}; or use auto or cpu", asked_by, cuda::absence());
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
      "{} asks for backend '{}', which this build or this machine does not have; use auto, cpu, {}",
      asked_by, name, known);
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

}  // namespace espalier::kernels
