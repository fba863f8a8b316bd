// The CPU device, its streams, and the null device that plans for it.
#include "cpu/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <vector>

#include "cpu/threaded_stream.h"
#include "ops/null_device.h"
#include "ops/op.h"
#include "ops/ops.h"

namespace deltatune {
namespace {

TEST(CpuDevice, AllocatesAlignedAndKeepsThePlan) {
  const auto device = make_cpu_device();
  {
    const Buffer a = device->allocate(1000, "a", "test", Lifetime::run);
    const Buffer b = device->allocate(1, "b", "test", Lifetime::op);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
    EXPECT_EQ(device->allocated_bytes(), 1024u + 256u);
    std::memset(a.data(), 1, a.size());
    std::memset(b.data(), 1, b.size());
  }
  EXPECT_EQ(device->allocated_bytes(), 0u);
  EXPECT_EQ(device->allocation_count(), 2u);
  EXPECT_EQ(device->plan().total(), 1280u);
  EXPECT_EQ(device->plan().regions()[1].name, "b");
}

TEST(CpuDevice, MoreThanTheMachineHasIsAnErrorWithAWayOut) {
  const auto device = make_cpu_device();
  try {
    const Buffer buffer = device->allocate(size_t{1} << 52, "dream", "test", Lifetime::run);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_NE(error.text().find("dream"), std::string::npos);
    EXPECT_FALSE(error.fix().empty());
  }
  EXPECT_EQ(device->allocated_bytes(), 0u);
  EXPECT_EQ(device->plan().total(), 0u);
}

TEST(CpuDevice, LargeRegionsAreUsableToTheLastByte) {
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate((size_t{64} << 20) + 4096 + 3, "large", "test", Lifetime::run);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  buffer.data()[buffer.size() - 1] = std::byte{7};
}

TEST(NullDevice, CountsLikeARealOneAndGivesDistinctAddresses) {
  for (const Target target : {Target::cpu, Target::cuda}) {
    const auto device = make_null_device(target);
    EXPECT_EQ(device->target(), target);
    EXPECT_TRUE(device->is_null());
    std::vector<Buffer> buffers;
    std::set<std::byte*> addresses;
    for (int i = 0; i < 10; ++i) {
      buffers.push_back(device->allocate(size_t{1} << 40, "huge", "test", Lifetime::run));
      EXPECT_NE(buffers.back().data(), nullptr);
      addresses.insert(buffers.back().data());
    }
    EXPECT_EQ(addresses.size(), 10u);
    EXPECT_EQ(device->plan().total(), size_t{10} << 40);
  }
}

TEST(NullDevice, StreamCountsAndComputesNothing) {
  const auto device = make_null_device(Target::cpu);
  const auto stream = device->make_stream("plan");
  const Buffer memory = device->allocate(size_t{1} << 30, "x", "test", Lifetime::run);
  const Tensor x{memory.data(), DType::bf16, {1024, 1024}};
  ops::matmul(*stream, x, x, x, {});
  EXPECT_EQ(stream->totals()[static_cast<size_t>(Op::matmul)].calls, 1);
  EXPECT_EQ(stream->totals()[static_cast<size_t>(Op::matmul)].flops, 2.0 * 1024 * 1024 * 1024);
  EXPECT_GT(stream->scratch_wish(), 0u);
  std::vector<float> host(4, 7.0f);
  stream->upload({memory.data(), DType::f32, {4}}, host.data());
  stream->download(host.data(), {memory.data(), DType::f32, {4}});
  EXPECT_EQ(host, std::vector<float>(4, 0.0f));
}

class Streams : public testing::TestWithParam<StreamMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Streams, testing::Values(StreamMode::direct, StreamMode::threaded),
                         [](const auto& test) {
                           return std::string(test.param == StreamMode::direct ? "direct" : "threaded");
                         });

TEST_P(Streams, WorkRunsInOrderAndCopiesGoThrough) {
  const auto device = make_cpu_device(GetParam());
  const auto stream = device->make_stream("compute");
  const Buffer memory = device->allocate(4096, "x", "test", Lifetime::run);
  const Tensor x{memory.data(), DType::f32, {100}};
  const std::vector<float> ones(100, 1.0f);
  std::vector<float> out(100);
  stream->upload(x, ones.data());
  for (int i = 0; i < 10; ++i) ops::add(*stream, x, x);  // doubles
  stream->download(out.data(), x);
  stream->sync();
  EXPECT_EQ(out, std::vector<float>(100, 1024.0f));
  EXPECT_EQ(stream->runs_inline(), GetParam() == StreamMode::direct);
}

TEST_P(Streams, EventsOrderTwoStreams) {
  const auto device = make_cpu_device(GetParam());
  const auto producer = device->make_stream("copy");
  const auto consumer = device->make_stream("compute");
  const Buffer memory = device->allocate(2 * 4096, "x", "test", Lifetime::run);
  const Tensor x{memory.data(), DType::f32, {1000}};
  const Tensor y{memory.data() + 4096, DType::f32, {1000}};
  std::vector<float> out(1000);
  for (int round = 0; round < 100; ++round) {
    Event filled;
    Event read;
    ops::fill(*producer, x, round);
    producer->record(filled);
    consumer->wait(filled);
    ops::cast(*consumer, y, x);
    consumer->record(read);
    producer->wait(read);
  }
  consumer->download(out.data(), y);
  consumer->sync();
  producer->sync();
  EXPECT_EQ(out, std::vector<float>(1000, 99.0f));
}

TEST_P(Streams, WaitForAnEventNeverRecordedReturns) {
  const auto device = make_cpu_device(GetParam());
  const auto stream = device->make_stream("compute");
  stream->wait(Event{});
  stream->sync();
}

TEST(ThreadedStream, ErrorSkipsLaterWorkAndComesOutOfSync) {
  const auto device = make_cpu_device(StreamMode::threaded);
  const auto stream = device->make_stream("compute");
  const auto other = device->make_stream("other");
  std::atomic<int> ran{0};
  Event after;
  stream->run([] { throw Error(ErrorKind::data, "broken"); });
  stream->run([&] { ++ran; });
  stream->record(after);
  other->wait(after);  // the event of a failed stream still comes
  other->sync();
  EXPECT_THROW(stream->sync(), Error);
  EXPECT_EQ(ran, 0);
  stream->run([&] { ++ran; });
  stream->sync();
  EXPECT_EQ(ran, 1);
}

TEST(ThreadedStream, TooMuchWorkWithoutSyncIsAnErrorNotARace) {
  const auto device = make_cpu_device(StreamMode::threaded);
  const auto stream = device->make_stream("compute");
  int64_t ran = 0;
  const auto fill_up = [&] {
    for (size_t i = 0; i < 2 * cpu::ThreadedStream::slots; ++i) stream->run([&] { ++ran; });
  };
  EXPECT_THROW(fill_up(), Error);
  stream->sync();
  const int64_t first = ran;
  EXPECT_GE(first, static_cast<int64_t>(cpu::ThreadedStream::slots) - 2);
  // After a sync the ring can be used again.
  for (int i = 0; i < 1000; ++i) stream->run([&] { ++ran; });
  stream->sync();
  EXPECT_EQ(ran, first + 1000);
}

TEST(ThreadedStream, DestructionFinishesTheWork) {
  std::atomic<int> ran{0};
  {
    const auto device = make_cpu_device(StreamMode::threaded);
    const auto stream = device->make_stream("compute");
    for (int i = 0; i < 100; ++i) stream->run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace deltatune
