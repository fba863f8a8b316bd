// HostStar: the HostGroup over links that exist: rank 0 has one to each other rank, the others one to rank 0.
//
// A call: everyone gives its part to rank 0, which (exchange) sends all parts to everyone. Rank 0 also is who
// knows what is wrong: it tells the others, so that all end with the same message. A rank that waits for rank
// 0 longer than the time-out blames rank 0, unless that has said that it waits itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/frames.h"
#include "comm/host_group.h"

namespace deltatune {

/// Payload of FrameType::failure, and back; an Error{distributed} for bytes that are none.
std::string pack_failure(const Error&);
Error unpack_failure(const std::string& payload);
/// Texts with their lengths in one payload, and back; Error{distributed} where they are not `count` texts.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& payload, size_t count);

class HostStar final : public HostGroup {
 public:
  /// `links`: by rank on rank 0 (its own entry is closed); one entry elsewhere.
  HostStar(const Launch& launch, std::vector<Link> links, std::chrono::milliseconds timeout);
  ~HostStar() override;

  int rank() const override { return launch_.rank; }
  int world_size() const override { return launch_.world_size; }
  int local_rank() const override { return launch_.local_rank; }
  int local_world_size() const override { return launch_.local_world_size; }
  std::vector<std::string> exchange(std::string_view mine, const std::string& place) override;
  std::vector<std::string> collect(std::string_view mine, const std::string& place) override;
  void check(const std::string& place) override;
  void leave() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    const char* name;
    std::string place;
    Clock::time_point end;
  };
  Call begin(const char* name, const std::string& place);
  std::vector<std::string> gather(std::string_view mine, const Call& call);
  void send_to_all(FrameType type, const std::string& payload, const Call& call);
  void give(std::string_view mine, const Call& call);
  Frame answer(Call call);
  /// Takes the part of this call that `peer` has sent, if it has.
  bool take_part(size_t peer, const Call& call, std::vector<std::string>& parts);
  /// Sends and receives on all links until something happens or `end`.
  void poll(Clock::time_point end);
  /// Rank 0: throws when a peer's connection is gone; `given`: whose part has come, who may have left since.
  void look_for_lost(const Call& call, const std::vector<bool>& given);
  /// Ends sending, and reads until the others have ended too or `longest` is over: closing with something
  /// unread would take from them what they have not read.
  void drain(std::chrono::milliseconds longest);
  [[noreturn]] void fail(const Error& error);
  [[noreturn]] void rethrow(const std::string& place) const;
  Error gone(int peer, bool orderly, const std::string& place) const;
  std::string place_of(const std::string& place) const;

  Launch launch_;
  std::vector<Link> links_;
  std::vector<bool> left_;  ///< said goodbye
  std::chrono::milliseconds timeout_;
  uint64_t calls_ = 0;
  std::optional<Error> failure_;
};

}  // namespace deltatune
