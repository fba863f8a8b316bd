// Joining: rank 0 listens and lets in who belongs to the run, the others connect until it does.
//
// A hello is the program's version, the agreement, rank and world size. What does not fit ends the run for
// all that have come, and, for a moment, for those that come; what is no hello at all (a scanner, another
// program's client) is dropped. A name that does not resolve yet (a pod that is being created) is tried again
// like a port that nobody listens on yet.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <list>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "comm/host_group.h"
#include "comm/host_star.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr uint64_t longest_hello = 40000;
constexpr size_t most_strangers = 64;         // connections that have not said who they are
constexpr milliseconds hello_patience{5000};  // until one is dropped
constexpr milliseconds late_ones{1000};       // how long a failure waits for ranks that it can be told
constexpr milliseconds one_attempt{3000};     // of connecting
constexpr milliseconds between_attempts{100};
constexpr milliseconds grace{3000};

struct Hello {
  int rank = -1;
  int world_size = 0;
  std::string version;
  std::string agreement;
};

std::string pack(const Hello& hello) {
  return pack_texts(
      {std::to_string(hello.rank), std::to_string(hello.world_size), hello.version, hello.agreement});
}

bool unpack(const std::string& payload, Hello& hello) {
  try {
    const std::vector<std::string> texts = unpack_texts(payload, 4);
    const auto number = [](const std::string& text, int& to) {
      const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), to);
      return problem == std::errc() && rest == text.data() + text.size();
    };
    if (!number(texts[0], hello.rank) || !number(texts[1], hello.world_size)) return false;
    hello.version = texts[2];
    hello.agreement = texts[3];
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The first lines in which two agreements differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      out.push_back(text.substr(at, std::min<size_t>(end - at, 200)));
      at = end + 1;
    }
    return out;
  };
  const std::vector<std::string> x = lines(a), y = lines(b);
  for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    const std::string left = i < x.size() ? x[i] : "nothing", right = i < y.size() ? y[i] : "nothing";
    if (left != right) return {left, right};
  }
  return {};
}

struct Addresses {
  struct Delete {
    void operator()(struct addrinfo* all) const { ::freeaddrinfo(all); }
  };
  std::unique_ptr<struct addrinfo, Delete> list;
  std::string why;  ///< where list is empty
};

Addresses resolve(const char* host, int port, int flags) {
  struct addrinfo hints {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  struct addrinfo* list = nullptr;
  const int problem = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
  Addresses out;
  out.list.reset(problem == 0 ? list : nullptr);
  if (problem != 0) out.why = ::gai_strerror(problem);
  return out;
}

void set(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

// A machine that vanishes closes nothing: the system asks it now and then.
void prepare_connection(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

int wait_for(std::vector<struct pollfd>& waits, Clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
  return ::poll(waits.data(), waits.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 500)));
}

bool is_loopback(const struct addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto& in = reinterpret_cast<const struct sockaddr_in&>(*address.ai_addr);
    return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
  }
  if (address.ai_family != AF_INET6) return false;
  const auto& in = reinterpret_cast<const struct sockaddr_in6&>(*address.ai_addr);
  return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr) != 0;
}

// ---- rank 0

class Reception {
 public:
  Reception(const Launch& launch, const HostGroupOptions& options)
      : launch_(launch), options_(options), links_(static_cast<size_t>(launch.world_size)) {}

  std::vector<Link> run() {
    const auto end = Clock::now() + options_.timeout;
    if (const int reason = listen(); reason != 0) refuse_port(reason);
    while (missing() > 0) {
      if (Clock::now() >= end) fail(late());
      serve(end);
      for (size_t rank = 1; rank < links_.size(); ++rank) {
        if (known_[rank] && !links_[rank].is_open()) {
          fail(Error(ErrorKind::distributed, format("rank {} is gone: its connection has closed", rank),
                     "rank 0, start", "see the message of that rank, or what ended it"));
        }
      }
      if (failure_) fail(Error(*failure_));
    }
    for (Link& link : links_) {
      link.queue(FrameType::welcome, 0, nullptr);
      link.flush();
    }
    return std::move(links_);
  }

 private:
  struct Guest {
    Link link;
    Clock::time_point until;
  };

  size_t missing() const { return static_cast<size_t>(std::count(known_.begin() + 1, known_.end(), false)); }

  // errno of the last failure where nothing could be opened.
  int listen() {
    const Addresses own = resolve(launch_.master_addr.c_str(), launch_.master_port, 0);
    bool local = own.list != nullptr;
    for (const struct addrinfo* a = own.list.get(); a != nullptr; a = a->ai_next)
      local = local && is_loopback(*a);
    // Ranks of this machine alone are nobody else's business.
    const Addresses every = local ? resolve(launch_.master_addr.c_str(), launch_.master_port, 0)
                                  : resolve(nullptr, launch_.master_port, AI_PASSIVE);
    int reason = EADDRNOTAVAIL;
    for (const struct addrinfo* a = every.list.get(); a != nullptr; a = a->ai_next) {
      FileHandle socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.is_open()) continue;
      set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (a->ai_family == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
      if (::bind(socket.get(), a->ai_addr, a->ai_addrlen) != 0 || ::listen(socket.get(), 1024) != 0) {
        reason = errno;
        if (reason == EADDRINUSE) return reason;
        continue;
      }
      listeners_.push_back(std::move(socket));
    }
    return listeners_.empty() ? reason : 0;
  }

  [[noreturn]] void refuse_port(int reason);

  void serve(Clock::time_point end) {
    std::vector<struct pollfd> waits;
    for (const FileHandle& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
    for (const Guest& guest : guests_) waits.push_back(guest.link.interest());
    for (const Link& link : links_) waits.push_back(link.interest());
    const bool something = wait_for(waits, end) > 0;
    for (Link& link : links_) {
      link.flush();
      link.receive(longest_hello);
    }
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      guest->link.receive(longest_hello);
      if (guest->link.arrived() != nullptr) {
        admit(std::move(guest->link));
        guest = guests_.erase(guest);
      } else if (!guest->link.is_open() || Clock::now() >= guest->until) {
        log::debug("dropped a connection to port {} that is no rank's", launch_.master_port);
        guest = guests_.erase(guest);
      } else {
        ++guest;
      }
    }
    for (size_t i = 0; something && i < listeners_.size(); ++i) {
      if ((waits[i].revents & POLLIN) != 0) accept(listeners_[i]);
    }
  }

  void accept(const FileHandle& listener) {
    for (;;) {
      FileHandle socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.is_open()) return;
      prepare_connection(socket.get());
      // Who floods the port pushes out those of his own first.
      if (guests_.size() >= most_strangers + links_.size()) guests_.pop_front();
      guests_.push_back({Link(std::move(socket)), Clock::now() + hello_patience});
    }
  }

  // A frame has arrived on it.
  void admit(Link link) {
    const Frame frame = link.take();
    Hello hello;
    if (frame.type != FrameType::hello || !unpack(frame.payload, hello) || hello.rank < 0 ||
        hello.world_size < 1)
      return;
    const auto index = static_cast<size_t>(hello.rank);
    if (!failure_) failure_ = objection(hello);
    if (failure_) {
      link.queue(FrameType::failure, 0, std::make_shared<const std::string>(pack_failure(*failure_)));
      link.flush();
      told_.push_back(std::move(link));
      return;
    }
    known_[index] = true;
    links_[index] = std::move(link);
  }

  std::optional<Error> objection(const Hello& hello) const {
    const auto error = [](std::string what, const char* fix) {
      return Error(ErrorKind::distributed, std::move(what), "rank 0, start", fix);
    };
    if (hello.world_size != launch_.world_size) {
      return error(format("rank 0 was started with WORLD_SIZE={}, rank {} with WORLD_SIZE={}",
                          launch_.world_size, hello.rank, hello.world_size),
                   "start all ranks with one launcher, or with the same WORLD_SIZE");
    }
    if (hello.rank >= launch_.world_size)
      return error(format("there is no rank {} of {}", hello.rank, launch_.world_size),
                   "start all ranks with one launcher");
    if (hello.rank == 0 || known_[static_cast<size_t>(hello.rank)]) {
      return error(format("two processes are rank {}", hello.rank),
                   "give each process a RANK of its own; is an earlier run still at this MASTER_PORT?");
    }
    if (hello.version != options_.version) {
      return error(
          format("rank 0 is deltatune {}, rank {} is {}", options_.version, hello.rank, hello.version),
          "install the same build on all machines");
    }
    if (hello.agreement != options_.agreement) {
      const auto [ours, theirs] = first_difference(options_.agreement, hello.agreement);
      return error(format("rank {} was started with another configuration: \"{}\", rank 0 has \"{}\"",
                          hello.rank, theirs, ours),
                   "start all ranks with the same command line and the same configuration file");
    }
    return std::nullopt;
  }

  Error late() const {
    std::vector<int> ranks;
    for (size_t rank = 1; rank < known_.size(); ++rank) {
      if (!known_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return Error(
        ErrorKind::distributed,
        format("{} did not come to {}:{} within {:.4g} s", name_ranks(ranks), launch_.master_addr,
               launch_.master_port, static_cast<double>(options_.timeout.count()) * 1e-3),
        "rank 0, start",
        "see that WORLD_SIZE processes are started, that they reach MASTER_ADDR at MASTER_PORT, and that "
        "this is the machine of MASTER_ADDR");
  }

  // Everybody who is here gets to know, and who comes in the next moment.
  [[noreturn]] void fail(const Error& error) {
    failure_ = error;
    const auto text = std::make_shared<const std::string>(pack_failure(error));
    for (Link& link : links_) {
      link.queue(FrameType::failure, 0, text);
      link.flush();
      link.end_sending();
    }
    const auto end = Clock::now() + std::min(late_ones, options_.timeout);
    while (Clock::now() < end) {
      serve(end);
      for (Link& link : told_) link.receive(longest_hello);
    }
    throw Error(error);
  }

  const Launch& launch_;
  const HostGroupOptions& options_;
  std::vector<FileHandle> listeners_;
  std::list<Guest> guests_;
  std::vector<Link> links_;  ///< by rank
  std::vector<bool> known_ = std::vector<bool>(links_.size());
  std::list<Link> told_;
  std::optional<Error> failure_;
};

// ---- the others

class Visitor {
 public:
  Visitor(const Launch& launch, const HostGroupOptions& options)
      : launch_(launch), options_(options), place_(format("rank {}, start", launch.rank)) {}

  /// A link to rank 0 that has said welcome. Throws what rank 0 says, or that nobody is there.
  Link run(Clock::time_point end) {
    while (Clock::now() < end) {
      Link link = connect(end);
      if (link.is_open()) {
        // Rank 0, which waits for others too, gives up first and knows for whom.
        if (introduce(link, Clock::now() + options_.timeout + grace)) return link;
        why_ = "the connection was closed";
      }
      std::this_thread::sleep_for(
          std::min<Clock::duration>(between_attempts, std::max(Clock::duration(0), end - Clock::now())));
    }
    throw Error(
        ErrorKind::distributed,
        format("rank 0 was not found at {}:{} within {:.4g} s: {}", launch_.master_addr, launch_.master_port,
               static_cast<double>(options_.timeout.count()) * 1e-3, why_),
        place_,
        "see that rank 0 runs, that MASTER_ADDR is its machine, and that no firewall closes MASTER_PORT");
  }

  /// Rank 0 that found its port taken: who is there? Throws what a rank 0 there says.
  void ask(Clock::time_point end) {
    Link link = connect(end);
    if (link.is_open()) introduce(link, end);
  }

 private:
  Link connect(Clock::time_point end) {
    const Addresses addresses = resolve(launch_.master_addr.c_str(), launch_.master_port, 0);
    if (!addresses.list) why_ = addresses.why;
    for (const struct addrinfo* a = addresses.list.get(); a != nullptr; a = a->ai_next) {
      FileHandle socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.is_open()) continue;
      if (::connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        why_ = std::strerror(errno);
        continue;
      }
      std::vector<struct pollfd> waits = {{socket.get(), POLLOUT, 0}};
      const auto until = std::min(end, Clock::now() + one_attempt);
      while (wait_for(waits, until) == 0 && Clock::now() < until) {
      }
      int problem = (waits[0].revents & POLLOUT) != 0 ? 0 : ETIMEDOUT;
      socklen_t size = sizeof problem;
      if (problem == 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &size);
      if (problem != 0) {
        why_ = std::strerror(problem);
        continue;
      }
      // A connection to a port of this machine that nobody listens on can meet itself.
      if (meets_itself(socket.get())) continue;
      prepare_connection(socket.get());
      return Link(std::move(socket));
    }
    return {};
  }

  static bool meets_itself(int socket) {
    struct sockaddr_storage own {
    }, other{};
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return ::getsockname(socket, reinterpret_cast<struct sockaddr*>(&own), &own_size) == 0 &&
           ::getpeername(socket, reinterpret_cast<struct sockaddr*>(&other), &other_size) == 0 &&
           own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
  }

  // True: welcome. False: the connection was closed without a word.
  bool introduce(Link& link, Clock::time_point end) {
    const Hello hello{launch_.rank, launch_.world_size, options_.version, options_.agreement};
    link.queue(FrameType::hello, 0, std::make_shared<const std::string>(pack(hello)));
    for (;;) {
      link.flush();
      link.receive(longest_hello);
      if (link.arrived() != nullptr) {
        const Frame frame = link.take();
        if (frame.type == FrameType::welcome) return true;
        const Error said = frame.type == FrameType::failure
                               ? unpack_failure(frame.payload)
                               : Error(ErrorKind::distributed, "rank 0 says something unexpected", "",
                                       "use one build on all ranks");
        throw Error(said.kind(), said.what(), place_, said.fix());
      }
      if (link.is_foreign()) {
        throw Error(ErrorKind::distributed,
                    format("{}:{} is not rank 0 of a run: another program answers", launch_.master_addr,
                           launch_.master_port),
                    place_, "choose a free MASTER_PORT");
      }
      if (!link.is_open()) return false;
      if (Clock::now() >= end) {
        throw Error(ErrorKind::distributed,
                    format("rank 0 at {}:{} does not answer", launch_.master_addr, launch_.master_port),
                    place_, "see what rank 0 does, and that no other program has MASTER_PORT");
      }
      std::vector<struct pollfd> waits = {link.interest()};
      wait_for(waits, end);
    }
  }

  const Launch& launch_;
  const HostGroupOptions& options_;
  std::string place_;
  std::string why_ = "no connection";
};

void Reception::refuse_port(int reason) {
  // Perhaps a rank 0 of this very run: then all its ranks are to know.
  if (reason == EADDRINUSE)
    Visitor(launch_, options_).ask(Clock::now() + std::min(late_ones, options_.timeout));
  throw Error(ErrorKind::distributed,
              format("cannot listen on port {}: {}", launch_.master_port, std::strerror(reason)),
              "rank 0, start", "choose a free MASTER_PORT; is an earlier run still there?");
}

}  // namespace

int free_local_port() {
  const FileHandle socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  struct sockaddr_in address {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<struct sockaddr*>(&address);
  if (::bind(socket.get(), any, size) != 0 || ::getsockname(socket.get(), any, &size) != 0)
    throw Error(ErrorKind::resource, std::string("there is no free port: ") + std::strerror(errno),
                "127.0.0.1");
  return ntohs(address.sin_port);
}

std::unique_ptr<HostGroup> join_host_group(const Launch& launch, const HostGroupOptions& options) {
  DELTATUNE_ASSERT(launch.rank >= 0 && launch.rank < launch.world_size && options.agreement.size() <= 32768);
  if (launch.world_size == 1)
    return std::make_unique<HostStar>(launch, std::vector<Link>(1), options.timeout);
  if (launch.master_addr.empty() || launch.master_port == 0) {
    throw Error(ErrorKind::usage,
                format("{} does not say where the {} ranks meet",
                       launch.launcher.empty() ? "the environment" : launch.launcher, launch.world_size),
                launch.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT",
                "set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there, the same for "
                "all ranks");
  }
  if (launch.rank == 0)
    return std::make_unique<HostStar>(launch, Reception(launch, options).run(), options.timeout);
  std::vector<Link> links;
  links.push_back(Visitor(launch, options).run(Clock::now() + options.timeout));
  return std::make_unique<HostStar>(launch, std::move(links), options.timeout);
}

}  // namespace deltatune
