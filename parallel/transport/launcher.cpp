#include "parallel/transport/launcher.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "src/core/error.h"

namespace espalier::parallel {
namespace {

/// Environment variables of a launcher; null: it sets none.
struct Variables {
  const char* rank;
  const char* ranks;
  const char* local_ranks;
  const char* job;
};

/// The most specific first: Open MPI 5 also sets those of PMIx, and srun those of PMI or PMIx.
constexpr std::array kLaunchers{
    Variables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
              "OMPI_MCA_ess_base_jobid"},
    Variables{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"},
    Variables{"PMIX_RANK", nullptr, nullptr, "PMIX_NAMESPACE"},
    Variables{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr, nullptr},
};

std::string text_of(const char* name) {
  const char* text = name == nullptr ? nullptr : std::getenv(name);
  return text == nullptr ? "" : text;
}

int number_of(const char* name) { return std::atoi(text_of(name).c_str()); }

/// Slurm sets its variables for the script of a job and for steps of one task, too.
bool started(const Variables& launcher) {
  if (launcher.rank == std::string_view("SLURM_PROCID")) {
    return number_of(launcher.ranks) > 1;
  }
  return !text_of(launcher.rank).empty() || !text_of(launcher.ranks).empty();
}

/// Ranks that a launcher started, at least: PMIx has no variable for their number.
int least_ranks(const Variables& launcher) {
  return std::max(number_of(launcher.ranks), number_of(launcher.rank) + 1);
}

/// Hydra names no job, but it starts all ranks of a machine from one process. Empty: another
/// process started this one.
std::string hydra_job() {
  std::string name;
  std::ifstream("/proc/" + std::to_string(::getppid()) + "/comm") >> name;
  return name == "hydra_pmi_proxy" ? "hydra-" + std::to_string(::getppid()) : "";
}

/// How this program's MPI starts ranks.
constexpr const char* kStart =
#if defined(OPEN_MPI)
    "the mpirun of Open MPI (on Debian: mpirun.openmpi), or with srun --mpi=pmix";
#elif defined(I_MPI_VERSION)
    "the mpirun of Intel MPI, or with srun --mpi=pmi2";
#elif defined(MPICH_VERSION)
    "the mpirun of MPICH (on Debian: mpirun.mpich), or with srun --mpi=pmi2";
#else
    "the mpirun of that library";
#endif

}  // namespace

std::optional<Launch> find_launch() {
  std::optional<Launch> launch;
  for (const Variables& launcher : kLaunchers) {
    if (!started(launcher)) {
      continue;
    }
    if (!launch) {
      launch = Launch{.rank = number_of(launcher.rank)};
    }
    if (launch->ranks == 0) {
      launch->ranks = number_of(launcher.ranks);
    }
    if (launch->local_ranks == 0) {
      launch->local_ranks = number_of(launcher.local_ranks);
    }
    if (launch->job.empty()) {
      launch->job = text_of(launcher.job);
    }
  }
  if (const std::string job = hydra_job(); launch && !job.empty()) {
    launch->job = job;
  }
  return launch;
}

bool launched_by_mpi() { return std::ranges::any_of(kLaunchers, started); }

void check_joined(int world, std::string_view library) {
  if (world > 1) {
    return;
  }
  const Variables* foreign = nullptr;
  for (const Variables& launcher : kLaunchers) {
    if (!started(launcher)) {
      continue;
    }
    if (number_of(launcher.ranks) == 1) {
      return;
    }
    if (least_ranks(launcher) > 1 && foreign == nullptr) {
      foreign = &launcher;
    }
  }
  if (foreign == nullptr) {
    return;
  }
  const char* name = text_of(foreign->ranks).empty() ? foreign->rank : foreign->ranks;
  fail(
      "a launcher started several ranks ({}={}), but each is alone in its MPI world: the launcher "
      "is not that of this program's MPI library, {}; start them with {}; for a single rank unset "
      "the variable (env -u {} …)",
      name, text_of(name), library, kStart, name);
}

std::string torch_launcher_note() {
  if (launched_by_mpi() || number_of("WORLD_SIZE") < 2 || text_of("RANK").empty() ||
      text_of("MASTER_ADDR").empty()) {
    return {};
  }
  return fmt::format(
      "WORLD_SIZE={0} is a launcher of PyTorch's: this process does not join the others, and is "
      "the only rank; mpirun -n {0} espalier … starts {0} ranks",
      text_of("WORLD_SIZE"));
}

}  // namespace espalier::parallel
