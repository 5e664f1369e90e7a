// espalier info: backends, libraries and version of this build, and the processor.
#include <fstream>

#include "io/checkpoint/checkpoint.h"
#include "io/config/config.h"
#include "parallel/transport/device/nccl_library.h"
#include "parallel/transport/mpi_communicator.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/config/dump.h"
#include "src/core/cpus.h"
#include "src/kernels/backend.h"

namespace espalier::cli {
namespace {

struct InfoArguments {
  bool json = false;
  bool config_help = false;
};

/// From /proc on Linux; "unknown" elsewhere.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

nlohmann::ordered_json facts() {
  nlohmann::ordered_json backends = nlohmann::ordered_json::array();
  for (const kernels::Kernels* table : kernels::available()) {
    backends.push_back(std::string(table->name));
  }
  return {{"version", ESPALIER_VERSION},
          {"git", build_git()},
          {"build", ESPALIER_BUILD_TYPE},
          {"compiler", __VERSION__},
          {"cpu", cpu_model()},
          {"cores", usable_cpu_count()},
          {"native_bf16", kernels::has_native_bf16()},
          {"backends", backends},
          {"backend", std::string(kernels::by_name("auto").name)},
          {"devices", kernels::devices()},
          {"libraries", kernels::libraries()},
          {"device_free_bytes", kernels::device_free_bytes()},
          {"gemm", kernels::gemm_library()},
          {"mpi", parallel::mpi_library()},
          {"mpi_cuda", parallel::mpi_cuda_support()},
          {"nccl", parallel::nccl::description()},
          {"hdf5", io::hdf5_library()}};
}

int info(const InfoArguments& arguments) {
  if (arguments.config_help) {
    print(config::help());
    return 0;
  }
  const nlohmann::ordered_json json = facts();
  if (arguments.json) {
    print_json(json);
    return 0;
  }
  std::string text;
  for (const auto& [key, value] : json.items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_array()) {
      shown = value.empty() ? "none" : "";
      for (const auto& element : value) {
        shown += shown.empty() ? "" : ", ";
        shown += element.is_string() ? element.get<std::string>() : element.dump();
      }
    }
    text += fmt::format("{:<17} {}\n", key, shown);
  }
  print(text);
  return 0;
}

}  // namespace

void register_info(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* command =
      app.add_subcommand("info", "Backends, processor, libraries and version of this build");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->add_flag("--config-help", arguments->config_help,
                    "print every config key with default, limits and meaning");
  command->callback([arguments, &chosen] { chosen = [arguments] { return info(*arguments); }; });
}

}  // namespace espalier::cli
