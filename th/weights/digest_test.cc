#include "th/weights/digest.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

// FIPS 180-4's own examples.
constexpr char kOfNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr char kOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(DigestTest, IsSha256) {
  EXPECT_EQ(Sha256("").ToHex(), kOfNothing);
  EXPECT_EQ(Sha256("abc").ToHex(), kOfAbc);
}

TEST(DigestTest, DoesNotDependOnHowTheBytesAreCut) {
  DigestBuilder builder;
  builder.Update("a");
  builder.Update("");
  builder.Update("bc");
  EXPECT_EQ(builder.Finish(), Sha256("abc"));
}

TEST(DigestTest, ReadsWhatItWrites) {
  const Digest digest = Sha256("abc");
  EXPECT_THAT(Digest::FromHex(digest.ToHex()), IsOkAndHolds(digest));
  EXPECT_THAT(Digest::FromBytes(std::string(digest.bytes.begin(), digest.bytes.end())),
              IsOkAndHolds(digest));
  EXPECT_EQ(digest.ShortHex(), "ba7816bf8f01");
}

TEST(DigestTest, RefusesTextThatIsNoDigest) {
  const std::string good = kOfAbc;
  for (const std::string& text :
       {std::string(), good.substr(1), good + "0", "g" + good.substr(1), " " + good.substr(1)}) {
    EXPECT_THAT(Digest::FromHex(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 hexadecimal digits")))
        << text;
  }
}

TEST(DigestTest, RefusesOtherNumbersOfBytes) {
  EXPECT_THAT(Digest::FromBytes(std::string(31, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, "a digest has 32 bytes, not 31"));
  EXPECT_THAT(Digest::FromBytes(std::string(33, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DigestTest, NoDigestIsEmpty) {
  EXPECT_TRUE(Digest().empty());
  EXPECT_FALSE(Sha256("").empty());
}

}  // namespace
}  // namespace th
