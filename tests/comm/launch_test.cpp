// The variables of launchers, and what the ranks of a machine tell their supervisor.
#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "comm/rank_status.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables) {
  return launch_of([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LaunchTest, LaunchersAreRecognised) {
  EXPECT_EQ(launch({}).launcher, "");
  EXPECT_EQ(launch({}).world_size, 1);
  const Variables torchrun = {
      {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const Variables pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  const Variables srun = {{"SLURM_PROCID", "6"},
                          {"SLURM_STEP_NUM_TASKS", "8"},
                          {"SLURM_LOCALID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  const auto expect = [](const Launch& l, const char* launcher, int rank, int world, int local, int locals) {
    EXPECT_EQ(l.launcher, launcher);
    EXPECT_EQ(l.rank, rank);
    EXPECT_EQ(l.world_size, world);
    EXPECT_EQ(l.local_rank, local);
    EXPECT_EQ(l.local_world_size, locals);
  };
  expect(launch(torchrun), "torchrun", 5, 8, 1, 4);
  expect(launch(mpirun), "mpirun", 2, 3, 0, 1);
  expect(launch(pmi), "PMI", 1, 2, 1, 2);
  expect(launch(srun), "srun", 6, 8, 2, 4);
  // RANK comes first: training operators set it under whatever starts the container.
  Variables both = torchrun;
  both.insert(mpirun.begin(), mpirun.end());
  EXPECT_EQ(launch(both).launcher, "torchrun");
  // A batch script of Slurm is no step.
  EXPECT_EQ(launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).launcher, "");
}

TEST(LaunchTest, WhereTheRanksMeet) {
  const Variables torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(launch(torchrun).master_addr, "node7");
  EXPECT_EQ(launch(torchrun).master_port, 29500);
  Variables agent = torchrun;  // torchrun itself has that port
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(launch(agent).master_port, 29501);
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(launch(agent).master_port, 29500);

  Variables srun = {{"SLURM_PROCID", "1"},          {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_LOCALID", "0"},         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                    {"SLURM_JOB_ID", "4711"},       {"SLURM_STEP_ID", "0"},
                    {"SLURM_JOB_NODELIST", "a1,b"}, {"SLURM_STEP_NODELIST", "gpu[007-008]"}};
  EXPECT_EQ(launch(srun).master_addr, "gpu007");
  const int port = launch(srun).master_port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  srun["SLURM_PROCID"] = "0";
  EXPECT_EQ(launch(srun).master_port, port);
  srun["SLURM_STEP_ID"] = "1";
  EXPECT_NE(launch(srun).master_port, port);
  srun.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(launch(srun).master_addr, "a1");
  srun["MASTER_PORT"] = "3000";
  EXPECT_EQ(launch(srun).master_port, 3000);

  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "123456"}};
  EXPECT_EQ(launch(mpirun).master_addr, "127.0.0.1");
  EXPECT_GE(launch(mpirun).master_port, 20000);
  EXPECT_EQ(launch({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).master_addr, "");
  for (const char* wrong : {"0", "65536", "x", "-1", "80a"})
    EXPECT_THROW(launch({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", wrong}}), Error) << wrong;
}

TEST(LaunchTest, FirstHostOfSlurmsLists) {
  const std::map<std::string, std::string> hosts = {{"node1", "node1"},
                                                    {"node1,node2", "node1"},
                                                    {"gpu[003-007,12],login", "gpu003"},
                                                    {"gpu[12,003]", "gpu12"},
                                                    {"r[1-2]n[03-04]-ib", "r1n03-ib"},
                                                    {"a.b-c[9].example", "a.b-c9.example"},
                                                    {"", ""},
                                                    {"gpu[", ""},
                                                    {"gpu[]", ""},
                                                    {"gpu[-1]", ""},
                                                    {"gpu[1", ""},
                                                    {"$(reboot)", ""},
                                                    {"a b", ""}};
  for (const auto& [list, host] : hosts) EXPECT_EQ(first_host(list), host) << list;
}

TEST(LaunchTest, WrongVariablesAreRefused) {
  for (const Variables& variables : std::vector<Variables>{
           {{"RANK", "1"}},
           {{"WORLD_SIZE", "2"}},
           {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
           {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "two"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "99999999999999"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "4"}},
           {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}}}) {
    try {
      launch(variables);
      ADD_FAILURE() << variables.begin()->first << "=" << variables.begin()->second << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_FALSE(error.where().empty());
    }
  }
}

TEST(RankStatusTest, TheSupervisorSeesWhatRanksSay) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "status";
  const RankStatus supervisor = RankStatus::create(path, 3);
  EXPECT_EQ(supervisor.process(1), 0);
  EXPECT_EQ(supervisor.place(1), "rank 1, step 0, not started");
  RankStatus rank = RankStatus::join(path, 1);
  rank.at(12, "training");
  EXPECT_GT(supervisor.process(1), 0);
  EXPECT_EQ(supervisor.place(1), "rank 1, step 12, training");
  EXPECT_FALSE(supervisor.failure(1).has_value());
  rank.fail(Error(ErrorKind::resource, std::string(5000, 'x'), "somewhere", "do this"));
  const std::optional<Error> failure = supervisor.failure(1);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind(), ErrorKind::resource);
  EXPECT_EQ(failure->what(), std::string(1023, 'x'));
  EXPECT_EQ(failure->where(), "somewhere");
  EXPECT_EQ(failure->fix(), "do this");
  EXPECT_FALSE(supervisor.failure(0).has_value());
  EXPECT_THROW(RankStatus::join(path, 3), Error);
  EXPECT_THROW(RankStatus::join(folder.path() / "none", 0), Error);
}

}  // namespace
}  // namespace deltatune
