#include "th/wire/wire.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/wire/field_reader.h"
#include "th/wire/message_equality.h"
#include "th/wire/message_generator.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

constexpr int kRounds = 200;

// The message as the peer reads it: through bytes, as on the wire.
template <typename Message>
Message ThroughBytes(const Message& message) {
  Message out;
  EXPECT_TRUE(out.ParseFromString(message.SerializeAsString()));
  return out;
}

class WorkerMessageTest : public ::testing::TestWithParam<size_t> {};

TEST_P(WorkerMessageTest, EveryFieldSurvives) {
  for (int round = 0; round < kRounds; ++round) {
    MessageGenerator generator(static_cast<uint32_t>(round));
    const WorkerMessage message = generator.MakeWorkerMessage(GetParam());
    ASSERT_OK_AND_ASSIGN(const auto out, FromProto(ThroughBytes(ToProto(message))));
    ASSERT_TRUE(out.has_value());
    ASSERT_TRUE(*out == message) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Alternatives, WorkerMessageTest,
                         ::testing::Range(size_t{0}, std::variant_size_v<WorkerMessage>));

class ServerMessageTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ServerMessageTest, EveryFieldSurvives) {
  for (int round = 0; round < kRounds; ++round) {
    MessageGenerator generator(static_cast<uint32_t>(round));
    const ServerMessage message = generator.MakeServerMessage(GetParam());
    ASSERT_OK_AND_ASSIGN(const auto out, FromProto(ThroughBytes(ToProto(message))));
    ASSERT_TRUE(out.has_value());
    ASSERT_TRUE(*out == message) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Alternatives, ServerMessageTest,
                         ::testing::Range(size_t{0}, std::variant_size_v<ServerMessage>));

TEST(CatalogTest, EveryFieldSurvives) {
  for (int round = 0; round < kRounds; ++round) {
    const Catalog catalog = MessageGenerator(static_cast<uint32_t>(round)).MakeCatalog();
    ASSERT_OK_AND_ASSIGN(const Catalog out, FromProto(ThroughBytes(ToProto(catalog))));
    ASSERT_TRUE(out == catalog) << "round " << round;
  }
}

TEST(RecentEventsTest, EveryFieldSurvives) {
  for (int round = 0; round < kRounds; ++round) {
    const RecentEvents events = MessageGenerator(static_cast<uint32_t>(round)).MakeEvents();
    ASSERT_OK_AND_ASSIGN(const RecentEvents out, FromProto(ThroughBytes(ToProto(events))));
    ASSERT_TRUE(out == events) << "round " << round;
  }
}

TEST(RecentEventsTest, AKindFromTheFutureIsKept) {
  pb::EventsResponse response = ToProto(RecentEvents{.events = {{.number = 1}}});
  response.mutable_events(0)->set_kind(4711);
  ASSERT_OK_AND_ASSIGN(const RecentEvents out, FromProto(response));
  EXPECT_EQ(EventKindName(out.events.at(0).kind), "event");
}

TEST(RankCostTest, AWorkerOfBeforeHasNone) {
  pb::WorkerToServer frame =
      ToProto(WorkerMessage(RankDone{{BufferId(1), OperationNumber(2)}, 3, {}}));
  frame.mutable_rank_done()->clear_cost();
  ASSERT_OK_AND_ASSIGN(const auto message, FromProto(frame));
  EXPECT_EQ(std::get<RankDone>(*message).cost, RankCost());
}

TEST(RankCostTest, ANegativeStallIsRefused) {
  pb::WorkerToServer frame =
      ToProto(WorkerMessage(RankDone{{BufferId(1), OperationNumber(2)}, 3, {}}));
  frame.mutable_rank_done()->mutable_cost()->mutable_verify()->set_seconds(-1);
  EXPECT_THAT(FromProto(frame),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank_done.cost.verify")));
}

TEST(RankCostTest, MoreKindsOfSourcesThanAllowedAreCutBySendersAndRefusedByReceivers) {
  RankDone done{{BufferId(1), OperationNumber(2)}, 0, {}};
  done.cost.fill.received.resize(kMaxReceivedKinds + 1, {.transport = "tcp", .bytes = 1});
  pb::WorkerToServer frame = ToProto(WorkerMessage(done));
  EXPECT_OK(FromProto(frame));
  auto& received = *frame.mutable_rank_done()->mutable_cost()->mutable_fill()->mutable_received();
  *received.Add() = received.Get(0);
  EXPECT_THAT(FromProto(frame), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("rank_done.cost.fill.received")));
}

TEST(ControllerRequestTest, EveryFieldSurvives) {
  const ProtocolHello hello{1, 2, 3, "th"};
  const ModelKey key{"r1", "qwen3"};
  ASSERT_OK_AND_ASSIGN(const ListQuery list, FromProto(ToProto(ListQuery{hello, "r1", "m", true})));
  EXPECT_TRUE(list.hello == hello && list.run == "r1" && list.model == "m" && list.omit_attributes);
  ASSERT_OK_AND_ASSIGN(const ResolveQuery resolve,
                       FromProto(ToProto(ResolveQuery{hello, key, VersionSequence(7)})));
  EXPECT_TRUE(resolve.hello == hello && resolve.key == key);
  EXPECT_EQ(resolve.selector, VersionSelector(VersionSequence(7)));
  ASSERT_OK_AND_ASSIGN(const WaitQuery wait,
                       FromProto(ToProto(WaitQuery{hello, key, LatestVersion{}, VersionSequence(4),
                                                   absl::Milliseconds(1500)})));
  EXPECT_TRUE(wait.hello == hello && wait.key == key);
  EXPECT_EQ(wait.after, VersionSequence(4));
  EXPECT_EQ(wait.timeout, absl::Milliseconds(1500));
  const RunCommand run{"k", SetRetention{3}};
  ASSERT_OK_AND_ASSIGN(const ControllerCommand command,
                       FromProto(ToProto(ControllerCommand{hello, key, run, "secret"})));
  EXPECT_TRUE(command.hello == hello && command.key == key && command.command == run);
  EXPECT_EQ(command.credentials, "secret");
  ASSERT_OK_AND_ASSIGN(
      const EventsQuery events,
      FromProto(ToProto(EventsQuery{hello, "r1", "m", EventId::Of(Epoch(7), 12), 3, 100})));
  EXPECT_TRUE(events.hello == hello && events.run == "r1" && events.model == "m");
  EXPECT_EQ(events.id, EventId::Of(Epoch(7), 12));
  EXPECT_EQ(events.after, 3u);
  EXPECT_EQ(events.limit, 100u);
  ASSERT_OK_AND_ASSIGN(const LayoutQuery layout,
                       FromProto(ToProto(LayoutQuery{hello, Sha256("x")})));
  EXPECT_TRUE(layout.hello == hello && layout.digest == Sha256("x"));
  ASSERT_OK_AND_ASSIGN(const FindShardQuery find,
                       FromProto(ToProto(FindShardQuery{
                           hello, {key, VersionSequence(7), "engine", "trainer", Rank(3)}})));
  EXPECT_TRUE(find.hello == hello && find.shard.key == key);
  EXPECT_EQ(find.shard.selector, VersionSelector(VersionSequence(7)));
  EXPECT_EQ(find.shard.form, "engine");
  EXPECT_EQ(find.shard.group, "trainer");
  EXPECT_EQ(find.shard.rank, Rank(3));
}

TEST(ControllerRequestTest, AFoundShardHasALayoutOrAReasonWhyThereIsNone) {
  ASSERT_OK_AND_ASSIGN(const FoundShard found,
                       FromProto(ToProto(FoundShard{.layout = Sha256("x")})));
  EXPECT_EQ(found.layout, Sha256("x"));
  EXPECT_EQ(found.not_available, NotAvailableReason::kNone);
  ASSERT_OK_AND_ASSIGN(const FoundShard gone,
                       FromProto(ToProto(FoundShard{.not_available = NotAvailableReason::kGone})));
  EXPECT_EQ(gone.not_available, NotAvailableReason::kGone);
  EXPECT_THAT(FromProto(pb::FindShardResponse()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layout")));
}

TEST(ControllerRequestTest, AClaimOfAFormSaysWhoMakesItAndForHowLong) {
  const FormQuery asked{{"r1", "m"}, VersionSequence(7), "engine", "rollout-1", absl::Seconds(90)};
  ASSERT_OK_AND_ASSIGN(const ClaimFormQuery query, FromProto(ToProto(ClaimFormQuery{{}, asked})));
  EXPECT_EQ(query.form.key, asked.key);
  EXPECT_EQ(query.form.selector, asked.selector);
  EXPECT_EQ(query.form.form, "engine");
  EXPECT_EQ(query.form.group, "rollout-1");
  EXPECT_EQ(query.form.claim, absl::Seconds(90));
  ASSERT_OK_AND_ASSIGN(const FormChoice choice,
                       FromProto(ToProto(FormChoice{
                           {.sequence = VersionSequence(7)}, FormMaker::kAnother, "rollout-2"})));
  EXPECT_EQ(choice.version.sequence, VersionSequence(7));
  EXPECT_EQ(choice.maker, FormMaker::kAnother);
  EXPECT_EQ(choice.group, "rollout-2");
  pb::ClaimFormResponse without = ToProto(FormChoice{{.sequence = VersionSequence(7)}});
  without.clear_maker();
  EXPECT_THAT(FromProto(without), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("maker")));
}

// ---------------------------------------------------------------------------------------------
// Senders stay within the limits

SegmentSet Combed(uint64_t teeth) {
  SegmentSet set;
  for (uint64_t i = 0; i < teeth; ++i) set.Add(SegmentIndex(2 * i));
  return set;
}

TEST(SegmentSetTest, AsManyRangesAsAllowedSurvive) {
  const SegmentSet set = Combed(kMaxRangesOnWire);
  EXPECT_THAT(FromProto(ToProto(set)), IsOkAndHolds(set));
}

TEST(SegmentSetTest, MoreRangesAreCoarsenedToTheLongest) {
  SegmentSet set = Combed(kMaxRangesOnWire + 100);
  set.Add({SegmentIndex(50'000), SegmentIndex(60'000)});
  ASSERT_OK_AND_ASSIGN(const SegmentSet out, FromProto(ToProto(set)));
  EXPECT_EQ(out.ranges().size(), kMaxRangesOnWire);
  EXPECT_TRUE(out.ContainsAll({SegmentIndex(50'000), SegmentIndex(60'000)}));
  for (const SegmentRange& range : out.ranges()) EXPECT_TRUE(set.ContainsAll(range));
}

TEST(SegmentSetTest, AWatermarkTakesAFewBytes) {
  EXPECT_LE(ToProto(SegmentSet::AllOf(65'536)).ByteSizeLong(), 8u);
}

TEST(DurationTest, WhatIsOutOfRangeIsClamped) {
  EXPECT_EQ(ToProto(absl::InfiniteDuration()).seconds(), absl::ToInt64Seconds(kMaxDurationOnWire));
  EXPECT_EQ(ToProto(absl::Seconds(-3)).seconds(), 0);
  EXPECT_EQ(ToProto(-absl::InfiniteDuration()).nanos(), 0);
}

TEST(StatusOnWireTest, UnknownCodesBecomeUnknown) {
  pb::Status status;
  status.set_code(4711);
  status.set_message("from the future");
  EXPECT_THAT(StatusFromProto(status), StatusIs(absl::StatusCode::kUnknown, "from the future"));
}

TEST(StatusOnWireTest, MessagesAreCutAndMadeUtf8) {
  const pb::Status status =
      ToProto(absl::InternalError(absl::StrCat("bad \xff byte ", std::string(100'000, 'x'))));
  EXPECT_THAT(status.message(), StartsWith("bad \xEF\xBF\xBD byte xxx"));
  EXPECT_EQ(status.message().size(), kMaxProseBytesOnWire);
}

// ---------------------------------------------------------------------------------------------
// Versions N and N+1 of the protocol

TEST(NextVersionTest, UnknownFieldsAreBorne) {
  std::string bytes =
      ToProto(WorkerMessage(RankDone{{BufferId(1), OperationNumber(2)}, 3})).SerializeAsString();
  const size_t known_bytes = bytes.size();
  bytes += std::string("\xc2\x3e\x03new", 6);  // field 1000, length-delimited
  pb::WorkerToServer frame;
  ASSERT_TRUE(frame.ParseFromString(bytes));
  ASSERT_GT(frame.ByteSizeLong(), known_bytes);
  ASSERT_OK_AND_ASSIGN(const auto message, FromProto(frame));
  EXPECT_TRUE(*message == WorkerMessage(RankDone{{BufferId(1), OperationNumber(2)}, 3}));
}

TEST(NextVersionTest, UnknownFieldsInsideAMessageAreBorne) {
  pb::WorkerToServer frame;
  frame.mutable_heartbeat()->ParseFromString(std::string("\xc2\x3e\x03new", 6));
  ASSERT_OK_AND_ASSIGN(const auto message, FromProto(ThroughBytes(frame)));
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(*message));
}

TEST(NextVersionTest, AFrameOfAnUnknownKindIsToBeIgnored) {
  pb::WorkerToServer from_worker;
  ASSERT_TRUE(from_worker.ParseFromString(std::string("\x9a\x06\x00", 3)));  // member 99
  EXPECT_THAT(FromProto(from_worker), IsOkAndHolds(Eq(std::nullopt)));
  pb::ServerToWorker from_server;
  ASSERT_TRUE(from_server.ParseFromString(std::string("\x9a\x06\x00", 3)));
  EXPECT_THAT(FromProto(from_server), IsOkAndHolds(Eq(std::nullopt)));
}

TEST(NextVersionTest, AClaimAndAnAnswerWithoutAClusterAreThoseOfAnOlderPeer) {
  pb::WorkerToServer join = ToProto(
      WorkerMessage(JoinRequest{.hello = {1, 1},
                                .key = {"r", "m"},
                                .name = {"g", Rank(0)},
                                .ranks = 1,
                                .resume = ResumeClaim{.worker = WorkerId(5), .epoch = Epoch(2)}}));
  join.mutable_join()->mutable_resume()->clear_secret();
  ASSERT_OK_AND_ASSIGN(const auto message, FromProto(ThroughBytes(join)));
  const ResumeClaim& claim = *std::get<JoinRequest>(*message).resume;
  EXPECT_EQ(claim.worker, WorkerId(5));
  EXPECT_EQ(claim.cluster, ClusterId());
  EXPECT_TRUE(claim.secret == MembershipSecret{});
  pb::ServerToWorker joined = ToProto(ServerMessage(Joined{.hello = {1, 1}, .epoch = Epoch(2)}));
  joined.mutable_joined()->clear_secret();
  EXPECT_OK(FromProto(ThroughBytes(joined)));
}

TEST(NextVersionTest, ASecretOfAnotherLengthIsRefused) {
  pb::ServerToWorker joined = ToProto(ServerMessage(Joined{.hello = {1, 1}, .epoch = Epoch(2)}));
  joined.mutable_joined()->set_secret("short");
  EXPECT_THAT(FromProto(joined), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("secret")));
}

TEST(NextVersionTest, WhatAnOlderPeerSaysOfRootsHasNoReceipt) {
  const RootReceipt receipt{.root = Digest{}, .code = {1}};
  pb::ServerToWorker known = ToProto(ServerMessage(RootKnown{.receipt = receipt}));
  known.mutable_root_known()->clear_receipt();
  ASSERT_OK_AND_ASSIGN(const auto from_server, FromProto(ThroughBytes(known)));
  EXPECT_FALSE(std::get<RootKnown>(*from_server).receipt.has_value());
  AnnouncedBuffer holder{.buffer = BufferId(1), .buffer_name = "weights", .form = "default"};
  holder.held = HeldVersion{.root = Digest{}, .receipt = receipt};
  holder.held->version.label = *VersionLabel::Parse("step-1");
  pb::WorkerToServer announced = ToProto(WorkerMessage(RegisterBuffer{holder}));
  ASSERT_OK(FromProto(ThroughBytes(announced)));
  announced.mutable_register_buffer()->mutable_buffer()->mutable_held()->clear_receipt();
  ASSERT_OK_AND_ASSIGN(const auto from_worker, FromProto(ThroughBytes(announced)));
  EXPECT_FALSE(std::get<RegisterBuffer>(*from_worker).buffer.held->receipt.has_value());
}

TEST(NextVersionTest, AReceiptOfAnotherLengthIsRefused) {
  pb::ServerToWorker known = ToProto(ServerMessage(RootKnown{.receipt = RootReceipt{}}));
  known.mutable_root_known()->mutable_receipt()->set_code("short");
  EXPECT_THAT(FromProto(known),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("receipt.code")));
}

ProtocolHello Speaks(uint32_t min_version, uint32_t max_version) {
  return {.min_version = min_version, .max_version = max_version};
}

TEST(NextVersionTest, APeerThatSpeaksTheNextVersionTooAgreesOnThisOne) {
  ASSERT_OK_AND_ASSIGN(const ProtocolHello peer, FromProto(ToProto(Speaks(1, 2))));
  EXPECT_THAT(AgreeOnVersion(Speaks(1, 1), peer), IsOkAndHolds(1u));
}

TEST(NextVersionTest, APeerThatSpeaksOnlyTheNextVersionIsRefusedWithBothRanges) {
  ASSERT_OK_AND_ASSIGN(const ProtocolHello peer, FromProto(ToProto(Speaks(2, 3))));
  EXPECT_THAT(AgreeOnVersion(Speaks(1, 1), peer),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("versions 1 to 1"), HasSubstr("versions 2 to 3"))));
}

TEST(NextVersionTest, UnknownFeatureBitsAreKept) {
  ASSERT_OK_AND_ASSIGN(const ProtocolHello peer,
                       FromProto(ToProto(ProtocolHello{1, 1, ~uint64_t{0}, ""})));
  EXPECT_EQ(peer.features, ~uint64_t{0});
}

// ---------------------------------------------------------------------------------------------
// Hostile frames

struct HostileCase {
  const char* name;
  size_t alternative;
  std::function<void(pb::WorkerToServer&)> spoil;
  const char* message;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

// A valid frame with everything optional in it.
pb::WorkerToServer FullFrame(size_t alternative) {
  for (uint32_t seed = 0;; ++seed) {
    pb::WorkerToServer frame = ToProto(MessageGenerator(seed).MakeWorkerMessage(alternative));
    if (alternative == 0 && frame.join().buffers().empty()) continue;
    if (alternative == 0 && !frame.join().buffers(0).has_held()) continue;
    if (alternative == 0 && !frame.join().buffers(0).has_last_finished()) continue;
    if (alternative == 12 && !frame.run_command().has_pin_version()) continue;
    return frame;
  }
}

class HostileWorkerTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileWorkerTest, IsRefusedNamingTheField) {
  pb::WorkerToServer frame = FullFrame(GetParam().alternative);
  ASSERT_OK(FromProto(frame));
  GetParam().spoil(frame);
  EXPECT_THAT(FromProto(frame), StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

using Frame = pb::WorkerToServer;

void AddRuns(pb::SegmentSet& set, std::initializer_list<uint64_t> runs) {
  set.Clear();
  for (const uint64_t run : runs) set.add_runs(run);
}

const HostileCase kHostileJoins[] = {
    {"NoHello", 0, [](Frame& f) { f.mutable_join()->clear_hello(); }, "join.hello: is missing"},
    {"NoKey", 0, [](Frame& f) { f.mutable_join()->clear_key(); }, "join.key: is missing"},
    {"EmptyRun", 0, [](Frame& f) { f.mutable_join()->mutable_key()->clear_run(); },
     "join.key.run: "},
    {"RunWithNewline", 0, [](Frame& f) { f.mutable_join()->mutable_key()->set_run("a\nb"); },
     "join.key.run: "},
    {"LongModel", 0,
     [](Frame& f) { f.mutable_join()->mutable_key()->set_model(std::string(257, 'm')); },
     "join.key.model: "},
    {"NoName", 0, [](Frame& f) { f.mutable_join()->clear_name(); }, "join.name: is missing"},
    {"EmptyGroup", 0, [](Frame& f) { f.mutable_join()->mutable_name()->clear_group(); },
     "join.name.group: "},
    {"LongSite", 0,
     [](Frame& f) { f.mutable_join()->mutable_location()->set_site(std::string(300, 's')); },
     "join.location.site: has 300 bytes, at most 256"},
    {"NegativeNumaNode", 0,
     [](Frame& f) { f.mutable_join()->mutable_location()->set_numa_node(-2); },
     "join.location.numa_node: is negative"},
    {"TooManyNics", 0,
     [](Frame& f) {
       for (int i = 0; i < 65; ++i) f.mutable_join()->mutable_location()->add_nics("n");
     },
     "join.location.nics: has "},
    {"TooManyEndpoints", 0,
     [](Frame& f) {
       while (f.join().endpoints_size() < 65) f.mutable_join()->add_endpoints();
     },
     "join.endpoints: has 65 entries, at most 64"},
    {"EndpointWithoutAddress", 0,
     [](Frame& f) { f.mutable_join()->mutable_endpoints(0)->clear_address(); },
     "join.endpoints[0].address: is missing"},
    {"LongCredentials", 0,
     [](Frame& f) { f.mutable_join()->set_credentials(std::string(65'537, 'c')); },
     "join.credentials: has 65537 bytes"},
    {"TooManyBuffers", 0,
     [](Frame& f) {
       while (f.join().buffers_size() < 1025) {
         *f.mutable_join()->add_buffers() = f.join().buffers(0);
       }
     },
     "join.buffers: has 1025 entries"},
    {"LongForm", 0,
     [](Frame& f) { f.mutable_join()->mutable_buffers(0)->set_form(std::string(300, 'f')); },
     "join.buffers[0].form: "},
    {"ShortLayoutDigest", 0,
     [](Frame& f) { f.mutable_join()->mutable_buffers(0)->set_layout("short"); },
     "join.buffers[0].layout: has 5 bytes, not 32"},
    {"ShortRoot", 0,
     [](Frame& f) { f.mutable_join()->mutable_buffers(0)->mutable_held()->set_root("r"); },
     "join.buffers[0].held.root: has 1 bytes, not 32"},
    {"HugeSegmentCount", 0,
     [](Frame& f) { f.mutable_join()->mutable_buffers(0)->set_segment_count(~uint64_t{0}); },
     "join.buffers[0].segment_count: is too large"},
    {"SegmentsBeyondTheShard", 0,
     [](Frame& f) {
       AddRuns(*f.mutable_join()->mutable_buffers(0)->mutable_held()->mutable_segments(),
               {5000, 1});
     },
     "join.buffers[0].held.segments: go beyond segment_count"},
    {"UnknownKind", 0,
     [](Frame& f) {
       f.mutable_join()->mutable_buffers(0)->mutable_last_finished()->set_kind(
           static_cast<pb::OperationKind>(9));
     },
     "join.buffers[0].last_finished.kind: has the unknown value 9"},
    {"BadLabelInside", 0,
     [](Frame& f) {
       f.mutable_join()->mutable_buffers(0)->mutable_held()->mutable_version()->set_label("a b");
     },
     "join.buffers[0].held.version.label: "},
    {"ComponentsInside", 0,
     [](Frame& f) {
       f.mutable_join()
           ->mutable_buffers(0)
           ->mutable_held()
           ->mutable_version()
           ->add_components()
           ->set_name("lora/x");
     },
     "held.version.components: is reserved", absl::StatusCode::kUnimplemented},
};
INSTANTIATE_TEST_SUITE_P(Join, HostileWorkerTest, ::testing::ValuesIn(kHostileJoins),
                         [](const auto& param) { return std::string(param.param.name); });

const HostileCase kHostileOthers[] = {
    {"NoBuffer", 1, [](Frame& f) { f.mutable_register_buffer()->clear_buffer(); },
     "register_buffer.buffer: is missing"},
    {"GarbageLayout", 2, [](Frame& f) { f.mutable_layout_upload()->set_layout("garbage"); },
     "layout_upload.layout: "},
    {"NoOperationKey", 3, [](Frame& f) { f.mutable_start_operation()->clear_key(); },
     "start_operation.key: is missing"},
    {"NoKind", 3, [](Frame& f) { f.mutable_start_operation()->clear_kind(); },
     "start_operation.kind: has the unknown value 0"},
    {"NoTimeout", 3, [](Frame& f) { f.mutable_start_operation()->clear_timeout(); },
     "start_operation.timeout: is missing"},
    {"NegativeTimeout", 3,
     [](Frame& f) { f.mutable_start_operation()->mutable_timeout()->set_seconds(-1); },
     "start_operation.timeout: is negative"},
    {"NegativeNanos", 3,
     [](Frame& f) { f.mutable_start_operation()->mutable_timeout()->set_nanos(-1); },
     "start_operation.timeout: "},
    {"TooManyNanos", 3,
     [](Frame& f) { f.mutable_start_operation()->mutable_timeout()->set_nanos(1'000'000'000); },
     "start_operation.timeout: "},
    {"EndlessTimeout", 3,
     [](Frame& f) {
       f.mutable_start_operation()->mutable_timeout()->set_seconds(
           std::numeric_limits<int64_t>::max());
     },
     "start_operation.timeout: "},
    {"LongLabel", 3,
     [](Frame& f) { f.mutable_start_operation()->set_label(std::string(129, 'l')); },
     "start_operation.label: "},
    {"LabelLatest", 3, [](Frame& f) { f.mutable_start_operation()->set_label("latest"); },
     "start_operation.label: "},
    {"LargeAttributes", 3,
     [](Frame& f) {
       f.mutable_start_operation()->add_attributes()->set_value(std::string(1 << 20, 'v') + "v");
     },
     "start_operation.attributes: "},
    {"AttributeTwice", 3,
     [](Frame& f) {
       f.mutable_start_operation()->add_attributes()->set_key("same");
       f.mutable_start_operation()->add_attributes()->set_key("same");
     },
     "start_operation.attributes: name one key twice"},
    {"UpdateWithoutSelector", 3,
     [](Frame& f) {
       f.mutable_start_operation()->set_kind(pb::OPERATION_KIND_UPDATE);
       f.mutable_start_operation()->clear_selector();
     },
     "start_operation.selector: is missing"},
    {"EmptySelector", 3, [](Frame& f) { f.mutable_start_operation()->mutable_selector()->Clear(); },
     "start_operation.selector.selector: is missing or unknown"},
    {"SequenceZero", 3,
     [](Frame& f) { f.mutable_start_operation()->mutable_selector()->set_sequence(0); },
     "start_operation.selector.sequence: is zero"},
    {"Components", 3, [](Frame& f) { f.mutable_start_operation()->add_components(); },
     "start_operation.components: is reserved", absl::StatusCode::kUnimplemented},
    {"BaseVersion", 3, [](Frame& f) { f.mutable_start_operation()->set_base_version(7); },
     "start_operation.base_version: is reserved", absl::StatusCode::kUnimplemented},
    {"ReadyWithoutKey", 4, [](Frame& f) { f.mutable_ready_to_fill()->clear_key(); },
     "ready_to_fill.key: is missing"},
    {"SealedWithoutRoot", 5, [](Frame& f) { f.mutable_shard_sealed()->clear_root(); },
     "shard_sealed.root: has 0 bytes, not 32"},
    {"RunsEndAbsent", 6,
     [](Frame& f) {
       AddRuns(*f.mutable_fill_progress()->mutable_segments(), {0, 5, 3});
     },
     "fill_progress.segments.runs: end with an absent one"},
    {"EmptyRunOfSegments", 6,
     [](Frame& f) {
       AddRuns(*f.mutable_fill_progress()->mutable_segments(), {0, 5, 0, 3});
     },
     "fill_progress.segments.runs: have an empty one at 2"},
    {"OverflowingRuns", 6,
     [](Frame& f) {
       AddRuns(*f.mutable_fill_progress()->mutable_segments(), {~uint64_t{0}, ~uint64_t{0}});
     },
     "fill_progress.segments.runs: are too long together"},
    {"TooManyRuns", 6,
     [](Frame& f) {
       pb::SegmentSet& set = *f.mutable_fill_progress()->mutable_segments();
       set.Clear();
       for (size_t i = 0; i < 2 * kMaxRangesOnWire + 2; ++i) set.add_runs(1);
     },
     "fill_progress.segments.runs: are 2050, at most 2048"},
    {"DoneWithoutKey", 7, [](Frame& f) { f.mutable_rank_done()->clear_key(); },
     "rank_done.key: is missing"},
    {"FailedWithoutFailure", 8, [](Frame& f) { f.mutable_rank_failed()->clear_status(); },
     "rank_failed.status: is OK"},
    {"NoSource", 9, [](Frame& f) { f.mutable_source_failed()->clear_source(); },
     "source_failed.source: is missing"},
    {"FormWithNewline", 12,
     [](Frame& f) { f.mutable_run_command()->mutable_pin_version()->set_form("a\nb"); },
     "run_command.pin_version.form: "},
    {"RetentionFormWithNewline", 12,
     [](Frame& f) { f.mutable_run_command()->mutable_set_retention()->set_form("a\nb"); },
     "run_command.set_retention.form: "},
    {"SuspectWithoutKey", 15, [](Frame& f) { f.mutable_source_suspected()->clear_key(); },
     "source_suspected.key: is missing"},
    {"SuspectWithoutSource", 15, [](Frame& f) { f.mutable_source_suspected()->clear_source(); },
     "source_suspected.source: is missing"},
    {"PreemptWithoutDeadline", 16, [](Frame& f) { f.mutable_preempt()->clear_deadline(); },
     "preempt.deadline: is missing"},
    {"UnknownFailure", 9,
     [](Frame& f) { f.mutable_source_failed()->set_failure(static_cast<pb::SourceFailure>(77)); },
     "source_failed.failure: has the unknown value 77"},
    {"NegativeFailure", 9,
     [](Frame& f) { f.mutable_source_failed()->set_failure(static_cast<pb::SourceFailure>(-1)); },
     "source_failed.failure: has the unknown value -1"},
    {"NoIdempotencyKey", 12, [](Frame& f) { f.mutable_run_command()->clear_idempotency_key(); },
     "run_command.idempotency_key: is missing"},
    {"LongIdempotencyKey", 12,
     [](Frame& f) { f.mutable_run_command()->set_idempotency_key(std::string(129, 'k')); },
     "run_command.idempotency_key: has 129 bytes, at most 128"},
    {"NoCommand", 12, [](Frame& f) { f.mutable_run_command()->clear_pin_version(); },
     "run_command.command: is missing or unknown"},
    {"PinOfNothing", 12,
     [](Frame& f) { f.mutable_run_command()->mutable_pin_version()->clear_version(); },
     "run_command.pin_version.version: is missing"},
};
INSTANTIATE_TEST_SUITE_P(Others, HostileWorkerTest, ::testing::ValuesIn(kHostileOthers),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(HostileServerTest, AShortCapabilityIsRefused) {
  pb::ServerToWorker frame;
  for (uint32_t seed = 0; frame.assign_sources().sources().empty(); ++seed) {
    frame = ToProto(MessageGenerator(seed).MakeServerMessage(5));
  }
  frame.mutable_assign_sources()->mutable_sources(0)->mutable_capability()->set_mac("mac");
  EXPECT_THAT(FromProto(frame),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("assign_sources.sources[0].capability.mac: has 3 bytes")));
}

TEST(HostileServerTest, AnUnknownDistanceIsRefused) {
  pb::ServerToWorker frame;
  for (uint32_t seed = 0; frame.assign_sources().sources().empty(); ++seed) {
    frame = ToProto(MessageGenerator(seed).MakeServerMessage(5));
  }
  for (const int distance : {0, 7, -1}) {
    frame.mutable_assign_sources()->mutable_sources(0)->set_distance(
        static_cast<pb::Distance>(distance));
    EXPECT_THAT(FromProto(frame), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("assign_sources.sources[0].distance")));
  }
}

TEST(HostileServerTest, AShortKeyIsRefused) {
  pb::ServerToWorker frame = ToProto(MessageGenerator(1).MakeServerMessage(0));
  frame.mutable_joined()->set_capability_key("k");
  EXPECT_THAT(FromProto(frame),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("joined.capability_key")));
}

TEST(HostileControllerTest, CallsWithoutHelloAreRefused) {
  EXPECT_THAT(FromProto(pb::ListRequest()),
              StatusIs(absl::StatusCode::kInvalidArgument, "hello: is missing"));
  EXPECT_THAT(FromProto(pb::ResolveRequest()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FromProto(pb::WaitVersionRequest()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FromProto(pb::CommandRequest()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FromProto(pb::GetLayoutRequest()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FromProto(pb::FindShardRequest()), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace th
