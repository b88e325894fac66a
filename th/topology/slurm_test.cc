#include "th/topology/slurm.h"

#include <string>

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(SlurmRackTest, IsTheSwitchThatTheNodeHangsOn) {
  EXPECT_EQ(SlurmRack("core.rack1.node1", "switch.switch.node"), "rack1");
  EXPECT_EQ(SlurmRack("leaf7.node1", "switch.node"), "leaf7");
  EXPECT_EQ(SlurmRack("a.b.c.n1.example.com", "switch.switch.switch.node"), "c");
}

TEST(SlurmRackTest, IsUnknownWithoutASwitch) {
  EXPECT_EQ(SlurmRack("", ""), "");
  EXPECT_EQ(SlurmRack("node1", "node"), "");
  EXPECT_EQ(SlurmRack("rack1.node1", ""), "");
  EXPECT_EQ(SlurmRack("node1", "switch.node"), "");
  EXPECT_EQ(SlurmRack("rack1.node1", "block.node"), "");
  EXPECT_EQ(SlurmRack(".node1", "switch.node"), "");
  EXPECT_EQ(SlurmRack("rack 1.node1", "switch.node"), "");
}

}  // namespace
}  // namespace th
