// Transfers over the RDMA devices of this machine: four that reach each other, on interfaces nic0
// to nic3 of one network, as in the Soft-RoCE machine. The first two are the sources', the others
// the readers'.
#include "th/transfer/ibverbs/ibverbs_transport.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/transfer/fill.h"
#include "th/transfer/fill_test_bed.h"
#include "th/transfer/monotonic_clock.h"
#include "th/transfer/tcp/tcp_transport.h"
#include "th/transfer/test_peers.h"

namespace th::testing {
namespace {

using ibverbs::ReadCounters;
using ::testing::HasSubstr;

constexpr uint64_t kSegmentBytes = 65'536;
// The deadlines of tests in which a fabric fails.
constexpr absl::Duration kShort = absl::Seconds(1);

std::unique_ptr<Transport> NewTransport(std::vector<std::string> devices,
                                        std::shared_ptr<ReadCounters> counters = nullptr,
                                        absl::Duration deadline = kPatience) {
  auto transport = NewIbverbsTransport({.devices = std::move(devices),
                                        .limits = PatientLimits(),
                                        .deadlines = {.probe = deadline, .read = deadline},
                                        .counters = std::move(counters)});
  EXPECT_THAT(transport, IsOk());
  return *std::move(transport);
}

std::unique_ptr<AttachedMemory> Attached(Transport& transport, const TestShard& shard) {
  auto attached = transport.Attach(shard.store()->regions());
  EXPECT_THAT(attached, IsOk());
  return *std::move(attached);
}

// "tc qdisc ...": the machine is the test's own.
void Shell(const std::string& command) {
  // BusyBox, whose sh may be the one of system(3), has a tc of its own.
  const std::string line =
      absl::StrCat("exec bash -c 'PATH=/usr/sbin:/usr/bin:/sbin; ", command, "'");
  ASSERT_EQ(std::system(line.c_str()), 0) << command;
}

std::string OutputOf(const std::string& command) {
  FILE* const from = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 512> buffer;
  while (fgets(buffer.data(), buffer.size(), from) != nullptr) text += buffer.data();
  pclose(from);
  return text;
}

uint64_t PacketsSentBy(const std::string& device) {
  std::ifstream file(
      absl::StrCat("/sys/class/infiniband/", device, "/ports/1/hw_counters/sent_pkts"));
  uint64_t packets = 0;
  file >> packets;
  EXPECT_FALSE(file.fail()) << device;
  return packets;
}

class IbverbsTransportTest : public ::testing::Test {
 protected:
  // Both ends anew, with shards of this form; the source's is published.
  void Begin(const TestShard::Spec& spec,
             std::vector<std::string> source_devices = {"rxe0", "rxe1"},
             std::vector<std::string> reader_devices = {"rxe2", "rxe3"}) {
    published_ = std::make_unique<TestShard>(spec);
    received_ = std::make_unique<TestShard>(spec);
    published_->FillWith(1);
    published_->store()->Publish(BufferGeneration(1));
    holder_ = std::make_unique<TestHolder>(published_->store());
    sink_ = std::make_unique<TestSink>(received_.get());
    source_ = NewTransport(std::move(source_devices));
    reader_ = NewTransport(std::move(reader_devices), counters_, deadline_);
    source_->AddHolder(kHolderWorker, holder_.get());
  }
  void TearDown() override {
    pull_ = nullptr;
    reader_memory_ = nullptr;
    source_memory_ = nullptr;
    reader_ = nullptr;
    if (source_ != nullptr) source_->RemoveHolder(kHolderWorker);
    source_ = nullptr;
  }
  void AttachSource() { source_memory_ = Attached(*source_, *published_); }
  void AttachReader() { reader_memory_ = Attached(*reader_, *received_); }

  void Open() {
    pull_ = reader_->Open(
        holder_->Target(source_->endpoints()[0], received_->store()->shared_layout()), sink_.get());
  }
  void Close() {
    pull_->Close();
    sink_->AwaitClosed();
    pull_ = nullptr;
    holder_->AwaitReleased(1);
  }
  // Asks for segments [begin, end), some ahead of what has come, so that each connection has its
  // share.
  void Read(uint64_t begin, uint64_t end) {
    constexpr uint64_t kStep = 8, kAhead = 48;
    for (uint64_t i = begin; i < end; i += kStep) {
      if (i > begin + kAhead) sink_->AwaitSegments(i - kAhead);
      pull_->Ask({SegmentIndex(i), SegmentIndex(std::min(i + kStep, end))});
    }
    sink_->AwaitSegments(end);
  }
  // The whole shard arrives.
  void ExpectArrives() {
    Open();
    sink_->AwaitAdmitted();
    Read(0, published_->segment_count());
    Close();
    EXPECT_TRUE(received_->Equals(*published_));
  }

  absl::Duration deadline_ = kPatience;  // of the reader's READs
  const std::shared_ptr<ReadCounters> counters_ = std::make_shared<ReadCounters>();
  std::unique_ptr<TestShard> published_, received_;
  std::unique_ptr<TestHolder> holder_;
  std::unique_ptr<TestSink> sink_;
  std::unique_ptr<Transport> source_, reader_;
  std::unique_ptr<AttachedMemory> source_memory_, reader_memory_;
  std::unique_ptr<Pull> pull_;
};

TestShard::Spec OneTensor(uint64_t bytes) {
  return {.tensor_bytes = {bytes}, .segment_bytes = kSegmentBytes};
}

TEST_F(IbverbsTransportTest, PayloadIsReadAndNotCopied) {
  Begin(OneTensor(4 << 20));
  AttachSource();
  AttachReader();
  ExpectArrives();
  EXPECT_EQ(counters_->bounced_bytes.load(), 0U);
  // One READ a segment, at most one of the control block for each, and the probe.
  EXPECT_GE(counters_->posted.load(), published_->segment_count());
  EXPECT_LE(counters_->posted.load(), 2 * published_->segment_count() + 1);
}

TEST_F(IbverbsTransportTest, OneReadInManyIsSignalledAndTheQueueIsBounded) {
  constexpr uint64_t kTensors = 4'000;
  TestShard::Spec spec{.tensor_bytes = {}, .segment_bytes = kSegmentBytes, .odd_gaps = true};
  for (uint64_t i = 0; i < kTensors; ++i) spec.tensor_bytes.push_back(1'100 + i % 7);
  Begin(spec);
  AttachSource();
  AttachReader();
  ExpectArrives();
  // Up to 16 tensors that lie side by side, less than 1 % apart, are one READ; the last READ of
  // a segment and that of its control block tell.
  EXPECT_GE(counters_->posted.load(), kTensors / 16);
  EXPECT_LE(counters_->posted.load(), kTensors / 8);
  EXPECT_LE(counters_->signalled.load(),
            counters_->posted.load() / 16 + 3 * published_->segment_count() + 1);
  EXPECT_LE(counters_->most_outstanding.load(), 128U);
  EXPECT_GE(counters_->most_outstanding.load(), 64U);
}

TEST_F(IbverbsTransportTest, DestinationThatIsNotRegisteredGetsItsBytesByACopy) {
  Begin(OneTensor(3'000'001));
  AttachSource();
  ExpectArrives();
  EXPECT_EQ(counters_->bounced_bytes.load(), 3'000'001U);
}

TEST_F(IbverbsTransportTest, SourceThatIsNotRegisteredSendsThroughTheSocket) {
  Begin(OneTensor(3'000'001));
  AttachReader();
  ExpectArrives();
  EXPECT_EQ(counters_->posted.load(), 1U);  // the probe
}

TEST_F(IbverbsTransportTest, ConnectionsOfAPullTakeTheDevicesInTurn) {
  Begin(OneTensor(16 << 20));
  AttachSource();
  AttachReader();
  const uint64_t first = PacketsSentBy("rxe0"), second = PacketsSentBy("rxe1");
  ExpectArrives();
  // The payload is in the packets of those who are read from.
  EXPECT_GT(PacketsSentBy("rxe0") - first, 100U);
  EXPECT_GT(PacketsSentBy("rxe1") - second, 100U);
}

TEST_F(IbverbsTransportTest, DeviceThatFailsInMidTransferIsLostAlone) {
  deadline_ = kShort;
  Begin(OneTensor(16 << 20));
  AttachSource();
  AttachReader();
  Open();
  sink_->AwaitAdmitted();
  Read(0, 96);
  Shell("tc qdisc add dev nic3 root netem loss 100%");
  Read(96, published_->segment_count());
  Shell("tc qdisc del dev nic3 root");
  Close();
  EXPECT_TRUE(received_->Equals(*published_));
}

TEST_F(IbverbsTransportTest, OnlyDeviceThatFailsEndsThePull) {
  deadline_ = kShort;
  Begin(OneTensor(16 << 20), {"rxe0"}, {"rxe3"});
  AttachSource();
  AttachReader();
  Open();
  sink_->AwaitAdmitted();
  pull_->Ask(published_->all());
  sink_->AwaitSegments(32);
  Shell("tc qdisc add dev nic3 root netem loss 100%");
  const auto [failure, detail] = sink_->AwaitClosed();
  Shell("tc qdisc del dev nic3 root");
  EXPECT_EQ(failure, SourceFailure::kConnect);  // so that the fill goes on over another transport
  EXPECT_THAT(detail, HasSubstr("rxe3"));
  // The deadline, which comes before the device gives up by itself.
  EXPECT_THAT(detail, HasSubstr(absl::StrCat("within ", absl::FormatDuration(kShort))));
  holder_->AwaitReleased(1);
}

TEST_F(IbverbsTransportTest, PortsWithoutAWayBetweenThemAreAFailureToConnect) {
  deadline_ = kShort;
  Begin(OneTensor(1 << 20), {"rxe0"}, {"rxe3"});
  AttachSource();
  Shell("tc qdisc add dev nic3 root netem loss 100%");
  Open();
  const auto [failure, detail] = sink_->AwaitClosed();
  Shell("tc qdisc del dev nic3 root");
  EXPECT_EQ(failure, SourceFailure::kConnect);  // so that the fill takes another transport
  EXPECT_THAT(detail, HasSubstr("rxe3"));
  pull_ = nullptr;
}

TEST_F(IbverbsTransportTest, TransfersLeaveNothingBehindInTheKernel) {
  Begin(OneTensor(1 << 20));
  AttachSource();
  const std::string before = OutputOf("rdma resource show");
  ASSERT_THAT(before, HasSubstr("qp"));
  constexpr int kTransfers = 100;
  for (int i = 0; i < kTransfers; ++i) {
    TestSink sink(received_.get());
    auto pull = reader_->Open(
        holder_->Target(source_->endpoints()[0], received_->store()->shared_layout()), &sink);
    sink.AwaitAdmitted();
    pull->Ask(published_->all());
    if (i % 2 == 0) sink.AwaitSegments(1);
    pull->Close();
    sink.AwaitClosed();
  }
  holder_->AwaitReleased(kTransfers);
  EXPECT_EQ(OutputOf("rdma resource show"), before);
}

TEST_F(IbverbsTransportTest, GpuMemoryIsRefusedByName) {
  Begin(OneTensor(4096));
  EXPECT_THAT(source_->Attach({{MemoryRegion{
                  .address = nullptr, .bytes = 1, .kind = MemoryKind::kDevice, .device = "gpu7"}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gpu7")));
}

// ---- several processes

enum class Serves : uint8_t { kAll, kTheFirstSegments };

// Serves 16 MiB, or the beginning of them and waits for the rest, and tells its address.
[[noreturn]] void ServeForever(Serves serves, int fd) {
  TestShard shard(OneTensor(16 << 20));
  shard.FillWith(1);
  shard.store()->Publish(BufferGeneration(1));
  if (serves == Serves::kTheFirstSegments) {
    shard.ChecksumAll();
    SegmentSet held;
    held.Add({SegmentIndex(0), SegmentIndex(8)});
    shard.store()->BeginFill(BufferGeneration(1), held);
  }
  TestHolder holder(shard.store());
  const auto transport = NewTransport({"rxe0"});
  const auto memory = Attached(*transport, shard);
  transport->AddHolder(kHolderWorker, &holder);
  const std::string address = transport->endpoints()[0].address;
  if (write(fd, address.data(), address.size()) < 0) _exit(2);
  while (true) pause();
}

// A process that serves, for as long as this lives.
class ServingProcess {
 public:
  explicit ServingProcess(Serves serves) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) ServeForever(serves, ends[1]);
    close(ends[1]);
    std::array<char, 256> address{};
    EXPECT_GT(read(ends[0], address.data(), address.size() - 1), 0);
    close(ends[0]);
    endpoint_ = {.address = address.data(), .transport = kIbverbsTransport, .site = ""};
  }
  ~ServingProcess() {
    Signal(SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }
  ServingProcess(const ServingProcess&) = delete;
  ServingProcess& operator=(const ServingProcess&) = delete;
  const Endpoint& endpoint() const { return endpoint_; }
  void Signal(int number) const { kill(pid_, number); }

 private:
  pid_t pid_ = -1;
  Endpoint endpoint_;
};

TEST(IbverbsProcessTest, KilledSourceIsNoticedByItsConnection) {
  const ServingProcess source(Serves::kAll);
  TestShard received(OneTensor(16 << 20));
  const TestHolder like(received.store());  // has the same key
  TestSink sink(&received);
  const auto reader = NewTransport({"rxe2"});
  const auto memory = Attached(*reader, received);
  auto pull =
      reader->Open(like.Target(source.endpoint(), received.store()->shared_layout()), &sink);
  sink.AwaitAdmitted();
  pull->Ask(received.all());
  sink.AwaitSegments(1);
  source.Signal(SIGKILL);
  const absl::Time start = MonotonicNow();
  EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kClosed);
  const absl::Duration noticed = MonotonicNow() - start;
  // It is noticed by the end of the connection: READs that nobody answers would be noticed by their
  // deadline.
  EXPECT_LT(noticed, kPatience / 2);
  std::printf("a killed source is noticed in %s\n", absl::FormatDuration(noticed).c_str());
}

// Its adapter would still answer READs: that it says nothing any more is what counts.
TEST(IbverbsProcessTest, StoppedSourceIsLeftForAnother) {
  const ServingProcess stopped(Serves::kTheFirstSegments);
  TestNode other(NewTransport({"rxe1"}), WorkerId(11), OneTensor(16 << 20));
  TestNode reader(NewTransport({"rxe2"}), WorkerId(12), OneTensor(16 << 20));
  const auto other_memory = Attached(*other.transport, other.shard);
  const auto reader_memory = Attached(*reader.transport, reader.shard);
  other.Publish(1);
  AssignedSource first = other.AsSource();
  first.buffer.worker = kHolderWorker;
  first.endpoints = {stopped.endpoint()};
  first.capability = TestHolder(reader.shard.store()).Mint();
  absl::Time stopped_at, noticed_at;
  reader.observer.OnLoss([&](const TestObserver::Loss& loss) {
    noticed_at = MonotonicNow();
    EXPECT_EQ(loss.failure, SourceFailure::kStalled);
    reader.fill->SetSources(AssignmentId(2), {other.AsSource()});
  });
  ReplicatorLimits limits;
  limits.silence = kShort;
  limits.request_bytes = 4 * kSegmentBytes;
  reader.StartFill(limits, {}, other.shard.Root());
  reader.fill->SetSources(AssignmentId(1), {first});
  reader.observer.AwaitFirstWrite();
  stopped_at = MonotonicNow();
  stopped.Signal(SIGSTOP);
  reader.observer.AwaitComplete();
  EXPECT_TRUE(reader.shard.Equals(other.shard));
  ASSERT_EQ(reader.observer.losses().size(), 1U);
  EXPECT_LT(noticed_at - stopped_at, kPatience / 2);  // by its silence, not by a READ's deadline
  reader.StopFill();
}

// ---- fills

TEST(IbverbsFillTest, FourReadersOfWhichTwoReadFromTheOthers) {
  const TestShard::Spec spec = OneTensor(6 << 20);
  const std::array<const char*, 5> devices = {"rxe0", "rxe1", "rxe2", "rxe3", "rxe0"};
  std::vector<std::unique_ptr<TestNode>> nodes;
  std::vector<std::unique_ptr<AttachedMemory>> memory;
  for (size_t i = 0; i < devices.size(); ++i) {
    nodes.push_back(std::make_unique<TestNode>(NewTransport({devices[i]}), WorkerId(10 + i), spec));
    memory.push_back(Attached(*nodes[i]->transport, nodes[i]->shard));
  }
  nodes[0]->Publish(1);
  ReplicatorLimits patient = PatientReplicatorLimits();
  patient.request_bytes = 4 * kSegmentBytes;
  const std::array<size_t, 5> source_of = {0, 0, 0, 1, 2};
  for (size_t i = 1; i < nodes.size(); ++i) {
    nodes[i]->StartFill(patient, {}, nodes[0]->shard.Root());
  }
  for (size_t i = 1; i < nodes.size(); ++i) {
    nodes[i]->fill->SetSources(AssignmentId(1), {nodes[source_of[i]]->AsSource()});
  }
  for (size_t i = 1; i < nodes.size(); ++i) {
    nodes[i]->observer.AwaitComplete();
    EXPECT_TRUE(nodes[i]->shard.Equals(nodes[0]->shard)) << i;
    EXPECT_TRUE(nodes[i]->observer.losses().empty()) << i;
  }
  EXPECT_EQ(nodes[0]->transport->counters().bytes_sent, 2 * nodes[0]->shard.layout().bytes());
  for (auto& node : nodes) node->StopFill();
  memory.clear();
}

TEST(IbverbsFillTest, FabricThatBreaksIsLeftForTcp) {
  // More than arrives while the shell breaks the fabric.
  TestShard published(OneTensor(64 << 20)), received(OneTensor(64 << 20));
  published.FillWith(1);
  published.store()->Publish(BufferGeneration(1));
  TestHolder holder(published.store());
  const auto source = NewTransport({"rxe0"}), reader = NewTransport({"rxe3"}, nullptr, kShort);
  const auto source_tcp = NewTcpTransport({}), reader_tcp = NewTcpTransport({});
  ASSERT_THAT(source_tcp, IsOk());
  ASSERT_THAT(reader_tcp, IsOk());
  source->AddHolder(kHolderWorker, &holder);
  (*source_tcp)->AddHolder(kHolderWorker, &holder);
  const auto source_memory = Attached(*source, published);
  const auto reader_memory = Attached(*reader, received);
  AssignedSource both;
  both.buffer = {kHolderWorker, kBuffer};
  both.endpoints = {source->endpoints()[0], (*source_tcp)->endpoints()[0]};
  both.generation = BufferGeneration(1);
  both.capability = holder.Mint();

  TestObserver observer;
  received.store()->BeginFill(BufferGeneration(1), {});
  auto fill = Fill::Start({.store = received.store(), .limits = PatientReplicatorLimits()},
                          {reader.get(), reader_tcp->get()}, &observer);
  fill->SetRoot(published.Root());
  fill->SetSources(AssignmentId(1), {both});
  observer.AwaitFirstWrite();
  Shell("tc qdisc add dev nic3 root netem loss 100%");
  observer.AwaitComplete();
  Shell("tc qdisc del dev nic3 root");
  EXPECT_TRUE(received.Equals(published));
  EXPECT_TRUE(observer.losses().empty());
  const FillStatus status = fill->status();
  ASSERT_EQ(status.sources.size(), 2U);
  EXPECT_THAT(DescribePassedOver(status.sources[1].passed_over), HasSubstr("rxe3"));
  EXPECT_GT(status.sources[1].bytes, 0U);
  fill->Stop();
  observer.AwaitStopped();
  source->RemoveHolder(kHolderWorker);
  (*source_tcp)->RemoveHolder(kHolderWorker);
}

}  // namespace
}  // namespace th::testing
