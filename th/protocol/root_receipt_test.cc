#include "th/protocol/root_receipt.h"

#include "gtest/gtest.h"

namespace th {
namespace {

ClusterKey KeyOf(uint8_t byte) {
  ClusterKey key;
  key.bytes.fill(byte);
  return key;
}

Digest DigestOf(uint8_t byte) {
  Digest digest;
  digest.bytes.fill(byte);
  return digest;
}

ReceiptSubject Subject() {
  return {.model = {"r1", "qwen"},
          .version = VersionSequence(7),
          .form = "default",
          .layout = DigestOf(3)};
}

TEST(RootReceiptTest, TheServerThatMadeItKnowsItAgain) {
  EXPECT_TRUE(IsGenuine(MakeRootReceipt(KeyOf(1), Subject(), DigestOf(9)), KeyOf(1), Subject()));
}

TEST(RootReceiptTest, NothingElseCanBeProvenWithIt) {
  const RootReceipt receipt = MakeRootReceipt(KeyOf(1), Subject(), DigestOf(9));
  EXPECT_FALSE(IsGenuine(receipt, KeyOf(2), Subject()));
  RootReceipt of_another_root = receipt;
  of_another_root.root = DigestOf(8);
  EXPECT_FALSE(IsGenuine(of_another_root, KeyOf(1), Subject()));
  ReceiptSubject other = Subject();
  other.version = VersionSequence(8);
  EXPECT_FALSE(IsGenuine(receipt, KeyOf(1), other));
  other = Subject();
  other.form = "fp8";
  EXPECT_FALSE(IsGenuine(receipt, KeyOf(1), other));
  other = Subject();
  other.layout = DigestOf(4);
  EXPECT_FALSE(IsGenuine(receipt, KeyOf(1), other));
  other = Subject();
  other.model = {"r1q", "wen"};
  EXPECT_FALSE(IsGenuine(receipt, KeyOf(1), other));
}

TEST(RootReceiptTest, AnEmptyOneIsNone) {
  EXPECT_FALSE(IsGenuine(RootReceipt{}, KeyOf(1), Subject()));
}

}  // namespace
}  // namespace th
