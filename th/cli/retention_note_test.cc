#include "th/cli/retention_note.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ModelKey kModel = {.run = "r1", .model = "m"};
const VersionSequence kHeld = VersionSequence::Of(Epoch(1), 2),
                      kLost = VersionSequence::Of(Epoch(1), 1);

Catalog TwoVersions() {
  CatalogVersion held, lost;
  held.info.sequence = kHeld;
  held.replicas = {{.group = "trainer", .form = "hf"}, {.group = "rollout", .form = "fused"}};
  lost.info.sequence = kLost;
  return {.models = {{.key = kModel, .versions = {held, lost}}}};
}

TEST(RetentionNoteTest, APolicyForWhatThereIsNeedsNoNote) {
  EXPECT_THAT(NoteOnPolicy(TwoVersions(), kModel, ""), IsEmpty());
  EXPECT_THAT(NoteOnPolicy(TwoVersions(), kModel, "fused"), IsEmpty());
}

TEST(RetentionNoteTest, AFormThatNobodyHasIsNamedBesideThoseThatThereAre) {
  EXPECT_THAT(NoteOnPolicy(TwoVersions(), kModel, "fp8"),
              HasSubstr("in form fp8 (held: fused, hf)"));
  EXPECT_THAT(NoteOnPin(TwoVersions(), kModel, kHeld, "fp8"),
              HasSubstr("in form fp8 (held: fused, hf)"));
  EXPECT_THAT(NoteOnPin(TwoVersions(), kModel, kHeld, "hf"), IsEmpty());
}

TEST(RetentionNoteTest, AModelWithoutVersionsAndAVersionWithoutHoldersAreToldOf) {
  EXPECT_THAT(NoteOnPolicy({}, kModel, ""), HasSubstr("no version yet"));
  EXPECT_THAT(NoteOnPin(TwoVersions(), kModel, kLost, ""), HasSubstr("brings nothing back"));
  EXPECT_THAT(NoteOnPin(TwoVersions(), kModel, kHeld, ""), IsEmpty());
}

}  // namespace
}  // namespace th
