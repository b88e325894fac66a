#include "th/memory/memory_mappings.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ParseMappingsTest, OneMappingALine) {
  EXPECT_THAT(ParseMappings("00400000-00452000 r-xp 00000000 08:02 173521   /usr/bin/dbus-daemon\n"
                            "7f0000001000-7f0000003000 rw-p 00000000 00:00 0 \n"
                            "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n"),
              ElementsAre(MemoryMapping{0x400000, 0x452000, true, true},
                          MemoryMapping{0x7f0000001000, 0x7f0000003000, true, false},
                          MemoryMapping{0xffffffffff600000, 0xffffffffff601000, false, false}));
}

TEST(ParseMappingsTest, WhatIsNoLineIsLeftOut) {
  EXPECT_THAT(ParseMappings(""), IsEmpty());
  EXPECT_THAT(ParseMappings("\n-\n1-\n-1 r\n5-4 r\nx-y r\n1-2-3 r\n1 2\n2-3"),
              ElementsAre(MemoryMapping{2, 3}));
}

}  // namespace
}  // namespace th
