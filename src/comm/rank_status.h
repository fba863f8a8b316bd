// RankStatus: what the ranks of one machine tell the program that started them, through a small shared file.
//
// One record a rank: process id, step, what it is doing, and the error that ended it. Each rank writes its
// own record, the supervisor reads them while ranks run and after they are gone, however they went. Before
// them is what the supervisor tells the ranks: how often it has started them again. The file is of the
// supervisor and goes with it. Not for ranks of other machines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"

namespace deltatune {

class RankStatus {
 public:
  /// A new file of `ranks` empty records. Throws Error{resource}.
  static RankStatus create(const std::filesystem::path& path, int ranks);
  /// The record `rank` of an existing file, with this process in it. Throws Error{usage} for a file that is
  /// none of these.
  static RankStatus join(const std::filesystem::path& path, int rank);
  ~RankStatus();
  RankStatus(RankStatus&& other) noexcept;
  RankStatus& operator=(RankStatus&&) = delete;
  RankStatus(const RankStatus&) = delete;
  RankStatus& operator=(const RankStatus&) = delete;

  /// How often the ranks were started again, and whether they shall go on from the latest checkpoint.
  void restarted(int64_t times, bool resume);
  int64_t restarts() const;
  bool resume() const;

  /// A rank's: `phase` is cut off after 31 bytes.
  void at(int64_t step, const char* phase);
  /// A rank's, once: the end by an error.
  void fail(const Error& error);

  /// The supervisor's.
  int ranks() const { return ranks_; }
  /// 0: not started.
  int64_t process(int rank) const;
  /// That it has come to; 0: none.
  int64_t step(int rank) const;
  /// "rank 1, step 12, training".
  std::string place(int rank) const;
  /// The error that a rank has ended with.
  std::optional<Error> failure(int rank) const;

 private:
  struct Order;
  struct Record;
  RankStatus(void* memory, size_t bytes, int ranks, int own);
  Order& order() const { return *static_cast<Order*>(memory_); }
  Record& record(int rank) const;
  static size_t size_for(int ranks);

  void* memory_;
  size_t bytes_;
  int ranks_;
  int own_;
};

}  // namespace deltatune
