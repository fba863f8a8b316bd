// Calls of the star, seen from its middle and from its points.
#include "comm/host_star.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/format.h"
#include "comm/communicator.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t longest_part = uint64_t{1} << 34;  // what exchange() promises
constexpr milliseconds grace{2000};  // rank 0's message about others comes before one about rank 0
constexpr milliseconds farewell{3000};

std::shared_ptr<const std::string> shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

Error garbled(const std::string& what) {
  return Error(ErrorKind::distributed, "a message between the ranks is damaged: " + what, "host group",
               "see that all ranks run the same build, and that nothing else talks to MASTER_PORT");
}

}  // namespace

std::string pack_texts(const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += sizeof(uint64_t) + text.size();
  std::string out;
  out.reserve(bytes);
  for (const std::string& text : texts) {
    const uint64_t size = text.size();
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out += text;
  }
  return out;
}

std::vector<std::string> unpack_texts(const std::string& payload, size_t count) {
  std::vector<std::string> out;
  size_t at = 0;
  while (out.size() < count) {
    uint64_t size = 0;
    if (payload.size() - at < sizeof size) throw garbled("it ends early");
    std::memcpy(&size, payload.data() + at, sizeof size);
    at += sizeof size;
    if (payload.size() - at < size) throw garbled("it ends early");
    out.push_back(payload.substr(at, size));
    at += size;
  }
  if (at != payload.size()) throw garbled("it is too long");
  return out;
}

std::string pack_failure(const Error& error) {
  return pack_texts({error.what(), error.fix()});
}

Error unpack_failure(const std::string& payload) {
  try {
    const std::vector<std::string> texts = unpack_texts(payload, 2);
    return Error(ErrorKind::distributed, texts[0], "", texts[1]);
  } catch (const Error& error) {
    return error;
  }
}

HostStar::HostStar(const Launch& launch, std::vector<Link> links, milliseconds timeout)
    : launch_(launch), links_(std::move(links)), left_(links_.size()), timeout_(timeout) {}

std::string HostStar::place_of(const std::string& place) const {
  return place.empty() ? format("rank {}", launch_.rank) : place;
}

void HostStar::rethrow(const std::string& place) const {
  throw Error(failure_->kind(), failure_->what(), place_of(place), failure_->fix());
}

// Rank 0 tells the others, as far as they listen.
void HostStar::fail(const Error& error) {
  failure_ = error;
  if (launch_.rank == 0) {
    const auto text = shared(pack_failure(error));
    for (Link& link : links_) {
      link.queue(FrameType::failure, calls_, text);
      link.flush();
    }
  }
  throw Error(error);
}

Error HostStar::gone(int peer, bool orderly, const std::string& place) const {
  return Error(ErrorKind::distributed,
               orderly ? format("rank {} has left the run", peer)
                       : format("rank {} is gone: its connection has closed", peer),
               place_of(place),
               "see the message of that rank, or what ended it; the last checkpoint is kept");
}

HostStar::Call HostStar::begin(const char* name, const std::string& place) {
  if (failure_) rethrow(place);
  ++calls_;
  return {name, place_of(place), Clock::now() + timeout_};
}

void HostStar::poll(Clock::time_point end) {
  std::vector<struct pollfd> waits;
  for (const Link& link : links_) waits.push_back(link.interest());
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
  const int wait = static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
  if (::poll(waits.data(), waits.size(), wait) <= 0) return;
  for (size_t i = 0; i < links_.size(); ++i) {
    if ((waits[i].revents & POLLOUT) != 0) links_[i].flush();
    if ((waits[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
      links_[i].receive(launch_.rank == 0 ? longest_part
                                          : static_cast<uint64_t>(launch_.world_size) * (longest_part + 8));
  }
}

void HostStar::look_for_lost(const Call& call, const std::vector<bool>& given) {
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    Link& link = links_[peer];
    if (link.arrived() != nullptr && link.arrived()->type == FrameType::goodbye) {
      left_[peer] = true;
      link.close();
    }
    const bool own = launch_.rank == 0 && peer == 0;
    if (own || link.is_open() || (left_[peer] && given[peer])) continue;
    fail(gone(static_cast<int>(peer), left_[peer], call.place));
  }
}

bool HostStar::take_part(size_t peer, const Call& call, std::vector<std::string>& parts) {
  const Frame* frame = links_[peer].arrived();
  if (frame == nullptr || frame->type == FrameType::goodbye) return false;
  const std::string name = std::string("\n") + call.name;
  if (frame->type != FrameType::give || frame->call != calls_ || !frame->payload.ends_with(name)) {
    fail(Error(ErrorKind::distributed,
               format("rank {} and rank 0 are at different calls ({})", peer, call.name), call.place,
               "see that all ranks run the same build with the same configuration"));
  }
  parts[peer] = links_[peer].take().payload;
  parts[peer].resize(parts[peer].size() - name.size());
  return true;
}

// Rank 0: the parts of all.
std::vector<std::string> HostStar::gather(std::string_view mine, const Call& call) {
  std::vector<std::string> parts(links_.size());
  std::vector<bool> given(links_.size());
  parts[0] = mine;
  given[0] = true;
  size_t missing = links_.size() - 1;
  bool told = false;
  const auto soon = Clock::now() + std::min<milliseconds>(timeout_ / 4, milliseconds(200));
  for (;;) {
    for (size_t peer = 1; peer < links_.size(); ++peer) {
      if (given[peer] || !take_part(peer, call, parts)) continue;
      given[peer] = true;
      --missing;
    }
    if (missing == 0) return parts;
    look_for_lost(call, given);
    if (Clock::now() >= call.end) {
      std::vector<int> late;
      for (size_t peer = 1; peer < links_.size(); ++peer) {
        if (!given[peer]) late.push_back(static_cast<int>(peer));
      }
      fail(peers_missing(late, call.name, timeout_, call.place));
    }
    if (!told && Clock::now() >= soon) {
      told = true;
      for (Link& link : links_) {
        link.queue(FrameType::waiting, calls_, nullptr);
        link.flush();
      }
    }
    poll(told ? call.end : std::min(soon, call.end));
  }
}

// Rank 0: returns when the sockets have taken everything.
void HostStar::send_to_all(FrameType type, const std::string& payload, const Call& call) {
  const auto text = shared(payload);
  for (Link& link : links_) link.queue(type, calls_, text);
  const std::vector<bool> given(links_.size(), true);
  for (;;) {
    std::vector<int> slow;
    for (size_t peer = 1; peer < links_.size(); ++peer) {
      if (!links_[peer].flush()) slow.push_back(static_cast<int>(peer));
    }
    if (slow.empty()) return;
    look_for_lost(call, given);
    if (Clock::now() >= call.end) fail(peers_missing(slow, call.name, timeout_, call.place));
    poll(call.end);
  }
}

// Another rank: its part to rank 0.
void HostStar::give(std::string_view mine, const Call& call) {
  // The name behind the part tells rank 0 that both mean the same call.
  std::string payload;
  payload.reserve(mine.size() + 16);
  payload.append(mine).append("\n").append(call.name);
  links_[0].queue(FrameType::give, calls_, shared(std::move(payload)));
  while (!links_[0].flush()) {
    // Of what rank 0 may say meanwhile, only a failure matters here.
    if (!links_[0].is_open() || (links_[0].arrived() && links_[0].arrived()->type == FrameType::failure))
      return;
    if (Clock::now() >= call.end) fail(peers_missing({0}, call.name, timeout_, call.place));
    poll(call.end);
  }
}

Frame HostStar::answer(Call call) {
  for (;;) {
    if (links_[0].arrived() != nullptr) {
      Frame frame = links_[0].take();
      if (frame.type == FrameType::all && frame.call == calls_) return frame;
      if (frame.type == FrameType::failure) {
        failure_ = unpack_failure(frame.payload);
        rethrow(call.place);
      }
      if (frame.type == FrameType::goodbye) fail(gone(0, true, call.place));
      // It waits for others from now on, and will say for whom.
      if (frame.type == FrameType::waiting) {
        if (frame.call == calls_) call.end = Clock::now() + timeout_ + grace;
        continue;
      }
      fail(Error(ErrorKind::distributed, format("rank 0 is at another call than {}", call.name), call.place,
                 "see that all ranks run the same build with the same configuration"));
    }
    if (!links_[0].is_open()) fail(gone(0, false, call.place));
    if (Clock::now() >= call.end) fail(peers_missing({0}, call.name, timeout_, call.place));
    poll(call.end);
  }
}

std::vector<std::string> HostStar::exchange(std::string_view mine, const std::string& place) {
  DELTATUNE_ASSERT(mine.size() <= longest_part - 64);
  const Call call = begin("exchange", place);
  if (launch_.world_size == 1) return {std::string(mine)};
  if (launch_.rank == 0) {
    std::vector<std::string> parts = gather(mine, call);
    send_to_all(FrameType::all, pack_texts(parts), call);
    return parts;
  }
  give(mine, call);
  return unpack_texts(answer(call).payload, static_cast<size_t>(launch_.world_size));
}

std::vector<std::string> HostStar::collect(std::string_view mine, const std::string& place) {
  DELTATUNE_ASSERT(mine.size() <= longest_part - 64);
  const Call call = begin("collect", place);
  if (launch_.world_size == 1) return {std::string(mine)};
  if (launch_.rank == 0) return gather(mine, call);
  check(call.place);
  give(mine, call);
  check(call.place);
  return {};
}

void HostStar::check(const std::string& place) {
  if (failure_) rethrow(place);
  if (launch_.world_size == 1) return;
  poll(Clock::now());
  const Call call{"check", place_of(place), Clock::now()};
  // Who has left in order has made all calls of its; the next one of this rank would miss it.
  if (launch_.rank == 0) return look_for_lost(call, std::vector<bool>(links_.size(), true));
  Link& link = links_[0];
  while (link.arrived() != nullptr && link.arrived()->type == FrameType::waiting) {
    link.take();
    poll(Clock::now());
  }
  if (link.arrived() != nullptr && link.arrived()->type == FrameType::failure) {
    failure_ = unpack_failure(link.take().payload);
    rethrow(call.place);
  }
  if (!link.is_open() && link.arrived() == nullptr) fail(gone(0, false, call.place));
}

void HostStar::drain(milliseconds longest) {
  for (Link& link : links_) {
    link.flush();
    link.end_sending();
  }
  const auto end = Clock::now() + longest;
  for (;;) {
    bool all = true;
    for (Link& link : links_) {
      while (link.arrived() != nullptr) link.take();
      all = all && !link.is_open();
    }
    if (all || Clock::now() >= end) return;
    poll(end);
  }
}

HostStar::~HostStar() {
  try {
    if (failure_ && launch_.rank == 0) drain(milliseconds(500));
  } catch (...) {
    // Nobody is left who could be told.
  }
}

void HostStar::leave() noexcept {
  try {
    if (!failure_) {
      failure_ = Error(ErrorKind::distributed, format("rank {} has left the run", launch_.rank));
      for (Link& link : links_) link.queue(FrameType::goodbye, calls_, nullptr);
      drain(std::min(farewell, timeout_));
    }
  } catch (...) {
    // As above.
  }
  links_.clear();
}

std::vector<std::unique_ptr<HostGroup>> make_threads_host_groups(int world_size, milliseconds timeout) {
  DELTATUNE_ASSERT(world_size >= 1);
  std::vector<std::vector<Link>> links(static_cast<size_t>(world_size));
  links[0].emplace_back();
  for (size_t rank = 1; rank < links.size(); ++rank) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
      throw Error(ErrorKind::resource, std::string("cannot make a socket pair: ") + std::strerror(errno));
    links[0].emplace_back(FileHandle(pair[0]));
    links[rank].emplace_back(FileHandle(pair[1]));
  }
  std::vector<std::unique_ptr<HostGroup>> out;
  for (int rank = 0; rank < world_size; ++rank) {
    Launch launch;
    launch.rank = launch.local_rank = rank;
    launch.world_size = launch.local_world_size = world_size;
    out.push_back(std::make_unique<HostStar>(launch, std::move(links[static_cast<size_t>(rank)]), timeout));
  }
  return out;
}

}  // namespace deltatune
