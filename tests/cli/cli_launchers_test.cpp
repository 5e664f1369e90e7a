// The real program under a launcher that its MPI library does not know, as processes with the
// variables of such a launcher.
#include <array>

#include "tests/support/job.h"

namespace espalier::cli_launchers_test {
namespace {

/// Removes the variables of the launchers around this test.
const std::string kAlone =
    "env -u PMI_RANK -u PMI_SIZE -u PMIX_RANK -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE "
    "-u SLURM_PROCID -u SLURM_STEP_NUM_TASKS ";

using CliLaunchers = ProgramTest;

TEST_F(CliLaunchers, EveryRankOfAnotherMpiIsToldSo) {
  const std::string train = "train c.toml";
  for (const auto& [variable, others, command] : std::vector<std::array<std::string, 3>>{
           {"PMI_SIZE=2", "PMI_RANK=0", train},
           {"PMI_SIZE=2", "PMI_RANK=1", train},
           {"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1", train},
           {"PMI_SIZE=2", "PMI_RANK=1", "plan --calibrate -o machine.toml"}}) {
    const Ran ran = here.shell(fmt::format("timeout 60 {}{} {} '{}' {}", kAlone, variable, others,
                                           ESPALIER_PROGRAM, command));
    expect_code(ran, 1);
    for (const std::string& words : {fmt::format("a launcher started several ranks ({})", variable),
                                     std::string("start them with"), std::string("mpirun")}) {
      EXPECT_THAT(ran.err, HasSubstr(words)) << words;
    }
  }
  EXPECT_FALSE(here.has("run"));
  EXPECT_FALSE(here.has("machine.toml"));
}

TEST_F(CliLaunchers, OneRankTrainsUnderAny) {
  for (const std::string variables :
       {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0",
        "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 PMI_SIZE=1 PMI_RANK=0"}) {
    here.shell_ok(
        fmt::format("timeout 60 {}{} '{}' train c.toml --steps 1 --resume none "
                    "--out '{}'",
                    kAlone, variables, ESPALIER_PROGRAM, variables.size()));
  }
}

TEST_F(CliLaunchers, ProcessesOfTorchrunAreNotedAsNotJoined) {
  EXPECT_THAT(
      here.shell_ok(
              fmt::format("{}WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost '{}' train c.toml --steps 1",
                          kAlone, ESPALIER_PROGRAM))
          .err,
      HasSubstr("WORLD_SIZE=2 is a launcher of PyTorch's"));
}

}  // namespace
}  // namespace espalier::cli_launchers_test
