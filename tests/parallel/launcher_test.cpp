// Launchers, by the variables that they set. Values are those of Open MPI 4.1 and 5.0, Hydra of
// MPICH 4.0, and Slurm 22.05.
#include "parallel/transport/launcher.h"

#include <cstdlib>
#include <map>
#include <optional>

#include "tests/support/failure.h"

namespace espalier::parallel::launcher_test {
namespace {

using Environment = std::map<std::string, std::string>;

/// Sets these variables, and no other of a launcher, while it lives.
class Launched {
 public:
  explicit Launched(const Environment& environment) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
          "OMPI_MCA_ess_base_jobid", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE",
          "PMI_JOBID", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
          "SLURM_STEP_ID", "SLURM_JOB_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR"}) {
      const char* value = std::getenv(name);
      before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : environment) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Launched() {
    for (const auto& [name, value] : before_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

Environment open_mpi(int rank, int ranks) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(ranks)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(ranks)},
          {"PMIX_RANK", std::to_string(rank)},
          {"PMIX_NAMESPACE", "prterun-a-17@1"}};
}
Environment hydra(int rank, int ranks) {
  return {{"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", std::to_string(ranks)},
          {"MPI_LOCALNRANKS", std::to_string(ranks)}};
}
/// A step of `srun`; without a protocol, as with --mpi=none.
Environment slurm_step(int rank, int ranks) {
  return {{"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", std::to_string(ranks)},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(ranks)}};
}
/// The script of a job: it is task 0, and no step.
Environment slurm_script(int ranks) {
  return {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", std::to_string(ranks)}, {"SLURM_PROCID", "0"}};
}
Environment both(Environment outer, const Environment& inner) {
  for (const auto& [name, value] : inner) {
    outer[name] = value;
  }
  return outer;
}

TEST(Launcher, DescribesTheLaunch) {
  {
    const Launched set(open_mpi(1, 2));
    const Launch launch = find_launch().value();
    EXPECT_EQ(launch.rank, 1);
    EXPECT_EQ(launch.ranks, 2);
    EXPECT_EQ(launch.local_ranks, 2);
    EXPECT_EQ(launch.job, "prterun-a-17@1");
  }
  {
    const Launched set(hydra(3, 4));
    const Launch launch = find_launch().value();
    EXPECT_EQ(launch.rank, 3);
    EXPECT_EQ(launch.ranks, 4);
    EXPECT_EQ(launch.local_ranks, 4);
  }
  {
    // srun --mpi=pmix: the number of ranks is Slurm's.
    const Launched set(both(slurm_step(1, 2), {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "s.7.0"}}));
    const Launch launch = find_launch().value();
    EXPECT_EQ(launch.rank, 1);
    EXPECT_EQ(launch.ranks, 2);
    EXPECT_EQ(launch.job, "s.7.0");
  }
}

TEST(Launcher, IsNoneForOneProcess) {
  for (const Environment& environment :
       {Environment{}, slurm_script(4), slurm_step(0, 1),
        Environment{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "a"}}}) {
    const Launched set(environment);
    EXPECT_FALSE(launched_by_mpi());
    EXPECT_FALSE(find_launch());
    EXPECT_NO_THROW(check_joined(1, "X"));
  }
}

TEST(Launcher, OfAnotherMpiIsNamed) {
  for (const auto& [environment, words] : std::vector<std::pair<Environment, std::string>>{
           {open_mpi(0, 2), "OMPI_COMM_WORLD_SIZE=2"},
           {hydra(0, 2), "PMI_SIZE=2"},
           {hydra(1, 2), "PMI_SIZE=2"},
           {slurm_step(0, 3), "SLURM_STEP_NUM_TASKS=3"},
           {both(slurm_step(1, 2), {{"PMIX_RANK", "1"}}), "PMIX_RANK=1"},
           {both(slurm_step(0, 2), hydra(0, 2)), "PMI_SIZE=2"},
           {Environment{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-a-17@1"}},
            "PMIX_RANK=1"}}) {
    const Launched set(environment);
    EXPECT_TRUE(launched_by_mpi());
    const std::string why = failure_of([] { check_joined(1, "Some MPI 1.2"); });
    EXPECT_THAT(why, HasSubstr(words));
    EXPECT_THAT(why, HasSubstr("Some MPI 1.2"));
    EXPECT_THAT(why, HasSubstr("mpirun"));
    EXPECT_NO_THROW(check_joined(2, "Some MPI 1.2"));
  }
}

TEST(Launcher, OfOneRankIsBelievedInsideOthers) {
  for (const Environment& environment :
       {open_mpi(0, 1), hydra(0, 1), both(slurm_step(0, 2), open_mpi(0, 1)),
        both(slurm_step(1, 2), hydra(0, 1)), both(hydra(1, 2), open_mpi(0, 1)),
        both(slurm_script(4), open_mpi(0, 1)),
        Environment{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-a-17@1"}}}) {
    const Launched set(environment);
    EXPECT_TRUE(launched_by_mpi());
    EXPECT_NO_THROW(check_joined(1, "Some MPI 1.2"));
  }
}

TEST(Launcher, OfPyTorchIsNoted) {
  const Environment torchrun{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "localhost"}};
  {
    const Launched set(torchrun);
    EXPECT_THAT(torch_launcher_note(), HasSubstr("mpirun -n 2 espalier"));
  }
  for (const Environment& environment :
       {Environment{}, both(torchrun, {{"WORLD_SIZE", "1"}}), both(torchrun, open_mpi(1, 2)),
        Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}}}) {
    const Launched set(environment);
    EXPECT_THAT(torch_launcher_note(), IsEmpty());
  }
}

}  // namespace
}  // namespace espalier::parallel::launcher_test
