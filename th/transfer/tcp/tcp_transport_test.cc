#include "th/transfer/tcp/tcp_transport.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/process_threads.h"
#include "testing/status_matchers.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/stream/raw_peer.h"
#include "th/transfer/stream/stall_watch.h"
#include "th/transfer/test_peers.h"

namespace th::stream {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using ::th::testing::GatedSink;
using ::th::testing::kHolderWorker;
using ::th::testing::PatientLimits;
using ::th::testing::StatusIs;
using ::th::testing::TestHolder;
using ::th::testing::TestShard;
using ::th::testing::TestSink;
using ::th::testing::ThreadsOfThisProcess;

std::unique_ptr<Transport> NewTransport(const TransportLimits& limits) {
  auto transport = NewTcpTransport({.limits = limits});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

// ---- creation

struct BadOptionsCase {
  const char* name;
  TcpOptions options;
  absl::StatusCode code;
  const char* message;
};
class BadOptionsTest : public ::testing::TestWithParam<BadOptionsCase> {};
TEST_P(BadOptionsTest, AreRefusedWithWhatIsWrong) {
  EXPECT_THAT(NewTcpTransport(GetParam().options).status(),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}
INSTANTIATE_TEST_SUITE_P(All, BadOptionsTest,
                         ::testing::Values(BadOptionsCase{"name",
                                                          {.listen_address = "localhost:0"},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "'localhost:0' is no numeric address"},
                                           BadOptionsCase{"no_port",
                                                          {.listen_address = "127.0.0.1"},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "with a port"},
                                           BadOptionsCase{"port_too_high",
                                                          {.listen_address = "127.0.0.1:65536"},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "65536"},
                                           BadOptionsCase{"wildcard",
                                                          {.listen_address = "0.0.0.0:0"},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "under which others reach"},
                                           BadOptionsCase{"advertised",
                                                          {.advertised_hosts = {"not an address"}},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "not an address"},
                                           BadOptionsCase{"no_thread",
                                                          {.limits = {.data_threads = 0}},
                                                          absl::StatusCode::kInvalidArgument,
                                                          "data_threads is 0"},
                                           BadOptionsCase{"not_ours",
                                                          {.listen_address = "192.0.2.1:0"},
                                                          absl::StatusCode::kUnavailable,
                                                          "cannot listen for data on 192.0.2.1:0"}),
                         [](const auto& info) { return info.param.name; });

TEST(TcpTransportTest, PortThatIsTakenIsNamed) {
  auto first = NewTransport(PatientLimits());
  const std::string address = first->endpoints()[0].address;
  EXPECT_THAT(NewTcpTransport({.listen_address = address}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

TEST(TcpTransportTest, AdvertisedHostsGetThePort) {
  ASSERT_OK_AND_ASSIGN(auto transport, NewTcpTransport({.listen_address = "0.0.0.0:0",
                                                        .advertised_hosts = {"10.0.0.7", "fd00::7"},
                                                        .limits = PatientLimits()}));
  ASSERT_EQ(transport->endpoints().size(), 2);
  ASSERT_OK_AND_ASSIGN(const SocketAddress first,
                       SocketAddress::Parse(transport->endpoints()[0].address));
  EXPECT_NE(first.port(), 0);
  EXPECT_EQ(transport->endpoints()[0].address, absl::StrCat("10.0.0.7:", first.port()));
  EXPECT_EQ(transport->endpoints()[1].address, absl::StrCat("[fd00::7]:", first.port()));
}

// ---- fairness

TEST(TcpTransportTest, AListThatIsStillToBeSummedHoldsUpNoOtherReader) {
  TransportLimits limits = PatientLimits();
  limits.data_threads = 1;
  auto source = NewTransport(limits);
  auto reader = NewTransport(limits);
  TestShard published({.tensor_bytes = {uint64_t{192} << 20}, .segment_bytes = 1 << 20});
  TestShard received({.tensor_bytes = {uint64_t{192} << 20}, .segment_bytes = 1 << 20});
  published.store()->Publish(BufferGeneration(1));  // nothing is summed yet
  TestHolder holder(published.store());
  source->AddHolder(kHolderWorker, &holder);
  const PullTarget target =
      holder.Target(source->endpoints()[0], published.store()->shared_layout());
  TestSink lister(&received), other(&received);
  auto list = reader->Open(target, &lister);
  auto segments = reader->Open(target, &other);
  lister.AwaitAdmitted();
  other.AwaitAdmitted();
  list->AskChecksums();
  lister.AwaitChecksums(1);
  segments->Ask({SegmentIndex(0), SegmentIndex(1)});
  other.AwaitSegments(1);
  EXPECT_LT(lister.AwaitChecksums(1).size(), published.segment_count());
  lister.AwaitChecksums(published.segment_count());
  list->Close();
  segments->Close();
  lister.AwaitClosed();
  other.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
}

// ---- a guest in its host's process

TEST(TcpTransportTest, ThreadsAreAsManyAsAskedNamedAndBlockSignals) {
  TransportLimits limits = PatientLimits();
  limits.data_threads = 3;
  // Their end leaves none behind. One after the other takes a connection, and a thread names itself
  // first thing: who is greeted on the third knows that all three run.
  for (int round = 0; round < 2; ++round) {
    auto transport = NewTransport(limits);
    for (uint32_t i = 0; i < limits.data_threads; ++i) {
      RawConnection::To(transport->endpoints()[0].address).ReceiveA<Hello>();
    }
    std::vector<std::string> data_threads;
    for (const auto& [id, thread] : ThreadsOfThisProcess()) {
      if (thread.name.rfind("th-data-", 0) != 0) continue;
      data_threads.push_back(thread.name);
      EXPECT_TRUE(thread.Blocks(SIGTERM)) << thread.name;
      EXPECT_TRUE(thread.Blocks(SIGINT)) << thread.name;
    }
    EXPECT_THAT(data_threads, UnorderedElementsAre("th-data-0", "th-data-1", "th-data-2"));
  }
}

TEST(TcpTransportTest, NoDescriptorSurvivesAnExec) {
  auto transport = NewTransport(PatientLimits());
  RawConnection peer = RawConnection::To(transport->endpoints()[0].address);
  peer.ReceiveA<Hello>();
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    int fd = 0;
    if (!absl::SimpleAtoi(entry->d_name, &fd) || fd <= 2 || fd == dirfd(folder)) continue;
    char target[64] = {};
    if (readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target) - 1) < 0)
      continue;
    const std::string kind = target;
    if (kind.rfind("socket:", 0) != 0 && kind.rfind("anon_inode:", 0) != 0) continue;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << kind;
  }
  closedir(folder);
}

// ---- hostile readers

class HostileReaderTest : public ::testing::Test {
 protected:
  HostileReaderTest() { Serve(PatientLimits()); }
  ~HostileReaderTest() override { transport_.reset(); }

  void Serve(const TransportLimits& limits) {
    transport_.reset();
    transport_ = NewTransport(limits);
    transport_->AddHolder(kHolderWorker, &holder_);
  }
  RawConnection Connect() { return RawConnection::To(transport_->endpoints()[0].address); }
  PullTarget Target() const {
    return holder_.Target(transport_->endpoints()[0], shard_.store()->shared_layout());
  }

  TestShard shard_{TestShard::Spec{}};
  TestHolder holder_{[this] {
    shard_.FillWith(1);
    shard_.store()->Publish(BufferGeneration(1));
    return shard_.store();
  }()};
  std::unique_ptr<Transport> transport_;
};

struct HostileWordsCase {
  const char* name;
  std::string words;
  const char* answer;
};
class HostileWordsTest : public HostileReaderTest,
                         public ::testing::WithParamInterface<HostileWordsCase> {};
TEST_P(HostileWordsTest, AreAnsweredWithTheReasonAndTheEnd) {
  RawConnection peer = Connect();
  peer.Send(GetParam().words);
  const std::optional<Close> close = peer.ReceiveA<Close>();
  ASSERT_TRUE(close.has_value());
  EXPECT_THAT(close->why, HasSubstr(GetParam().answer));
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_TRUE(holder_.admitted().empty());
}
const std::string kGreeting = Encode(Hello{OwnHello()});
INSTANTIATE_TEST_SUITE_P(
    All, HostileWordsTest,
    ::testing::Values(
        HostileWordsCase{"http", "GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
                         "bad data frame"},
        HostileWordsCase{"no_greeting", Encode(Ask{{SegmentIndex(0), SegmentIndex(1)}}),
                         "first frame is no Hello"},
        HostileWordsCase{"two_greetings", kGreeting + kGreeting, "second Hello"},
        HostileWordsCase{"ask_unadmitted",
                         kGreeting + Encode(Ask{{SegmentIndex(0), SegmentIndex(1)}}),
                         "before it was admitted"},
        HostileWordsCase{"sources_word", kGreeting + Encode(Admitted{}), "readers never send"},
        HostileWordsCase{"future_version", Encode(Hello{{.min_version = 7, .max_version = 9}}),
                         "7"}),
    [](const auto& info) { return info.param.name; });

// Its answer may have megabytes, and waits for who does not read.
TEST_F(HostileReaderTest, MappingIsAskedForOnce) {
  RawConnection peer = Connect();
  peer.SayHelloAndOpen(Target());
  ASSERT_TRUE(peer.ReceiveA<Admitted>().has_value());
  peer.Send(Encode(AskMapping{}) + Encode(AskMapping{}));
  const std::optional<Close> close = peer.ReceiveA<Close>();
  ASSERT_TRUE(close.has_value());
  EXPECT_THAT(close->why, HasSubstr("asked for a mapping a second time"));
}

TEST_F(HostileReaderTest, ReaderThatNeverSpeaksIsClosed) {
  TransportLimits limits = PatientLimits();
  limits.admission_timeout = absl::Milliseconds(30);
  Serve(limits);
  RawConnection silent = Connect();
  EXPECT_TRUE(silent.AwaitEnd());
}

TEST_F(HostileReaderTest, ReaderThatSpeaksTooSlowlyIsClosed) {
  TransportLimits limits = PatientLimits();
  limits.admission_timeout = absl::Milliseconds(30);
  Serve(limits);
  RawConnection slow = Connect();
  slow.Send(kGreeting.substr(0, 5));
  EXPECT_TRUE(slow.AwaitEnd());
}

TEST_F(HostileReaderTest, ConnectionsBeyondTheLimitAreClosedAtOnce) {
  TransportLimits limits = PatientLimits();
  limits.max_inbound_connections = 2;
  Serve(limits);
  auto first = std::make_unique<RawConnection>(Connect());
  RawConnection second = Connect();
  ASSERT_TRUE(first->ReceiveA<Hello>().has_value());
  ASSERT_TRUE(second.ReceiveA<Hello>().has_value());
  RawConnection third = Connect();
  EXPECT_TRUE(third.AwaitEnd());
  EXPECT_FALSE(third.Receive().has_value());
  // A connection that ends makes room.
  first->Send(kGreeting + Encode(Close{}));
  EXPECT_TRUE(first->AwaitEnd());
  RawConnection fourth = Connect();
  EXPECT_TRUE(fourth.ReceiveA<Hello>().has_value());
}

TEST_F(HostileReaderTest, ConnectionsOfOnePeerBeyondItsLimitAreRefusedWithTheReason) {
  TransportLimits limits = PatientLimits();
  limits.max_connections_per_peer = 1;
  Serve(limits);
  RawConnection first = Connect();
  ASSERT_TRUE(first.ReceiveA<Hello>().has_value());
  RawConnection second = Connect();
  second.SayHelloAndOpen(Target(), {1, 2, 3});
  const std::optional<Refused> refused = second.ReceiveA<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("127.0.0.1"), HasSubstr("max_connections_per_peer"))));
  EXPECT_TRUE(holder_.admitted().empty());
  // Another peer is served meanwhile.
  Socket elsewhere(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto own = SocketAddress::Parse("127.0.0.2:0");
  const auto address = SocketAddress::Parse(transport_->endpoints()[0].address);
  ASSERT_EQ(bind(elsewhere.fd(), own->get(), own->size()), 0);
  ASSERT_EQ(connect(elsewhere.fd(), address->get(), address->size()), 0);
  RawConnection other(std::move(elsewhere));
  other.SayHelloAndOpen(Target(), {4, 5, 6});
  EXPECT_TRUE(other.ReceiveA<Admitted>().has_value());
}

TEST_F(HostileReaderTest, ListenerOutlivesAProcessWithoutDescriptors) {
  RawConnection before = Connect();
  ASSERT_TRUE(before.ReceiveA<Hello>().has_value());
  Socket waiting(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto address = SocketAddress::Parse(transport_->endpoints()[0].address);
  const int connected = connect(waiting.fd(), address->get(), address->size());
  // The connection that is open goes on; the listener has met EMFILE by the time this is refused
  // and closed.
  before.Send("garbage that is long enough for a header");
  EXPECT_TRUE(before.ReceiveA<Close>().has_value());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_EQ(connected, 0);
  RawConnection after(std::move(waiting));
  EXPECT_TRUE(after.ReceiveA<Hello>().has_value());
}

TEST_F(HostileReaderTest, JoiningAPullThatWasNeverAdmittedIsRefused) {
  RawConnection peer = Connect();
  peer.SayHelloAndOpen(Target(), {1, 2, 3}, /*joins=*/true);
  const std::optional<Refused> refused = peer.ReceiveA<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_F(HostileReaderTest, JoiningWithAnotherCapabilityIsRefused) {
  RawConnection first = Connect();
  first.SayHelloAndOpen(Target(), {1, 2, 3});
  ASSERT_TRUE(first.ReceiveA<Admitted>().has_value());
  PullTarget forged = Target();
  forged.capability.mac[0] ^= 1;
  RawConnection second = Connect();
  second.SayHelloAndOpen(forged, {1, 2, 3}, /*joins=*/true);
  EXPECT_TRUE(second.ReceiveA<Refused>().has_value());
  RawConnection third = Connect();
  third.SayHelloAndOpen(Target(), {1, 2, 3}, /*joins=*/true);
  EXPECT_TRUE(third.ReceiveA<Admitted>().has_value());
  EXPECT_EQ(holder_.admitted().size(), 1);
}

TEST_F(HostileReaderTest, ConnectionsOfOnePullAreLimited) {
  std::vector<std::unique_ptr<RawConnection>> peers;
  for (size_t i = 0; i < 8; ++i) {
    peers.push_back(std::make_unique<RawConnection>(Connect()));
    peers.back()->SayHelloAndOpen(Target(), {9}, /*joins=*/i > 0);
    ASSERT_TRUE(peers.back()->ReceiveA<Admitted>().has_value()) << i;
  }
  RawConnection ninth = Connect();
  ninth.SayHelloAndOpen(Target(), {9}, /*joins=*/true);
  const std::optional<Refused> refused = ninth.ReceiveA<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status.code(), absl::StatusCode::kResourceExhausted);
  // The transfer is released when the last one goes, and only then.
  EXPECT_TRUE(holder_.released().empty());
  peers.clear();
  holder_.AwaitReleased(1);
}

TEST_F(HostileReaderTest, ReaderThatTakesNothingDoesNotStopOthers) {
  TestShard big(TestShard::Spec{.tensor_bytes = {24'000'000}, .segment_bytes = 1 << 20});
  TestHolder holder(big.store());
  holder.set_worker(WorkerId(5));
  big.FillWith(2);
  big.store()->Publish(BufferGeneration(1));
  transport_->AddHolder(WorkerId(5), &holder);
  std::vector<std::unique_ptr<RawConnection>> stuck;
  for (int i = 0; i < 4; ++i) {  // on every loop
    stuck.push_back(std::make_unique<RawConnection>(Connect()));
    stuck.back()->SayHelloAndOpen(
        holder.Target(transport_->endpoints()[0], big.store()->shared_layout()));
    ASSERT_TRUE(stuck.back()->ReceiveA<Admitted>().has_value());
    stuck.back()->Send(Encode(Ask{big.all()}));
  }
  TestShard received{TestShard::Spec{}};
  TestSink sink(&received);
  auto reader = NewTransport(PatientLimits());
  auto pull = reader->Open(Target(), &sink);
  pull->Ask(shard_.all());
  sink.AwaitSegments(shard_.segment_count());
  EXPECT_TRUE(received.Equals(shard_));
  transport_->CutTransfer(holder.admitted()[0]);
  holder.AwaitReleased(1);
  stuck.clear();
  pull->Close();
  sink.AwaitClosed();
  transport_->RemoveHolder(WorkerId(5));
}

// ---- hostile sources

struct HostileSourceCase {
  const char* name;
  std::function<void(RawConnection&, const TestShard&)> serve;
  SourceFailure failure;
  const char* detail;
};
class HostileSourceTest : public ::testing::TestWithParam<HostileSourceCase> {};

TEST_P(HostileSourceTest, EndsThePullWithTheReason) {
  TestShard shard{TestShard::Spec{}}, received{TestShard::Spec{}};
  shard.FillWith(1);
  TestHolder holder(shard.store());
  RawSource source([&](RawConnection& connection) {
    GetParam().serve(connection, shard);
    connection.AwaitEnd();
  });
  TransportLimits limits = PatientLimits();
  limits.admission_silence = absl::Milliseconds(100);
  auto reader = NewTransport(limits);
  TestSink sink(&received);
  auto pull = reader->Open(
      holder.Target({.address = source.address()}, shard.store()->shared_layout()), &sink);
  pull->Ask({SegmentIndex(0), SegmentIndex(4)});
  const auto [failure, detail] = sink.AwaitClosed();
  EXPECT_EQ(failure, GetParam().failure) << detail;
  EXPECT_THAT(detail, HasSubstr(GetParam().detail));
  for (const auto& [segment, good] : sink.segments()) {
    EXPECT_TRUE(good);
    EXPECT_EQ(received.BytesOf(segment), shard.BytesOf(segment));
  }
}

void SendHeader(RawConnection& connection, const SegmentHeader& header) {
  const RawHeader raw = EncodeSegmentHeader(header);
  connection.Send(std::string(reinterpret_cast<const char*>(raw.data()), raw.size()));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileSourceTest,
    ::testing::Values(
        HostileSourceCase{"silent_before_admission", [](RawConnection&, const TestShard&) {},
                          SourceFailure::kStalled, "silent"},
        HostileSourceCase{"garbage",
                          [](RawConnection& c, const TestShard&) { c.Send(std::string(64, 'x')); },
                          SourceFailure::kCorrupt, "bad data frame"},
        HostileSourceCase{"other_version",
                          [](RawConnection& c, const TestShard&) {
                            c.Send(Encode(Hello{{.min_version = 8, .max_version = 9}}));
                          },
                          SourceFailure::kRefused, "8"},
        HostileSourceCase{"no_greeting",
                          [](RawConnection& c, const TestShard&) { c.Send(Encode(Admitted{})); },
                          SourceFailure::kCorrupt, "first frame is no Hello"},
        HostileSourceCase{
            "places_in_memory",
            [](RawConnection& connection, const TestShard& shard) {
              connection.ReceiveA<Open>();
              connection.Send(Encode(Hello{OwnHello()}));
              connection.Send(Encode(Admitted{BufferGeneration(1), ControlPlace{.address = 64}}));
              connection.ReceiveA<Ask>();
              connection.Send(Encode(Located{.segment = SegmentIndex(0),
                                             .generation = BufferGeneration(1),
                                             .pieces = {{64, 65'536}}}));
            },
            SourceFailure::kCorrupt, "Located"},
        HostileSourceCase{"admits_twice",
                          [](RawConnection& c, const TestShard&) {
                            c.Admit();
                            c.Send(Encode(Admitted{}));
                          },
                          SourceFailure::kCorrupt, "admitted twice"},
        HostileSourceCase{"segment_not_asked",
                          [](RawConnection& c, const TestShard& shard) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            c.SendSegment(shard, SegmentIndex(5));
                          },
                          SourceFailure::kCorrupt, "segment 5 came"},
        HostileSourceCase{"segment_twice",
                          [](RawConnection& c, const TestShard& shard) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            c.SendSegment(shard, SegmentIndex(0));
                            c.SendSegment(shard, SegmentIndex(0));
                          },
                          SourceFailure::kCorrupt, "segment 0 came"},
        HostileSourceCase{"wrong_length",
                          [](RawConnection& c, const TestShard&) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            SendHeader(c, {SegmentIndex(0), 65'537, 0, BufferGeneration(1)});
                          },
                          SourceFailure::kCorrupt, "65537 bytes instead of 65536"},
        HostileSourceCase{"other_generation",
                          [](RawConnection& c, const TestShard&) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            SendHeader(c, {SegmentIndex(0), 65'536, 0, BufferGeneration(2)});
                          },
                          SourceFailure::kGenerationChanged, "from generation 1 to 2"},
        HostileSourceCase{"readers_word",
                          [](RawConnection& c, const TestShard&) {
                            c.Admit();
                            c.Send(Encode(Ask{{SegmentIndex(0), SegmentIndex(1)}}));
                          },
                          SourceFailure::kCorrupt, "sources never send"},
        HostileSourceCase{"closes_with_a_reason",
                          [](RawConnection& c, const TestShard& shard) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            c.SendSegment(shard, SegmentIndex(0));
                            c.Send(Encode(Close{"going to bed"}));
                          },
                          SourceFailure::kClosed, "going to bed"},
        HostileSourceCase{"dies_within_a_segment",
                          [](RawConnection& c, const TestShard& shard) {
                            c.Admit();
                            c.ReceiveA<Ask>();
                            c.SendSegment(shard, SegmentIndex(0));
                            SendHeader(c, {SegmentIndex(1), 65'536, 0, BufferGeneration(1)});
                            c.Send(std::string(1000, 'y'));
                            shutdown(c.fd(), SHUT_WR);
                          },
                          SourceFailure::kClosed, "closed the connection"}),
    [](const auto& info) { return info.param.name; });

// The pause is under way when the source goes: what the reader took came before it.
TEST(TcpTransportTest, AReaderThatStoodStillWhenItsSourceWentSaysSo) {
  const TestShard shard({}), received({});
  const TestHolder holder(shard.store());
  RawSource source([&](RawConnection& connection) {
    connection.Admit();
    connection.ReceiveA<Ask>();
    connection.SendPartOfSegment(shard, SegmentIndex(0), 0);
    shutdown(connection.fd(), SHUT_WR);
    connection.AwaitEnd();
  });
  const auto reader = NewTransport(PatientLimits());
  GatedSink sink(&received);
  const auto pull = reader->Open(
      holder.Target({.address = source.address()}, shard.store()->shared_layout()), &sink);
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  sink.AwaitEntered();
  absl::SleepFor(kStalledTime + kKeptTime);  // what the reader tells of
  sink.GoOn();
  const auto [failure, detail] = sink.AwaitClosed();
  EXPECT_EQ(failure, SourceFailure::kClosed);
  EXPECT_THAT(detail, HasSubstr("in the middle of segment 0; this process took none of its bytes"));
}

TEST(TcpTransportTest, EndpointThatIsNoNumericAddressIsAFailureToConnect) {
  TestShard shard{TestShard::Spec{}};
  TestHolder holder(shard.store());
  auto reader = NewTransport(PatientLimits());
  TestSink sink(&shard);
  auto pull = reader->Open(
      holder.Target({.address = "example.com:80"}, shard.store()->shared_layout()), &sink);
  EXPECT_THAT(sink.AwaitClosed(), Pair(SourceFailure::kConnect, HasSubstr("example.com")));
}

// ---- volume

struct VolumeCase {
  const char* name;
  uint32_t connections;
  std::vector<uint64_t> tensor_bytes;
  uint64_t segment_bytes;
};
class VolumeTest : public ::testing::TestWithParam<VolumeCase> {};
TEST_P(VolumeTest, ArrivesWholeInOneTransfer) {
  TransportLimits limits = PatientLimits();
  limits.connections_per_pull = GetParam().connections;
  const TestShard::Spec spec{.tensor_bytes = GetParam().tensor_bytes,
                             .segment_bytes = GetParam().segment_bytes};
  TestShard shard(spec), received(spec);
  shard.FillWith(8);
  shard.store()->Publish(BufferGeneration(1));
  TestHolder holder(shard.store());
  auto source = NewTransport(limits), reader = NewTransport(limits);
  source->AddHolder(kHolderWorker, &holder);
  TestSink sink(&received);
  auto pull =
      reader->Open(holder.Target(source->endpoints()[0], shard.store()->shared_layout()), &sink);
  sink.AwaitAdmitted();
  for (uint64_t i = 0; i < shard.segment_count(); i += 8) {
    const uint64_t end = std::min(i + 8, shard.segment_count());
    pull->Ask({SegmentIndex(i), SegmentIndex(end)});
    sink.AwaitSegments(i / 2);  // keeps the requests within their limit
  }
  sink.AwaitSegments(shard.segment_count());
  EXPECT_TRUE(received.Equals(shard));
  EXPECT_THAT(sink.segments(), Each(Pair(::testing::_, true)));
  EXPECT_EQ(source->counters().transfers_served, 1);
  pull->Close();
  sink.AwaitClosed();
  holder.AwaitReleased(1);
}
INSTANTIATE_TEST_SUITE_P(
    All, VolumeTest,
    ::testing::Values(VolumeCase{"one_connection", 1, {20'000'000}, 256 << 10},
                      VolumeCase{"two_connections", 2, {20'000'000}, 256 << 10},
                      VolumeCase{"four_connections", 4, {9'000'000, 17, 9'000'000}, 1 << 20},
                      VolumeCase{"many_tiny_tensors", 2, std::vector<uint64_t>(5000, 1777),
                                 256 << 10},
                      VolumeCase{"tiny_segments", 2, {8'500'000}, 4096 * 16}),
    [](const auto& info) { return info.param.name; });

// ---- the uplink

TEST(TcpTransportTest, UplinkCapIsKeptByAllTransfersTogether) {
  constexpr uint64_t kRate = 8'000'000;
  TransportLimits limits = PatientLimits();
  limits.uplink_bytes_per_second = kRate;
  auto source = NewTransport(limits), reader = NewTransport(PatientLimits());
  TestShard shard{TestShard::Spec{}}, one{TestShard::Spec{}}, two{TestShard::Spec{}};
  shard.FillWith(1);
  shard.store()->Publish(BufferGeneration(1));
  TestHolder holder(shard.store());
  source->AddHolder(kHolderWorker, &holder);
  TestSink sink_one(&one), sink_two(&two);
  const PullTarget target = holder.Target(source->endpoints()[0], shard.store()->shared_layout());
  const absl::Time start = MonotonicNow();
  auto pull_one = reader->Open(target, &sink_one);
  auto pull_two = reader->Open(target, &sink_two);
  pull_one->Ask(shard.all());
  pull_two->Ask(shard.all());
  sink_one.AwaitSegments(shard.segment_count());
  sink_two.AwaitSegments(shard.segment_count());
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  EXPECT_GE(seconds, 0.85 * 2.0 * static_cast<double>(shard.layout().bytes()) / kRate);
  EXPECT_TRUE(one.Equals(shard) && two.Equals(shard));
  pull_one->Close();
  pull_two->Close();
  sink_one.AwaitClosed();
  sink_two.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
}

TEST(TcpTransportTest, KeepAlivesPassTheUplinkCapWhileASegmentIsAwaited) {
  TransportLimits limits = PatientLimits();
  limits.uplink_bytes_per_second = 1000;
  limits.keep_alive = absl::Milliseconds(5);
  auto source = NewTransport(limits), reader = NewTransport(PatientLimits());
  TestShard shard{TestShard::Spec{}}, received{TestShard::Spec{}};
  shard.store()->BeginFill(BufferGeneration(1), {});
  TestHolder holder(shard.store());
  source->AddHolder(kHolderWorker, &holder);
  TestSink sink(&received);
  auto pull =
      reader->Open(holder.Target(source->endpoints()[0], shard.store()->shared_layout()), &sink);
  pull->Ask({SegmentIndex(0), SegmentIndex(1)});
  sink.AwaitAlive(5);
  pull->Close();
  sink.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
}

}  // namespace
}  // namespace th::stream
