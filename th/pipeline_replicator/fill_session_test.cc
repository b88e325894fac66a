// Every decision of a fill but those about segments, on a clock of whole milliseconds. Pulls are
// played by hand; outputs are compared as text.
#include "th/pipeline_replicator/fill_session.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "th/weights/checksum.h"

namespace th {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using State = FillSession::SourceState;
using Verdict = PipelineReplicator::SegmentVerdict;

constexpr AssignmentId kFirst(1), kSecond(2), kThird(3);
constexpr SourceIndex kA(0), kB(1), kC(2);
constexpr uint64_t kSegments = 8;

absl::Time At(int64_t milliseconds) {
  return absl::UnixEpoch() + absl::Hours(1) + absl::Milliseconds(milliseconds);
}
SegmentIndex S(uint64_t i) { return SegmentIndex(i); }
SegmentChecksum ChecksumFor(uint64_t i) { return 1000 + i; }

Digest Root() {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < kSegments; ++i) checksums.push_back(ChecksumFor(i));
  return RootOfChecksums(checksums);
}

// Source `letter` at letter:1, letter:2, ...
AssignedSource Source(char letter, int endpoints = 1) {
  AssignedSource source;
  source.buffer = {WorkerId(static_cast<uint64_t>(letter)), BufferId(1)};
  source.generation = BufferGeneration(1);
  for (int i = 1; i <= endpoints; ++i) {
    source.endpoints.push_back(
        {.address = absl::StrCat(std::string(1, letter), ":", i), .transport = "tcp", .site = ""});
  }
  return source;
}

std::string NameOf(BufferAddress buffer) {
  return std::string(1, static_cast<char>(buffer.worker.value));
}

struct InWords {
  std::string operator()(const OpenPull& o) const {
    return absl::StrCat("open ", o.source.value, " at ", o.endpoint.address);
  }
  std::string operator()(const AskPull& o) const {
    return absl::StrCat("ask ", o.source.value, " for ", o.range.begin.value, "-",
                        o.range.end.value);
  }
  std::string operator()(const AskPullChecksums& o) const {
    return absl::StrCat("ask ", o.source.value, " for its list");
  }
  std::string operator()(const FinishPull& o) const {
    return absl::StrCat("finish ", o.source.value);
  }
  std::string operator()(const ClosePull& o) const {
    return absl::StrCat("close ", o.source.value);
  }
  std::string operator()(const FillFirstWrite&) const { return "first write"; }
  std::string operator()(const FillProgressed& o) const {
    return absl::StrCat("holds ", o.held.count());
  }
  std::string operator()(const FillReceived&) const { return "received"; }
  std::string operator()(const FillCompleted& o) const {
    return o.root == Root() ? "complete" : "complete without a root";
  }
  std::string operator()(const FillFailed& o) const {
    return absl::StrCat("failed: ", absl::StatusCodeToString(o.why.code()));
  }
  std::string operator()(const FillSourceFailed& o) const {
    return absl::StrCat("lost ", NameOf(o.source), " of assignment ", o.assignment.value, ", ",
                        static_cast<int>(o.failure), ": ", o.detail);
  }
  std::string operator()(const FillSourceSuspected& o) const {
    return absl::StrCat("suspects ", NameOf(o.source));
  }
  std::string operator()(const FillStopped&) const { return "stopped"; }
};

absl::Status OverTcpAlone(const Endpoint& endpoint) {
  if (endpoint.transport == "tcp") return absl::OkStatus();
  return absl::FailedPreconditionError("not here");
}

class FillSessionTest : public ::testing::Test {
 protected:
  static FillSession::Spec SomeShard(std::optional<Digest> root = std::nullopt,
                                     SegmentSet held = {}) {
    FillSession::Spec spec;
    spec.replicator = {.segment_count = kSegments,
                       .segment_bytes = 1024,
                       .total_bytes = kSegments * 1024,
                       .already_held = std::move(held)};
    for (uint64_t i = 0; i < kSegments; ++i)
      spec.replicator.held_checksums.push_back(ChecksumFor(i));
    spec.reach = OverTcpAlone;
    spec.root = root;
    return spec;
  }
  // Four segments a request, one request at a time.
  static ReplicatorLimits Limits() {
    ReplicatorLimits limits;
    limits.request_bytes = 4 * 1024;
    limits.requests_in_flight = 1;
    return limits;
  }

  std::vector<std::string> Outputs(FillSession& fill, int64_t now) {
    std::vector<std::string> outputs;
    while (const auto output = fill.PollOutput(At(now))) {
      outputs.push_back(std::visit(InWords(), *output));
    }
    return outputs;
  }
  std::vector<std::string> Outputs(int64_t now = 0) { return Outputs(fill_, now); }

  // `source` is asked and has begun to send.
  void Admit(SourceIndex source, int64_t now = 0) {
    fill_.HandleAdmitted(source, At(now));
    Ask(source, now);
  }
  void Ask(SourceIndex source, int64_t now = 0) {
    while (fill_.PollRequest(source, At(now)).has_value()) continue;
  }
  Verdict Give(SourceIndex source, uint64_t i, int64_t now = 0) {
    EXPECT_TRUE(fill_.BeginSegment(source, S(i), At(now)));
    return fill_.HandleSegment(source, S(i), ChecksumFor(i), ChecksumFor(i), At(now));
  }
  Verdict GiveCorrupt(SourceIndex source, uint64_t i, int64_t now = 0) {
    EXPECT_TRUE(fill_.BeginSegment(source, S(i), At(now)));
    return fill_.HandleSegment(source, S(i), ChecksumFor(i), ChecksumFor(i) + 1, At(now));
  }
  void GiveAll(SourceIndex source, uint64_t begin = 0, int64_t now = 0) {
    for (uint64_t i = begin; i < kSegments; ++i) {
      Ask(source, now);
      Give(source, i, now);
    }
  }
  // As SourceIndex(0): opened, admitted and asked.
  void Begin(std::vector<AssignedSource> sources) {
    fill_.SetSources(kFirst, std::move(sources), At(0));
    Outputs();
    Admit(kA);
  }

  FillSession fill_{SomeShard(), Limits(), At(0)};
};

// ---- from the assignment to the end

TEST_F(FillSessionTest, AFillOpensItsSourceAsksItAndIsComplete) {
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_EQ(fill_.NextDeadline(), absl::InfiniteFuture());
  fill_.SetSources(kFirst, {Source('a')}, At(0));
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:1"));
  EXPECT_EQ(fill_.state(kA), State::kOpening);
  EXPECT_EQ(fill_.PollRequest(kA, At(1)), std::nullopt) << "it is not admitted";
  fill_.HandleAdmitted(kA, At(1));
  EXPECT_EQ(fill_.PollRequest(kA, At(1)), (SegmentRange{S(0), S(4)}));
  EXPECT_FALSE(fill_.wrote());
  Give(kA, 0, 2);
  EXPECT_TRUE(fill_.wrote());
  EXPECT_THAT(Outputs(2), ElementsAre("first write"));
  GiveAll(kA, 1, 3);
  EXPECT_THAT(Outputs(3), ElementsAre("close 0", "received"));
  EXPECT_FALSE(fill_.completed());
  fill_.SetRoot(Root());
  EXPECT_THAT(Outputs(4), ElementsAre("complete"));
  EXPECT_TRUE(fill_.completed());
  EXPECT_TRUE(fill_.stopping()) << "by itself";
  fill_.HandleClosed(kA, SourceFailure::kClosed, "closed by the reader");
  EXPECT_THAT(Outputs(5), ElementsAre("stopped"));
  EXPECT_FALSE(fill_.has_output());
}

TEST_F(FillSessionTest, MostSegmentsLeaveNothingToDecide) {
  Begin({Source('a')});
  Give(kA, 0);
  Outputs();
  Give(kA, 1);
  EXPECT_FALSE(fill_.has_output());
}

TEST_F(FillSessionTest, AResumedFillThatHoldsEverythingNeedsNoSource) {
  FillSession fill(SomeShard(Root(), SegmentSet::AllOf(kSegments)), Limits(), At(0));
  EXPECT_TRUE(fill.has_output());
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("received", "complete", "stopped"));
  EXPECT_FALSE(fill.wrote());
}

TEST_F(FillSessionTest, APartIsCompleteWithoutARoot) {
  FillSession::Spec spec = SomeShard(Root());
  spec.replicator.wanted = SegmentSet::AllOf(1);
  FillSession fill(std::move(spec), Limits(), At(0));
  fill.SetSources(kFirst, {Source('a')}, At(0));
  fill.HandleAdmitted(kA, At(0));
  Outputs(fill, 0);
  EXPECT_EQ(fill.PollRequest(kA, At(0)), (SegmentRange{S(0), S(1)}));
  ASSERT_TRUE(fill.BeginSegment(kA, S(0), At(0)));
  fill.HandleSegment(kA, S(0), ChecksumFor(0), ChecksumFor(0), At(0));
  EXPECT_THAT(Outputs(fill, 0),
              ElementsAre("first write", "close 0", "received", "complete without a root"));
}

TEST_F(FillSessionTest, RoomThatIsHandedOnIsAskedFor) {
  FillSession::Spec spec = SomeShard();
  spec.replicator.window_segments = 1;
  FillSession fill(std::move(spec), Limits(), At(0));
  fill.SetSources(kFirst, {Source('a')}, At(0));
  Outputs(fill, 0);
  fill.HandleAdmitted(kA, At(0));
  EXPECT_EQ(fill.PollRequest(kA, At(0)), (SegmentRange{S(0), S(1)}));
  ASSERT_TRUE(fill.BeginSegment(kA, S(0), At(0)));
  fill.HandleSegment(kA, S(0), ChecksumFor(0), ChecksumFor(0), At(0));
  EXPECT_EQ(fill.PollRequest(kA, At(0)), std::nullopt);
  fill.HandleConsumed(S(1));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("first write", "ask 0 for 1-2"));
}

// ---- endpoints

TEST_F(FillSessionTest, TheNextEndpointIsTriedWhileNobodyAnswers) {
  fill_.SetSources(kFirst, {Source('a', 3)}, At(0));
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:1"));
  fill_.HandleClosed(kA, SourceFailure::kConnect, "refused");
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:2"));
  fill_.HandleClosed(kA, SourceFailure::kStalled, "no answer");
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:3"));
  Admit(kA);
  Give(kA, 0);
  EXPECT_THAT(Outputs(), ElementsAre("first write"));
  EXPECT_EQ(fill_.status(At(0)).sources[0].peer, "tcp a:3");
  EXPECT_EQ(DescribePassedOver(fill_.status(At(0)).sources[0].passed_over),
            "tcp: refused; tcp: no answer");
  EXPECT_EQ(fill_.status(At(0)).reroutes, 0);
}

TEST_F(FillSessionTest, ASourceThatAnswersAtNoEndpointIsLostForTheLastReason) {
  fill_.SetSources(kFirst, {Source('a', 2)}, At(0));
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kConnect, "refused");
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kStalled, "no answer");
  const std::optional<FillOutput> lost = fill_.PollOutput(At(0));
  ASSERT_TRUE(lost.has_value() && std::holds_alternative<FillSourceFailed>(*lost));
  EXPECT_EQ(std::get<FillSourceFailed>(*lost).detail, "no answer");
  EXPECT_EQ(std::get<FillSourceFailed>(*lost).endpoint.address, "a:2");
  EXPECT_EQ(fill_.state(kA), State::kClosed);
  EXPECT_FALSE(fill_.has_source());
}

TEST_F(FillSessionTest, EndpointsOfOtherTransportsAreSkipped) {
  AssignedSource source = Source('a', 2);
  source.endpoints[0].transport = "ibverbs";
  fill_.SetSources(kFirst, {source}, At(0));
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:2"));
}

TEST_F(FillSessionTest, ASourceWithoutATransportInCommonIsLostWithWhatItOffers) {
  AssignedSource source = Source('a');
  source.endpoints[0].transport = "ibverbs";
  fill_.SetSources(kFirst, {source}, At(0));
  EXPECT_THAT(Outputs(), ElementsAre("lost a of assignment 1, 1: no transport in common: "
                                     "ibverbs: not here"));
  EXPECT_EQ(fill_.NextDeadline(), absl::InfiniteFuture());
}

// Two endpoints within reach, of different transports.
AssignedSource OfTwoTransports() {
  AssignedSource source = Source('a', 2);
  source.endpoints[0].transport = "same_host";
  return source;
}
FillSession OverAnything(bool strict_transport) {
  FillSession::Spec spec;
  spec.replicator = {
      .segment_count = kSegments, .segment_bytes = 1024, .total_bytes = kSegments * 1024};
  spec.replicator.held_checksums.resize(kSegments);
  spec.reach = [](const Endpoint&) { return absl::OkStatus(); };
  spec.strict_transport = strict_transport;
  return FillSession(std::move(spec), ReplicatorLimits(), At(0));
}

TEST_F(FillSessionTest, AnotherTransportIsTakenWithTheReasonWhereTheFirstDoesNotConnect) {
  FillSession fill = OverAnything(/*strict_transport=*/false);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:1"));
  fill.HandleClosed(kA, SourceFailure::kConnect, "not permitted");
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:2"));
  EXPECT_EQ(fill.status(At(0)).sources[0].transport, "tcp");
  EXPECT_EQ(DescribePassedOver(fill.status(At(0)).sources[0].passed_over),
            "same_host: not permitted");
}

TEST_F(FillSessionTest, ASourceIsLostRatherThanReadOverASlowerTransportWhereThatIsAsked) {
  FillSession fill = OverAnything(/*strict_transport=*/true);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  fill.HandleClosed(kA, SourceFailure::kConnect, "not permitted");
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("lost a of assignment 1, 1: not permitted"));
}

// A source with an endpoint for each of `transports`: a:1, a:2, ... in this order.
AssignedSource SourceOver(const std::vector<std::string>& transports) {
  AssignedSource source = Source('a', static_cast<int>(transports.size()));
  for (size_t i = 0; i < transports.size(); ++i) source.endpoints[i].transport = transports[i];
  return source;
}
// Where same_host leads nowhere, ibverbs should and does not, but at a:9, and all others do.
FillSession WithoutRdma(bool strict_transport) {
  FillSession::Spec spec;
  spec.replicator = {
      .segment_count = kSegments, .segment_bytes = 1024, .total_bytes = kSegments * 1024};
  spec.replicator.held_checksums.resize(kSegments);
  spec.reach = [](const Endpoint& endpoint) -> absl::Status {
    if (endpoint.transport == "same_host") return absl::OutOfRangeError("on another host");
    if (endpoint.transport != "ibverbs" || endpoint.address == "a:9") return absl::OkStatus();
    return absl::FailedPreconditionError("the kernel has no RDMA device");
  };
  spec.strict_transport = strict_transport;
  return FillSession(std::move(spec), ReplicatorLimits(), At(0));
}

TEST_F(FillSessionTest, ATransportThatShouldLeadThereAndDoesNotIsPassedOverWithTheReason) {
  FillSession fill = WithoutRdma(/*strict_transport=*/false);
  fill.SetSources(kFirst, {SourceOver({"same_host", "ibverbs", "tcp"})}, At(0));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:3"));
  EXPECT_EQ(DescribePassedOver(fill.status(At(0)).sources[0].passed_over),
            "same_host: on another host; ibverbs: the kernel has no RDMA device");
}

TEST_F(FillSessionTest, WhereTransportsAreStrictItsSourceIsLostByName) {
  FillSession fill = WithoutRdma(/*strict_transport=*/true);
  fill.SetSources(kFirst, {SourceOver({"same_host", "ibverbs", "tcp"})}, At(0));
  EXPECT_THAT(Outputs(fill, 0),
              ElementsAre("lost a of assignment 1, 1: it is to be read over ibverbs or not at all "
                          "(strict_transport), which cannot be used: the kernel has no RDMA "
                          "device"));
}

// A transport that by its nature does not lead to the source is no reason to refuse the next one.
TEST_F(FillSessionTest, WhereTransportsAreStrictOneThatDoesNotLeadThereIsPassedOver) {
  FillSession fill = WithoutRdma(/*strict_transport=*/true);
  fill.SetSources(kFirst, {SourceOver({"same_host", "tcp"})}, At(0));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:2"));
}

TEST_F(FillSessionTest, WhereTransportsAreStrictAnotherEndpointOfTheSameOneIsTaken) {
  FillSession fill = WithoutRdma(/*strict_transport=*/true);
  AssignedSource source = SourceOver({"ibverbs", "ibverbs", "tcp"});
  source.endpoints[1].address = "a:9";
  fill.SetSources(kFirst, {source}, At(0));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:9"));
  fill.HandleClosed(kA, SourceFailure::kConnect, "no route");
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("lost a of assignment 1, 1: no route"));
}

TEST_F(FillSessionTest, TheWayToASourceDecidesHowMuchIsAskedOfItAtOnce) {
  ReplicatorLimits limits;
  limits.request_bytes = 1024;
  limits.requests_at_first = 3;
  limits.requests_in_flight = 1;
  limits.far_requests_in_flight = 2;
  limits.device_requests_in_flight = 3;
  const auto asked = [&](const std::string& transport, Distance distance) {
    FillSession::Spec spec = SomeShard();
    spec.reach = [](const Endpoint&) { return absl::OkStatus(); };
    spec.device_transports = {"cuda_ipc"};
    FillSession fill(std::move(spec), limits, At(0));
    AssignedSource source = Source('a');
    source.endpoints[0].transport = transport;
    source.distance = distance;
    fill.SetSources(kFirst, {source}, At(0));
    Outputs(fill, 0);
    fill.HandleAdmitted(kA, At(0));
    int requests = 0;
    while (fill.PollRequest(kA, At(0)).has_value()) ++requests;
    return requests;
  };
  EXPECT_EQ(asked("tcp", Distance::kSameHost), 1);
  EXPECT_EQ(asked("tcp", Distance::kOtherSite), 2);
  EXPECT_EQ(asked("cuda_ipc", Distance::kSameHost), 3);
}

TEST_F(FillSessionTest, ASilentSourceIsNotWaitedForAgainOverAnotherTransport) {
  FillSession fill = OverAnything(/*strict_transport=*/false);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  fill.HandleClosed(kA, SourceFailure::kStalled, "silent");
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("lost a of assignment 1, 3: silent"));
}

// A transport that says kConnect of a pull that was admitted means its path: a queue pair in error,
// a link that is down. The source itself may be well.
TEST_F(FillSessionTest, ASourceWhosePathBreaksInMidFillGoesOnOverItsOtherTransport) {
  FillSession fill = OverAnything(/*strict_transport=*/false);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  fill.HandleAdmitted(kA, At(0));
  ASSERT_EQ(fill.PollRequest(kA, At(0)), (SegmentRange{S(0), S(8)}));
  ASSERT_TRUE(fill.BeginSegment(kA, S(0), At(0)));
  fill.HandleSegment(kA, S(0), ChecksumFor(0), ChecksumFor(0), At(0));
  Outputs(fill, 0);
  fill.HandleClosed(kA, SourceFailure::kConnect, "the link is down");
  EXPECT_THAT(Outputs(fill, 1), ElementsAre("open 1 at a:2"));
  fill.HandleAdmitted(kB, At(1));
  EXPECT_EQ(fill.PollRequest(kB, At(1)), (SegmentRange{S(1), S(8)}));
  const FillStatus status = fill.status(At(1));
  ASSERT_EQ(status.sources.size(), 2);
  EXPECT_FALSE(status.sources[0].failed);
  EXPECT_EQ(status.sources[0].failure, "the link is down");
  EXPECT_EQ(DescribePassedOver(status.sources[1].passed_over), "same_host: the link is down");
  EXPECT_EQ(status.sources[1].transport, "tcp");
}

TEST_F(FillSessionTest, ASourceWhosePathBrokeHasOneThroughput) {
  FillSession fill = OverAnything(/*strict_transport=*/false);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  const auto give = [&](SourceIndex source, uint64_t segment) {
    ASSERT_TRUE(fill.BeginSegment(source, S(segment), At(segment)));
    fill.HandleSegment(source, S(segment), ChecksumFor(segment), ChecksumFor(segment), At(segment));
  };
  fill.HandleAdmitted(kA, At(0));
  ASSERT_TRUE(fill.PollRequest(kA, At(0)).has_value());
  give(kA, 0);
  fill.HandleClosed(kA, SourceFailure::kConnect, "the link is down");
  Outputs(fill, 0);
  fill.HandleAdmitted(kB, At(0));
  ASSERT_TRUE(fill.PollRequest(kB, At(0)).has_value());
  give(kB, 1);
  fill.HandleTick(At(60));
  std::optional<FillProgressed> reported;
  while (const std::optional<FillOutput> output = fill.PollOutput(At(60))) {
    if (const auto* progress = std::get_if<FillProgressed>(&*output)) reported = *progress;
  }
  ASSERT_TRUE(reported.has_value());
  ASSERT_EQ(reported->throughputs.size(), 1);
  EXPECT_EQ(reported->throughputs[0].bytes, 2048);
  EXPECT_EQ(reported->transports.ToString(), "same_host, tcp (same_host: the link is down)");
}

TEST_F(FillSessionTest, ASourceWhosePathBreaksIsLostWhereNoOtherMayBeUsed) {
  FillSession fill = OverAnything(/*strict_transport=*/true);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  fill.HandleAdmitted(kA, At(0));
  fill.HandleClosed(kA, SourceFailure::kConnect, "the link is down");
  EXPECT_THAT(Outputs(fill, 1), ElementsAre("lost a of assignment 1, 1: the link is down"));
}

TEST_F(FillSessionTest, TheNextTryDoesNotBeginWhereThePathBroke) {
  FillSession fill = OverAnything(/*strict_transport=*/false);
  fill.SetSources(kFirst, {OfTwoTransports()}, At(0));
  Outputs(fill, 0);
  fill.HandleClosed(kA, SourceFailure::kConnect, "not permitted");
  Outputs(fill, 0);
  fill.HandleAdmitted(kA, At(0));
  fill.HandleClosed(kA, SourceFailure::kClosed, "reset");
  EXPECT_THAT(Outputs(fill, 1), ElementsAre("lost a of assignment 1, 2: reset"));
  fill.SetSources(kSecond, {OfTwoTransports()}, At(2));
  EXPECT_THAT(Outputs(fill, 2), ElementsAre("open 1 at a:2"));
  EXPECT_EQ(DescribePassedOver(fill.status(At(2)).sources[1].passed_over),
            "same_host: not permitted");
}

// A silent process is spared a try over another transport; an endpoint out of reach between two of
// the same transport does not count as one.
TEST_F(FillSessionTest, AnEndpointOutOfReachDoesNotDecideWhereTheNextTryGoes) {
  AssignedSource source = Source('a', 3);
  source.endpoints[1].transport = "ibverbs";  // out of reach
  fill_.SetSources(kFirst, {source}, At(0));
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kStalled, "no answer");
  EXPECT_THAT(Outputs(), ElementsAre("open 0 at a:3"));
}

TEST_F(FillSessionTest, ARefusalIsNotTriedElsewhere) {
  fill_.SetSources(kFirst, {Source('a', 2)}, At(0));
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kRefused, "not yours");
  EXPECT_THAT(Outputs(), ElementsAre("lost a of assignment 1, 4: not yours"));
}

// A source that breaks in mid-fill is reported: the server may know better than this source's next
// endpoint.
TEST_F(FillSessionTest, AnEndpointThatBreaksInMidFillIsReportedAndTheNextTriedOnceNamedAgain) {
  Begin({Source('a', 2)});
  Give(kA, 0);
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  EXPECT_THAT(Outputs(), ElementsAre("lost a of assignment 1, 2: reset"));
  fill_.SetSources(kSecond, {Source('a', 2)}, At(5));
  EXPECT_THAT(Outputs(5), ElementsAre("open 1 at a:1"));
  fill_.HandleClosed(kB, SourceFailure::kConnect, "refused");
  EXPECT_THAT(Outputs(6), ElementsAre("open 1 at a:2"));
  fill_.HandleAdmitted(kB, At(7));
  EXPECT_EQ(fill_.PollRequest(kB, At(7)), (SegmentRange{S(1), S(5)}));
}

// ---- a new assignment

TEST_F(FillSessionTest, ASourceThatIsNamedAgainGoesOn) {
  Begin({Source('a')});
  fill_.SetSources(kSecond, {Source('a'), Source('b')}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("open 1 at b:1"));
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  EXPECT_THAT(Outputs(2), ElementsAre("lost a of assignment 2, 2: reset"));
}

TEST_F(FillSessionTest, TheSameBufferUnderAnotherGenerationIsAnotherSource) {
  Begin({Source('a')});
  AssignedSource again = Source('a');
  again.generation = BufferGeneration(2);
  fill_.SetSources(kSecond, {again}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("finish 0", "open 1 at a:1"));
}

TEST_F(FillSessionTest, ASourceThatIsLetGoSendsWhatItHasBegunAndIsNotBlamed) {
  Begin({Source('a')});
  Give(kA, 0);
  fill_.SetSources(kSecond, {Source('b')}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("first write", "finish 0", "open 1 at b:1"));
  EXPECT_EQ(fill_.state(kA), State::kFinishing);
  EXPECT_EQ(fill_.PollRequest(kA, At(1)), std::nullopt);
  Give(kA, 1, 2);
  fill_.HandleAdmitted(kB, At(2));
  EXPECT_EQ(fill_.PollRequest(kB, At(2)), (SegmentRange{S(4), S(8)})) << "the rest is a's still";
  fill_.HandleClosed(kA, SourceFailure::kClosed, "finished");
  EXPECT_THAT(Outputs(3), IsEmpty());
  const FillStatus status = fill_.status(At(3));
  EXPECT_TRUE(status.sources[0].replaced);
  EXPECT_FALSE(status.sources[0].failed);
  EXPECT_EQ(status.sources[0].bytes, 2 * 1024);
  EXPECT_EQ(status.reroutes, 1);
}

TEST_F(FillSessionTest, ASourceThatIsLetGoAndDoesNotEndIsClosedAfterTheGracefulSwitch) {
  Begin({Source('a')});
  fill_.SetSources(kSecond, {}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("finish 0"));
  for (int64_t now = 20; now < 1000; now += 20) {
    fill_.HandleAlive(kA, At(now));
    fill_.HandleTick(At(now));
    EXPECT_THAT(Outputs(now), ::testing::Not(::testing::Contains("close 0"))) << now;
  }
  fill_.HandleTick(At(1020));
  EXPECT_THAT(Outputs(1020), ElementsAre("close 0"));
}

TEST_F(FillSessionTest, ASourceThatIsLetGoBeforeItIsAdmittedIsClosed) {
  fill_.SetSources(kFirst, {Source('a')}, At(0));
  Outputs();
  fill_.SetSources(kSecond, {Source('b')}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("close 0", "open 1 at b:1"));
  fill_.HandleAdmitted(kA, At(1));  // on its way
  EXPECT_EQ(fill_.PollRequest(kA, At(1)), std::nullopt);
  fill_.HandleClosed(kA, SourceFailure::kClosed, "closed by the reader");
  EXPECT_THAT(Outputs(2), IsEmpty());
}

TEST_F(FillSessionTest, ASourceThatIsLetGoBeforeItWasOpenedIsNotOpened) {
  fill_.SetSources(kFirst, {Source('a')}, At(0));
  fill_.SetSources(kSecond, {Source('b')}, At(0));
  EXPECT_THAT(Outputs(), ElementsAre("open 1 at b:1"));
  EXPECT_EQ(fill_.state(kA), State::kClosed);
}

TEST_F(FillSessionTest, ASourceThatWasLetGoAndIsSetAgainIsOpenedAgain) {
  Begin({Source('a')});
  fill_.SetSources(kSecond, {Source('b')}, At(1));
  fill_.SetSources(kThird, {Source('a')}, At(2));
  EXPECT_THAT(Outputs(2), ElementsAre("finish 0", "open 2 at a:1"));
  EXPECT_EQ(fill_.state(kB), State::kClosed);
  fill_.HandleClosed(kA, SourceFailure::kClosed, "finished");
  fill_.HandleAdmitted(kC, At(3));
  EXPECT_THAT(Outputs(3), ElementsAre("ask 2 for 0-4"));
}

TEST_F(FillSessionTest, WhenTheSourceIsAloneItIsAskedAtOnceForWhatWasCorruptFromIt) {
  Begin({Source('a')});
  EXPECT_EQ(GiveCorrupt(kA, 0), Verdict::kCorrupt);
  for (uint64_t i = 1; i < kSegments; ++i) {
    Ask(kA);
    Give(kA, i);
  }
  EXPECT_THAT(Outputs(), ElementsAre("first write", "suspects a"));
  fill_.SetSources(kSecond, {Source('a')}, At(1));
  EXPECT_THAT(Outputs(1), ElementsAre("ask 0 for 0-1"));
}

// ---- losses

TEST_F(FillSessionTest, WhatALostSourceOwedIsAskedOfTheOthers) {
  Begin({Source('a'), Source('b')});
  Admit(kB);
  Outputs();
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  for (uint64_t i = 4; i < kSegments; ++i) Give(kB, i, 1);
  EXPECT_THAT(Outputs(1),
              ElementsAre("lost a of assignment 1, 2: reset", "first write", "ask 1 for 0-4"));
}

TEST_F(FillSessionTest, ASilentSourceIsClosedReportedAndNotOpenedAgainByItself) {
  Begin({Source('a')});
  std::vector<std::string> outputs;
  for (int64_t now = 20; now <= 400; now += 20) {
    fill_.HandleTick(At(now));
    outputs = Outputs(now);
  }
  EXPECT_THAT(outputs, ElementsAre("close 0", "lost a of assignment 1, 3: silent for 0.4 s"));
  EXPECT_EQ(fill_.state(kA), State::kClosing);
  fill_.HandleClosed(kA, SourceFailure::kClosed, "closed by the reader");
  EXPECT_THAT(Outputs(401), IsEmpty());
  fill_.HandleTick(At(420));
  EXPECT_EQ(fill_.NextDeadline(), absl::InfiniteFuture()) << "nothing depends on time";
  fill_.SetSources(kSecond, {Source('a')}, At(500));
  EXPECT_THAT(Outputs(500), ElementsAre("open 1 at a:1"));
  EXPECT_EQ(fill_.NextDeadline(), At(520));
}

TEST_F(FillSessionTest, APauseOfThisProcessIsNobodysSilence) {
  Begin({Source('a')});
  fill_.HandleTick(At(2020));
  EXPECT_THAT(Outputs(2020), ElementsAre("holds 0"));
  EXPECT_EQ(fill_.state(kA), State::kAdmitted);
}

TEST_F(FillSessionTest, ATickThatIsNotDueIsNothing) {
  Begin({Source('a')});
  fill_.HandleTick(At(19));
  EXPECT_FALSE(fill_.has_output());
}

// ---- the list of sums

FillSession::Spec Republished() {
  FillSession::Spec spec;
  spec.replicator = {
      .segment_count = kSegments, .segment_bytes = 1024, .total_bytes = kSegments * 1024};
  spec.replicator.before = SegmentSet::AllOf(kSegments);
  for (uint64_t i = 0; i < kSegments; ++i)
    spec.replicator.before_checksums.push_back(ChecksumFor(i));
  spec.replicator.before_checksums[3] = 7;
  spec.reach = OverTcpAlone;
  spec.root = Root();
  return spec;
}
std::vector<SegmentChecksum> WholeList() {
  std::vector<SegmentChecksum> checksums;
  for (uint64_t i = 0; i < kSegments; ++i) checksums.push_back(ChecksumFor(i));
  return checksums;
}

TEST_F(FillSessionTest, WhatIsUnchangedIsHeldWithoutAFirstWrite) {
  FillSession::Spec spec = Republished();
  spec.replicator.before_checksums[3] = ChecksumFor(3);
  FillSession fill(std::move(spec), Limits(), At(0));
  fill.SetSources(kFirst, {Source('a')}, At(0));
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("open 0 at a:1"));
  fill.HandleAdmitted(kA, At(0), /*lists_sums=*/true);
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  EXPECT_FALSE(fill.PollRequest(kA, At(0)).has_value());
  fill.HandleChecksums(kA, S(0), WholeList(), At(1));
  EXPECT_EQ(fill.TakeUnchanged(), SegmentSet::AllOf(kSegments));
  EXPECT_THAT(Outputs(fill, 1), ElementsAre("close 0", "received", "complete"));
  EXPECT_FALSE(fill.wrote());
  EXPECT_EQ(fill.status(At(1)).bytes_unchanged, kSegments * 1024);
  EXPECT_EQ(fill.status(At(1)).sources[0].bytes, 0);
}

TEST_F(FillSessionTest, AWrongListLosesItsSourceAndTheNextOneIsAsked) {
  FillSession fill(Republished(), Limits(), At(0));
  fill.SetSources(kFirst, {Source('a'), Source('b')}, At(0));
  Outputs(fill, 0);
  fill.HandleAdmitted(kA, At(0), /*lists_sums=*/true);
  fill.HandleAdmitted(kB, At(0), /*lists_sums=*/true);
  EXPECT_TRUE(fill.PollChecksums(kA, At(0)));
  std::vector<SegmentChecksum> wrong = WholeList();
  wrong[3] = 7;
  fill.HandleChecksums(kA, S(0), wrong, At(1));
  EXPECT_FALSE(fill.PollStartedOver()) << "nothing was held on its word";
  EXPECT_THAT(Outputs(fill, 1),
              ElementsAre("close 0",
                          "lost a of assignment 1, 5: sent bytes or sums that are not the "
                          "version's",
                          "ask 1 for its list"));
  fill.HandleChecksums(kB, S(0), WholeList(), At(2));
  EXPECT_EQ(fill.TakeUnchanged().count(), kSegments - 1);
  EXPECT_THAT(Outputs(fill, 2), ElementsAre("ask 1 for 3-4"));
}

TEST_F(FillSessionTest, TooManyWrongSegmentsLoseTheSource) {
  Begin({Source('a')});
  GiveCorrupt(kA, 0);
  GiveCorrupt(kA, 1);
  EXPECT_THAT(Outputs(), ElementsAre("first write", "close 0",
                                     "lost a of assignment 1, 5: sent bytes or sums that "
                                     "are not the version's"));
  EXPECT_EQ(fill_.status(At(0)).reread_bytes, 2 * 1024);
}

TEST_F(FillSessionTest, AfterTheLossOfTheLastSourceTheFillWaitsAndKeepsWhatItHas) {
  Begin({Source('a')});
  Give(kA, 0);
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  Outputs();
  EXPECT_TRUE(fill_.lacks_segments());
  EXPECT_FALSE(fill_.has_source());
  EXPECT_EQ(fill_.held().count(), 1);
  fill_.SetSources(kSecond, {}, At(1));
  EXPECT_THAT(Outputs(1), IsEmpty());
  fill_.SetSources(kThird, {Source('b')}, At(2));
  Outputs(2);
  fill_.HandleAdmitted(kB, At(2));
  EXPECT_EQ(fill_.PollRequest(kB, At(2)), (SegmentRange{S(1), S(5)}));
  Give(kB, 1, 3);
  EXPECT_EQ(fill_.status(At(3)).rerouted_bytes, 1024);
}

TEST_F(FillSessionTest, ASourceThatClosesWhenEverythingIsReceivedIsNoLoss) {
  Begin({Source('a')});
  GiveAll(kA);
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  EXPECT_THAT(Outputs(), ElementsAre("first write", "received"));
}

// ---- the root

TEST_F(FillSessionTest, AWrongListStartsOverWithoutItsOnlySource) {
  Begin({Source('a'), Source('b')});
  GiveAll(kA);
  EXPECT_FALSE(fill_.PollStartedOver());
  Outputs();
  fill_.SetRoot(Digest{});
  EXPECT_TRUE(fill_.PollStartedOver());
  EXPECT_FALSE(fill_.PollStartedOver());
  EXPECT_TRUE(fill_.held().empty());
  EXPECT_THAT(Outputs(1), ElementsAre("lost a of assignment 1, 5: sent bytes or sums that "
                                      "are not the version's",
                                      "open 2 at b:1"));
}

TEST_F(FillSessionTest, AListThatIsWrongAgainAndAgainFailsTheFill) {
  fill_.SetRoot(Digest{});
  for (uint64_t round = 0; round < 3; ++round) {
    fill_.SetSources(AssignmentId(round + 1), {Source('a')}, At(0));
    const SourceIndex source(static_cast<uint32_t>(round));
    Outputs();
    Admit(source);
    GiveAll(source);
    EXPECT_TRUE(fill_.PollStartedOver());
    if (round < 2) Outputs();
  }
  EXPECT_THAT(Outputs(), ElementsAre("close 2",
                                     "lost a of assignment 3, 5: sent bytes or sums that "
                                     "are not the version's",
                                     "failed: DATA_LOSS"));
  EXPECT_FALSE(fill_.stopping()) << "its owner has to say so";
  fill_.SetSources(AssignmentId(9), {Source('b')}, At(1));
  EXPECT_THAT(Outputs(1), IsEmpty());
}

// ---- progress

TEST_F(FillSessionTest, ProgressIsReportedWithTheThroughputsOfTheSourcesInUse) {
  Begin({Source('a'), Source('b')});
  fill_.HandleClosed(kB, SourceFailure::kConnect, "refused");
  Give(kA, 0);
  Outputs();
  fill_.HandleTick(At(20));
  std::optional<FillOutput> progress = fill_.PollOutput(At(20));
  ASSERT_TRUE(progress.has_value());
  const auto& reported = std::get<FillProgressed>(*progress);
  EXPECT_EQ(reported.bytes_held, 1024);
  ASSERT_EQ(reported.throughputs.size(), 1);
  EXPECT_EQ(reported.throughputs[0].bytes, 1024);
  EXPECT_EQ(reported.transports.ToString(), "tcp");
  Give(kA, 1);
  fill_.HandleTick(At(40));
  EXPECT_THAT(Outputs(40), IsEmpty()) << "too soon";
  fill_.HandleTick(At(80));
  EXPECT_THAT(Outputs(80), ElementsAre("holds 2"));
  fill_.HandleTick(At(160));
  EXPECT_THAT(Outputs(160), IsEmpty()) << "nothing is new";
  fill_.HandleTick(At(340));
  EXPECT_THAT(Outputs(340), ElementsAre("holds 2")) << "it waits";
}

// ---- stopping, at each point

TEST_F(FillSessionTest, StopBeforeAnySourceStopsAtOnce) {
  fill_.Stop();
  fill_.Stop();
  EXPECT_THAT(Outputs(), ElementsAre("stopped"));
  EXPECT_FALSE(fill_.completed());
}

TEST_F(FillSessionTest, StopBeforeASourceIsOpenedOpensNone) {
  fill_.SetSources(kFirst, {Source('a')}, At(0));
  fill_.Stop();
  EXPECT_THAT(Outputs(), ElementsAre("stopped"));
}

TEST_F(FillSessionTest, StopWhileASourceIsOpenedWaitsForItsEndAndTriesNoOtherEndpoint) {
  fill_.SetSources(kFirst, {Source('a', 2)}, At(0));
  Outputs();
  fill_.Stop();
  EXPECT_THAT(Outputs(), ElementsAre("close 0"));
  fill_.HandleClosed(kA, SourceFailure::kConnect, "refused");
  EXPECT_THAT(Outputs(), ElementsAre("stopped"));
}

TEST_F(FillSessionTest, NothingIsWrittenAskedOrReportedAfterStop) {
  Begin({Source('a')});
  Give(kA, 0);
  Outputs();
  GiveCorrupt(kA, 1);  // would be reported
  fill_.Stop();
  EXPECT_FALSE(fill_.BeginSegment(kA, S(2), At(1)));
  EXPECT_EQ(fill_.PollRequest(kA, At(1)), std::nullopt);
  fill_.SetSources(kSecond, {Source('b')}, At(1));
  fill_.SetRoot(Digest{});
  fill_.HandleTick(At(500));
  EXPECT_THAT(Outputs(500), ElementsAre("close 0"));
  fill_.HandleClosed(kA, SourceFailure::kClosed, "reset");
  EXPECT_THAT(Outputs(500), ElementsAre("stopped"));
  EXPECT_EQ(fill_.held().count(), 1) << "what was checked stays";
}

TEST_F(FillSessionTest, AFirstWriteIsReportedAlsoAfterStop) {
  Begin({Source('a')});
  ASSERT_TRUE(fill_.BeginSegment(kA, S(0), At(0)));
  fill_.Stop();
  EXPECT_THAT(Outputs(), ElementsAre("first write", "close 0"));
}

TEST_F(FillSessionTest, StopWhileASourceFinishesClosesIt) {
  Begin({Source('a')});
  fill_.SetSources(kSecond, {}, At(1));
  Outputs(1);
  fill_.Stop();
  EXPECT_THAT(Outputs(2), ElementsAre("close 0"));
}

TEST_F(FillSessionTest, StopBeforeItsOwnerHasHeardThatItIsCompleteLeavesItIncomplete) {
  fill_.SetRoot(Root());
  Begin({Source('a')});
  GiveAll(kA);
  std::vector<std::string> outputs;
  while (outputs.empty() || outputs.back() != "received") {
    outputs.push_back(std::visit(InWords(), *fill_.PollOutput(At(0))));
  }
  fill_.Stop();
  EXPECT_FALSE(fill_.completed());
  fill_.HandleClosed(kA, SourceFailure::kClosed, "closed by the reader");
  EXPECT_THAT(Outputs(), ElementsAre("stopped"));
}

TEST_F(FillSessionTest, StopAfterAFailureStops) {
  FillSession::Spec spec = SomeShard(Digest{}, SegmentSet::AllOf(kSegments));
  ReplicatorLimits limits = Limits();
  limits.root_mismatches = 0;
  FillSession fill(std::move(spec), limits, At(0));
  EXPECT_TRUE(fill.PollStartedOver());
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("failed: DATA_LOSS"));
  fill.Stop();
  EXPECT_THAT(Outputs(fill, 0), ElementsAre("stopped"));
}

}  // namespace
}  // namespace th
