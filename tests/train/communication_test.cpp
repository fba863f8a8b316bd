// The forecast of a step's communication, against figures worked out by hand.
#include "train/communication.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deltatune {
namespace {

DeviceCard slow_links() {
  DeviceCard card;
  card.gpu_link_gb_s = 10;
  card.node_link_gb_s = 1;
  return card;
}

// 2 nodes of 2 devices; full buffers of 8 GB gathered twice and 8 GB reduced once: a rank sends three
// quarters.
CommunicationInput four_ranks() {
  CommunicationInput in;
  in.step.gather_bytes = 12e9;
  in.step.reduce_bytes = 6e9;
  in.forward_gather = 6e9;
  in.first_gather = 0.75e9;
  in.last_reduce = 0.75e9;
  in.per_node = 2;
  in.nodes = 2;
  return in;
}

TEST(Communication, OneRankSendsNothing) {
  CommunicationInput in;
  in.forward_seconds = in.backward_seconds = 1;
  const Communication out = forecast_communication(in, slow_links());
  EXPECT_EQ(out.gpu_link_bytes, 0);
  EXPECT_EQ(out.node_link_bytes, 0);
  EXPECT_EQ(out.exposed_seconds, 0);
}

TEST(Communication, BytesByLink) {
  const Communication out = forecast_communication(four_ranks(), slow_links());
  // Gathers: 8 GB come to a device from its neighbour's half (4 GB), and half of 8 GB comes into the node,
  // shared by two devices (2 GB); both twice. Reductions: the neighbour's part (2 GB), and 2 GB from each of
  // two others.
  EXPECT_DOUBLE_EQ(out.gpu_link_bytes, 2 * 4e9 + 2e9);
  EXPECT_DOUBLE_EQ(out.node_link_bytes, 2 * 2e9 + 4e9);
  EXPECT_DOUBLE_EQ(out.gpu_link_seconds, 1.0);
  EXPECT_DOUBLE_EQ(out.node_link_seconds, 8.0);
}

TEST(Communication, NothingHidesBehindNoCompute) {
  const Communication out = forecast_communication(four_ranks(), slow_links());
  EXPECT_DOUBLE_EQ(out.exposed_seconds, 2.0 + 6.0);
}

TEST(Communication, OnlyTheEndsShowBehindMuchCompute) {
  CommunicationInput in = four_ranks();
  in.forward_seconds = in.backward_seconds = 100;
  const Communication out = forecast_communication(in, slow_links());
  EXPECT_DOUBLE_EQ(out.exposed_seconds, 2.0 / 8 + 4.0 / 8);
}

// Of 8 GB that are reduced, 1 GB are looked-up rows before forward; as many bytes of their gradients are
// gathered behind backward. A node receives a quarter of each from a device outside, two of them.
TEST(Communication, LookedUpRowsShowInFull) {
  CommunicationInput in = four_ranks();
  in.forward_seconds = in.backward_seconds = 100;
  const Communication before = forecast_communication(in, slow_links());
  in.step.reduce_bytes += 0.75e9;
  in.step.gather_bytes += 0.75e9;
  in.lookup_reduce = in.lookup_gather = 0.75e9;
  const Communication after = forecast_communication(in, slow_links());
  EXPECT_DOUBLE_EQ(after.exposed_seconds, before.exposed_seconds + 0.5 + 0.25);
  EXPECT_DOUBLE_EQ(after.node_link_bytes, before.node_link_bytes + 0.5e9 + 0.25e9);
}

TEST(Communication, WhatIsSentBehindBackwardShowsInFull) {
  CommunicationInput in = four_ranks();
  in.forward_seconds = in.backward_seconds = 100;
  in.at_the_end = true;
  const Communication out = forecast_communication(in, slow_links());
  EXPECT_DOUBLE_EQ(out.exposed_seconds, 2.0 + 6.0);
}

TEST(Communication, OneNodeHasNoTrafficBetweenNodes) {
  CommunicationInput in = four_ranks();
  in.per_node = 4;
  in.nodes = 1;
  const Communication out = forecast_communication(in, slow_links());
  EXPECT_EQ(out.node_link_bytes, 0);
  EXPECT_DOUBLE_EQ(out.gpu_link_bytes, 12e9 + 6e9);
}

}  // namespace
}  // namespace deltatune
