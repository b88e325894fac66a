#include "th/transfer/ibverbs/attachment_table.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::ibverbs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The registration of memory from an address to an end.
struct Range {
  using Key = std::pair<uint64_t, uint64_t>;
  uint64_t begin = 0, end = 0;
  Key key() const { return {begin, end}; }
  uint64_t bytes() const { return end - begin; }
};
using Table = AttachmentTable<Range>;

Table::Shared New(uint64_t begin, uint64_t end) {
  return std::make_shared<const Range>(Range{begin, end});
}

const Range* FindAround(const Table& table, uint64_t address) {
  return table.FindAt(address, {}, [address](const Range& each) { return address < each.end; });
}

TEST(AttachmentTableTest, WhatTwoAttachmentsHaveEndsWithTheLast) {
  Table table;
  const Table::Shared shared = New(10, 20), own = New(30, 35);
  const uint64_t first = table.Add({shared, own});
  const uint64_t second = table.Add({table.FindSame({10, 20})});
  EXPECT_EQ(table.registrations(), 2u);
  EXPECT_EQ(table.bytes(), 15u);
  EXPECT_THAT(table.Remove(first), ElementsAre(own));
  EXPECT_EQ(table.FindSame({10, 20}), shared);
  EXPECT_THAT(table.Remove(second), ElementsAre(shared));
  EXPECT_EQ(table.FindSame({10, 20}), nullptr);
  EXPECT_EQ(table.bytes(), 0u);
  EXPECT_EQ(table.attachments(), 0u);
}

TEST(AttachmentTableTest, AnUnknownAttachmentIsIgnored) {
  Table table;
  table.Add({New(10, 20)});
  EXPECT_THAT(table.Remove(7), IsEmpty());
  EXPECT_EQ(table.registrations(), 1u);
}

TEST(AttachmentTableTest, TheNearestThatFitsIsFound) {
  Table table;
  table.Add({New(10, 100)});
  table.Add({New(10, 20), New(40, 50)});
  EXPECT_EQ(FindAround(table, 45)->begin, 40u);
  EXPECT_EQ(FindAround(table, 60)->end, 100u) << "behind one that has ended";
  EXPECT_EQ(FindAround(table, 10)->begin, 10u);
  EXPECT_EQ(FindAround(table, 9), nullptr);
  EXPECT_EQ(FindAround(table, 100), nullptr);
}

TEST(AttachmentTableTest, AnOwnerFindsWhatItsOwnAttachmentsHave) {
  constexpr MemoryOwner kWide(1), kNarrow(2), kNobody(3);
  const auto find = [](const Table& table, uint64_t address, MemoryOwner owner) {
    return table.FindAt(address, owner,
                        [address](const Range& each) { return address < each.end; });
  };
  Table table;
  table.Add({New(0, 5), New(10, 100), New(200, 300)}, kWide);
  const uint64_t narrow = table.Add({New(40, 50)}, kNarrow);
  EXPECT_EQ(find(table, 45, kWide)->begin, 10u);
  EXPECT_EQ(find(table, 45, kNarrow)->begin, 40u);
  EXPECT_EQ(find(table, 4, kWide)->begin, 0u);
  EXPECT_EQ(find(table, 60, kNarrow), nullptr);
  EXPECT_EQ(find(table, 150, kWide), nullptr);
  EXPECT_EQ(find(table, 45, kNobody), nullptr);
  const uint64_t again = table.Add({table.FindSame({40, 50})}, kNarrow);
  table.Remove(narrow);
  EXPECT_EQ(find(table, 45, kNarrow)->begin, 40u) << "another attachment of the same owner";
  table.Remove(again);
  EXPECT_EQ(find(table, 45, kNarrow), nullptr);
}

TEST(AttachmentTableTest, NothingIsLookedAtThatIsTooFarAway) {
  Table table;
  table.Add({New(10, 12), New(50, 60)});
  int looked_at = 0;
  table.FindAt(65, {}, [&](const Range&) {
    ++looked_at;
    return false;
  });
  EXPECT_EQ(looked_at, 0);
  table.FindAt(59, {}, [&](const Range&) {
    ++looked_at;
    return false;
  });
  EXPECT_EQ(looked_at, 1);
}

}  // namespace
}  // namespace th::ibverbs
