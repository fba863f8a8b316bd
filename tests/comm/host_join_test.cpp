// Joining by processes over TCP: late ranks, wrong variables, strangers and hostile bytes on the port, killed
// processes. Each rank is a forked process that writes down how it ended.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "comm/frames.h"
#include "comm/host_group.h"
#include "comm/host_star.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Launch rank_of(int rank, int world_size, int port, const char* address = "127.0.0.1") {
  Launch out;
  out.rank = out.local_rank = rank;
  out.world_size = out.local_world_size = world_size;
  out.master_addr = address;
  out.master_port = port;
  return out;
}

HostGroupOptions options(milliseconds timeout = seconds(20)) {
  HostGroupOptions out;
  out.timeout = timeout;
  out.version = "1.2.3";
  out.agreement = "a: 1\nb: 2\n";
  return out;
}

// Processes by name, and the last words of each.
class Processes {
 public:
  ~Processes() {
    for (const auto& [name, pid] : running_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  pid_t start(const std::string& name, const std::function<void()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string said = "done";
      try {
        body();
      } catch (const Error& error) {
        said = std::string(error.what()) + "|" + error.where();
      } catch (const std::exception& other) {
        said = std::string("unexpected: ") + other.what();
      }
      std::ofstream(folder_.path() / name) << said << std::flush;
      ::_exit(0);
    }
    running_[name] = pid;
    return pid;
  }
  /// Waits; what it said. Empty: it was killed.
  std::string end_of(const std::string& name) {
    int status = 0;
    ::waitpid(running_.at(name), &status, 0);
    running_.erase(name);
    std::ifstream file(folder_.path() / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string what(const std::string& name) {
    const std::string text = end_of(name);
    return text.substr(0, text.find('|'));
  }

 private:
  ScratchFolder folder_;
  std::map<std::string, pid_t> running_;
};

void meet(const Launch& launch, const HostGroupOptions& with, int calls = 20) {
  const auto group = join_host_group(launch, with);
  for (int call = 0; call < calls; ++call) {
    const auto all = group->exchange("rank " + std::to_string(launch.rank));
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r] != "rank " + std::to_string(r)) throw Error(ErrorKind::internal, "wrong text: " + all[r]);
    }
  }
  group->leave();
}

FileHandle connect_to(int port) {
  for (int i = 0; i < 500; ++i) {
    FileHandle socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in address {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::connect(socket.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof address) == 0)
      return socket;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return FileHandle();
}

void send_bytes(const FileHandle& socket, const std::string& bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::string frame(uint32_t magic, uint32_t type, uint64_t bytes, const std::string& payload) {
  std::string out(24, '\0');
  std::memcpy(out.data(), &magic, 4);
  std::memcpy(out.data() + 4, &type, 4);
  std::memcpy(out.data() + 16, &bytes, 8);
  return out + payload;
}
constexpr uint32_t magic = 0x47485444;

TEST(HostJoinTest, ProcessesMeetHoweverLate) {
  for (const int world : {2, 5}) {
    const int port = free_local_port();
    Processes processes;
    for (int r = 0; r < world; ++r) {
      processes.start(std::to_string(r), [=] {
        std::this_thread::sleep_for(milliseconds(150 * ((r + 1) % world)));  // rank 0 neither first nor last
        meet(rank_of(r, world, port), options());
      });
    }
    for (int r = 0; r < world; ++r) EXPECT_EQ(processes.end_of(std::to_string(r)), "done") << r;
  }
}

TEST(HostJoinTest, NamesAndIpv6) {
  for (const char* address : {"localhost", "::1"}) {
    if (std::string(address) == "::1") {
      const FileHandle probe(::socket(AF_INET6, SOCK_STREAM, 0));
      struct sockaddr_in6 any {};
      any.sin6_family = AF_INET6;
      any.sin6_addr = in6addr_loopback;
      if (::bind(probe.get(), reinterpret_cast<struct sockaddr*>(&any), sizeof any) != 0) continue;
    }
    const int port = free_local_port();
    Processes processes;
    for (int r = 0; r < 3; ++r)
      processes.start(std::to_string(r), [=] { meet(rank_of(r, 3, port, address), options()); });
    for (int r = 0; r < 3; ++r) EXPECT_EQ(processes.end_of(std::to_string(r)), "done") << address << " " << r;
  }
}

TEST(HostJoinTest, MissingRanksAreNamed) {
  const int port = free_local_port();
  Processes processes;
  for (const int r : {0, 2}) {
    processes.start(std::to_string(r), [=] { meet(rank_of(r, 4, port), options(milliseconds(700))); });
  }
  const std::string expected =
      "ranks 1 and 3 did not come to 127.0.0.1:" + std::to_string(port) + " within 0.7 s";
  EXPECT_EQ(processes.what("0"), expected);
  EXPECT_EQ(processes.what("2"), expected);
  // Nobody listens at all.
  processes.start("alone", [=] { meet(rank_of(1, 2, port), options(milliseconds(300))); });
  EXPECT_NE(processes.what("alone").find("rank 0 was not found at 127.0.0.1:"), std::string::npos);
  processes.start("nowhere",
                  [=] { meet(rank_of(1, 2, port, "no-such-host.invalid"), options(milliseconds(300))); });
  EXPECT_NE(processes.what("nowhere").find("rank 0 was not found at no-such-host.invalid"),
            std::string::npos);
}

// All ranks end with the same message; `odd` is the one that differs.
void expect_refusal(const Launch& odd, const HostGroupOptions& odd_options, int port,
                    const std::string& message) {
  Processes processes;
  for (const int r : {0, 1, 2}) {
    if (r == odd.rank && odd.world_size != 3) continue;
    processes.start(std::to_string(r), [=] { meet(rank_of(r, 3, port), options()); });
  }
  std::this_thread::sleep_for(milliseconds(300));
  processes.start("odd", [=] { meet(odd, odd_options); });
  EXPECT_EQ(processes.what("odd"), message);
  EXPECT_EQ(processes.what("0"), message);
  EXPECT_EQ(processes.what("1"), message);
}

TEST(HostJoinTest, WrongWorldSize) {
  const int port = free_local_port();
  expect_refusal(rank_of(2, 4, port), options(), port,
                 "rank 0 was started with WORLD_SIZE=3, rank 2 with WORLD_SIZE=4");
}

// The run waits for one more rank, so that what differs comes in time.
void expect_refusal_of_second(const HostGroupOptions& odd_options, int rank, const std::string& message) {
  const int port = free_local_port();
  Processes processes;
  for (const int r : {0, 1, 2})
    processes.start(std::to_string(r), [=] { meet(rank_of(r, 4, port), options()); });
  std::this_thread::sleep_for(milliseconds(300));
  processes.start("odd", [=] { meet(rank_of(rank, 4, port), odd_options); });
  for (const char* name : {"odd", "0", "1", "2"}) EXPECT_EQ(processes.what(name), message) << name;
}

TEST(HostJoinTest, TwoProcessesWithOneRank) {
  expect_refusal_of_second(options(), 1, "two processes are rank 1");
  expect_refusal_of_second(options(), 0, "two processes are rank 0");
}

TEST(HostJoinTest, AnotherVersionOrConfiguration) {
  HostGroupOptions old = options();
  old.version = "1.2.2";
  expect_refusal_of_second(old, 3, "rank 0 is deltatune 1.2.3, rank 3 is 1.2.2");
  HostGroupOptions other = options();
  other.agreement = "a: 1\nb: 3\n";
  expect_refusal_of_second(other, 3,
                           "rank 3 was started with another configuration: \"b: 3\", rank 0 has \"b: 2\"");
}

// Connections that say nothing, half a hello, another protocol, or random bytes: dropped, and the run starts.
TEST(HostJoinTest, StrangersAreDropped) {
  const int port = free_local_port();
  Processes processes;
  processes.start("0", [=] { meet(rank_of(0, 2, port), options()); });
  std::vector<FileHandle> open;
  const std::string hello = pack_texts({"1", "2", "1.2.3", "a: 1\nb: 2\n"});
  const std::vector<std::string> lines = {
      "",
      "GET / HTTP/1.1\r\n\r\n",
      "DTH",
      frame(magic, 1, 30, "short"),
      frame(magic, 1, uint64_t{1} << 60, ""),  // a length that nobody has
      frame(magic, 1, 40001, std::string(2000, 'x')),
      frame(magic, 3, 5, "hello"),  // a call before the hello
      frame(magic, 77, 0, ""),
      frame(magic, 1, 4, "abcd"),  // no texts
      frame(magic, 1, 8, std::string(8, '\xff')),
      frame(magic, 1, pack_texts({"x", "2", "", ""}).size(), pack_texts({"x", "2", "", ""})),
      frame(magic, 1, pack_texts({"-1", "2", "", ""}).size(), pack_texts({"-1", "2", "", ""})),
      frame(0x12345678, 1, hello.size(), hello),
  };
  for (const std::string& line : lines) {
    open.push_back(connect_to(port));
    ASSERT_TRUE(open.back().is_open());
    send_bytes(open.back(), line);
  }
  for (uint64_t i = 0; i < 200; ++i) {
    std::string noise(1 + i * 13 % 400, '\0');
    for (size_t k = 0; k < noise.size(); ++k)
      noise[k] = static_cast<char>((i * 2654435761u + k * 40503u) >> 7);
    if (i % 2 == 0) noise = frame(magic, static_cast<uint32_t>(i % 9), i * 3, noise);
    open.push_back(connect_to(port));
    send_bytes(open.back(), noise);
    if (i % 3 == 0) open.back().reset();
  }
  processes.start("1", [=] { meet(rank_of(1, 2, port), options()); });
  EXPECT_EQ(processes.end_of("1"), "done");
  EXPECT_EQ(processes.end_of("0"), "done");
}

// What a rank meets at the port may be anything, too.
TEST(HostJoinTest, AnotherProgramAtThePort) {
  for (const std::string& answer : {std::string("220 mail ready\r\n"), frame(magic, 6, uint64_t{1} << 50, ""),
                                    frame(magic, 4, 3, "abc"), frame(magic, 6, 3, "abc"), std::string()}) {
    FileHandle server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in address {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<struct sockaddr*>(&address);
    ASSERT_TRUE(::bind(server.get(), any, size) == 0 && ::listen(server.get(), 8) == 0);
    ::getsockname(server.get(), any, &size);
    const int port = ntohs(address.sin_port);
    Processes processes;
    processes.start("1", [=] { meet(rank_of(1, 2, port), options(milliseconds(500))); });
    const FileHandle guest(::accept(server.get(), nullptr, nullptr));
    send_bytes(guest, answer);
    const std::string said = processes.what("1");
    EXPECT_TRUE(said.find("another program answers") != std::string::npos ||
                said.find("does not answer") != std::string::npos ||
                said.find("something unexpected") != std::string::npos ||
                said.find("damaged") != std::string::npos)
        << said;
    // A rank 0 cannot listen there.
    processes.start("0", [=] { meet(rank_of(0, 2, port), options(milliseconds(300))); });
    const std::string refused = processes.what("0");
    EXPECT_TRUE(refused.find("cannot listen on port") != std::string::npos ||
                refused.find("does not answer") != std::string::npos)
        << refused;
  }
}

TEST(HostJoinTest, AKilledProcessIsNoticedAtOnce) {
  for (const int lost : {0, 2}) {
    const int port = free_local_port();
    Processes processes;
    pid_t victim = 0;
    for (int r = 0; r < 3; ++r) {
      const pid_t pid = processes.start(std::to_string(r), [=] {
        const auto group = join_host_group(rank_of(r, 3, port), options(seconds(60)));
        group->exchange("all");
        if (r == lost) ::pause();
        for (;;) group->exchange("others");
      });
      if (r == lost) victim = pid;
    }
    std::this_thread::sleep_for(milliseconds(700));
    const auto begin = std::chrono::steady_clock::now();
    ::kill(victim, SIGKILL);
    for (int r = 0; r < 3; ++r) {
      const std::string said = processes.what(std::to_string(r));
      EXPECT_EQ(said,
                r == lost ? "" : "rank " + std::to_string(lost) + " is gone: its connection has closed");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
  }
}

// Two network namespaces with a cable between them stand in for two machines.
struct Machines {
  Machines() {
    const std::string id = std::to_string(::getpid());
    a = "dta" + id;
    b = "dtb" + id;
    const auto in = [](const std::string& name, const std::string& rest) {
      return "ip -n " + name + " " + rest + " && ";
    };
    const std::string command =
        "exec 2>/dev/null; ip netns add " + a + " && ip netns add " + b + " && ip link add va" + id +
        " type veth peer name vb" + id + " && ip link set va" + id + " netns " + a + " && ip link set vb" +
        id + " netns " + b + " && " + in(a, "addr add 10.77.0.1/24 dev va" + id) +
        in(b, "addr add 10.77.0.2/24 dev vb" + id) + in(a, "-6 addr add fd77::1/64 dev va" + id + " nodad") +
        in(b, "-6 addr add fd77::2/64 dev vb" + id + " nodad") + in(a, "link set va" + id + " up") +
        in(b, "link set vb" + id + " up") + in(a, "link set lo up") + in(b, "link set lo up") + "true";
    there = std::system(command.c_str()) == 0;
  }
  ~Machines() {
    if (std::system(("ip netns del " + a + " 2>/dev/null; ip netns del " + b + " 2>/dev/null").c_str()) != 0)
      return;
  }
  static void enter(const std::string& name) {
    const FileHandle space(::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    if (::setns(space.get(), CLONE_NEWNET) != 0) throw Error(ErrorKind::resource, "setns failed");
  }
  std::string a, b;
  bool there = false;
};

TEST(HostJoinTest, TwoMachines) {
  const Machines machines;
  if (!machines.there)
    GTEST_SKIP() << "network namespaces are not permitted here (or Debian's iproute2 is missing)";
  for (const char* address : {"10.77.0.1", "fd77::1"}) {
    Processes processes;
    for (int r = 0; r < 4; ++r) {
      processes.start(std::to_string(r), [&, r] {
        Machines::enter(r < 2 ? machines.a : machines.b);
        Launch launch = rank_of(r, 4, 29711, address);
        launch.local_rank = r % 2;
        launch.local_world_size = 2;
        meet(launch, options());
      });
    }
    for (int r = 0; r < 4; ++r) EXPECT_EQ(processes.end_of(std::to_string(r)), "done") << address << " " << r;
  }
  // The address of the other machine: rank 0 listens, but nobody finds it there.
  Processes processes;
  for (int r = 0; r < 2; ++r) {
    processes.start(std::to_string(r), [&, r] {
      Machines::enter(r == 0 ? machines.a : machines.b);
      meet(rank_of(r, 2, 29712, "10.77.0.2"), options(milliseconds(600)));
    });
  }
  EXPECT_EQ(processes.what("0"), "rank 1 did not come to 10.77.0.2:29712 within 0.6 s");
  EXPECT_EQ(processes.what("1").rfind("rank 0 was not found at 10.77.0.2:29712 within 0.6 s: ", 0), 0u);
}

TEST(HostJoinTest, WithoutAnAddressNobodyMeets) {
  Launch launch = rank_of(1, 2, 0);
  try {
    join_host_group(launch, options());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(error.where(), "MASTER_PORT");
  }
}

}  // namespace
}  // namespace deltatune
