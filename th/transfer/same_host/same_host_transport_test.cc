#include "th/transfer/same_host/same_host_transport.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/process_threads.h"
#include "testing/status_matchers.h"
#include "th/memory/arena_alignment.h"
#include "th/memory/shared_memory.h"
#include "th/transfer/same_host/host_address.h"
#include "th/transfer/same_host/mapped_memory.h"
#include "th/transfer/same_host/peer_memory.h"
#include "th/transfer/stream/frames.h"
#include "th/transfer/stream/raw_peer.h"
#include "th/transfer/stream/socket.h"
#include "th/transfer/test_peers.h"

namespace th::same_host {
namespace {

using stream::Admitted;
using stream::Ask;
using stream::Close;
using stream::ControlPlace;
using stream::Encode;
using stream::Hello;
using stream::Landed;
using stream::Located;
using stream::Memory;
using stream::RawConnection;
using stream::RawSource;
using stream::SocketAddress;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::th::testing::GatedSink;
using ::th::testing::kHolderWorker;
using ::th::testing::PatientLimits;
using ::th::testing::StatusIs;
using ::th::testing::TestHolder;
using ::th::testing::TestShard;
using ::th::testing::TestSink;
using ::th::testing::ThreadsOfThisProcess;

std::unique_ptr<Transport> NewTransport(const TransportLimits& limits = PatientLimits()) {
  auto transport = NewSameHostTransport({.limits = limits});
  EXPECT_OK(transport.status());
  return *std::move(transport);
}

SocketAddress AddressOf(const Endpoint& endpoint) {
  return *SocketAddress::OfUnixName(HostAddress::Parse(endpoint.address)->socket);
}

// The type of the next frame that brings a segment, as a reader takes frames.
std::string TypeOfNextSegment(RawConnection& connection, size_t payload) {
  while (true) {
    stream::RawHeader raw;
    if (recv(connection.fd(), raw.data(), raw.size(), MSG_WAITALL) !=
        ssize_t{stream::kFrameHeaderBytes})
      return "the end";
    const auto header = stream::DecodeHeader(raw);
    if (!header.ok()) return std::string(header.status().message());
    std::string body(header->body_bytes, '\0');
    if (!body.empty()) recv(connection.fd(), body.data(), body.size(), MSG_WAITALL);
    if (header->type == stream::FrameType::kSegment)
      return body.size() == payload ? "Segment" : "a short Segment";
    if (header->type == stream::FrameType::kLocated) return "Located";
  }
}

std::string WordsOf(const MemoryProbe& probe) {
  return std::string(reinterpret_cast<const char*>(&probe), sizeof(probe));
}

// ---- who can be reached

TEST(SameHostTransportTest, EndpointsOfOtherHostsAreOutOfReachWithTheReason) {
  const auto transport = NewTransport();
  Endpoint endpoint = transport->endpoints()[0];
  EXPECT_EQ(endpoint.transport, kSameHostTransport);
  EXPECT_OK(transport->Reach(endpoint));
  endpoint.address = "0000000000000000/1/tensorhub-1-a";
  EXPECT_THAT(transport->Reach(endpoint),
              StatusIs(absl::StatusCode::kOutOfRange, "on another host"));
  endpoint.address = "10.0.0.7:4711";
  EXPECT_THAT(transport->Reach(endpoint), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SameHostTransportTest, AnEndpointOutOfReachIsAFailureToConnect) {
  const auto transport = NewTransport();
  TestShard shard{TestShard::Spec{}};
  TestHolder holder(shard.store());
  TestSink sink(&shard);
  auto pull = transport->Open(holder.Target({.address = "0000000000000000/1/tensorhub-1-a",
                                             .transport = kSameHostTransport,
                                             .site = ""},
                                            shard.store()->shared_layout()),
                              &sink);
  EXPECT_THAT(sink.AwaitClosed(), Pair(SourceFailure::kConnect, "on another host"));
}

// ---- a guest in its host's process

TEST(SameHostTransportTest, ThreadsAreNamedAndBlockSignals) {
  const auto transport = NewTransport();
  RawConnection::To(AddressOf(transport->endpoints()[0])).ReceiveA<Hello>();
  std::vector<std::string> names;
  for (const auto& [id, thread] : ThreadsOfThisProcess()) {
    if (thread.name.rfind("th-host-", 0) != 0) continue;
    names.push_back(thread.name);
    EXPECT_TRUE(thread.Blocks(SIGTERM)) << thread.name;
  }
  EXPECT_THAT(names, Contains("th-host-0"));
}

TEST(SameHostTransportTest, TheUplinksCapHoldsNobodyBack) {
  TransportLimits limits = PatientLimits();
  limits.uplink_bytes_per_second = 1;  // a shard would take days
  const auto source = NewTransport(limits), reader = NewTransport(limits);
  TestShard published{TestShard::Spec{}}, received{TestShard::Spec{}};
  published.FillWith(3);
  published.store()->Publish(BufferGeneration(1));
  TestHolder holder(published.store());
  source->AddHolder(kHolderWorker, &holder);
  TestSink sink(&received);
  auto pull =
      reader->Open(holder.Target(source->endpoints()[0], received.store()->shared_layout()), &sink);
  pull->Ask(published.all());
  sink.AwaitSegments(published.segment_count());
  EXPECT_TRUE(received.Equals(published));
  pull->Close();
  sink.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
}

// ---- a holder that lets go while it is read

class HeldReaderTest : public ::testing::Test {
 protected:
  HeldReaderTest() {
    published_->FillWith(3);
    published_->store()->Publish(BufferGeneration(1));
    source_->AddHolder(kHolderWorker, &holder_);
    pull_ = reader_->Open(
        holder_.Target(source_->endpoints()[0], received_.store()->shared_layout()), &sink_);
    pull_->Ask(published_->all());
    sink_.AwaitEntered();
  }
  ~HeldReaderTest() override {
    reader_.reset();
    source_.reset();
  }

  const TestShard::Spec spec_{.checksum = ChecksumAlgorithm::kNone};
  std::unique_ptr<TestShard> published_ = std::make_unique<TestShard>(spec_);
  TestShard received_{spec_};
  TestHolder holder_{published_->store()};
  GatedSink sink_{&received_};
  std::unique_ptr<Transport> source_ = NewTransport(), reader_ = NewTransport();
  std::unique_ptr<Pull> pull_;
};

TEST_F(HeldReaderTest, BytesOfAnotherGenerationAreRefusedThoughNobodyEndsTheTransfer) {
  published_->store()->Close(BufferGeneration(2));
  published_->FillWith(4);
  sink_.GoOn();
  EXPECT_THAT(sink_.AwaitClosed(),
              Pair(SourceFailure::kGenerationChanged, HasSubstr("left generation 1")));
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HeldReaderTest, BytesOfABufferThatIsBeingFilledAgainAreRefused) {
  published_->store()->Close(BufferGeneration(2));
  published_->store()->BeginFill(BufferGeneration(3), {});
  sink_.GoOn();
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kGenerationChanged);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HeldReaderTest, WhatStillStandsIsTaken) {
  sink_.GoOn();
  sink_.AwaitSegments(published_->segment_count());
  EXPECT_TRUE(received_.Equals(*published_));
}

// ---- memory that the kernel does not read for others

// A page without permissions stands for what a driver maps: the kernel refuses to read both.
TEST(SameHostTransportTest, SegmentsOfMemoryThatCannotBeReadComeThroughTheSocket) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto map = [&] {
    void* const at =
        mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<char*>(at);
  };
  std::vector<char*> pages = {map(), map()};
  const auto layout =
      TestShard({.tensor_bytes = {page, page}, .segment_bytes = page}).store()->shared_layout();
  auto store = std::make_shared<SegmentStore>(layout, std::vector<void*>{pages[0], pages[1]});
  const auto source = NewTransport(), reader = NewTransport();
  ASSERT_EQ(mprotect(pages[1], page, PROT_NONE), 0);
  auto attached = source->Attach(store->regions());
  ASSERT_OK(attached.status());
  ASSERT_EQ(mprotect(pages[1], page, PROT_READ | PROT_WRITE), 0);
  TestHolder holder(store);
  source->AddHolder(kHolderWorker, &holder);
  store->Publish(BufferGeneration(1));
  RawConnection connection = RawConnection::To(AddressOf(source->endpoints()[0]));
  connection.SayHelloAndOpen(holder.Target(source->endpoints()[0], layout));
  ASSERT_TRUE(connection.ReceiveA<Admitted>().has_value());
  connection.Send(Encode(Ask{{SegmentIndex(0), SegmentIndex(1)}}));
  EXPECT_EQ(TypeOfNextSegment(connection, page), "Located");
  connection.Send(Encode(Landed{SegmentIndex(0), page}));
  connection.Send(Encode(Ask{{SegmentIndex(1), SegmentIndex(2)}}));
  EXPECT_EQ(TypeOfNextSegment(connection, page), "Segment");
  *attached = nullptr;  // the page may be another one's from here on
  connection.Send(Encode(Ask{{SegmentIndex(1), SegmentIndex(2)}}));
  EXPECT_EQ(TypeOfNextSegment(connection, page), "Located");
  connection.Send(Encode(Close{}));
  holder.AwaitReleased(1);
  source->RemoveHolder(kHolderWorker);
  for (char* each : pages) munmap(each, page);
}

// ---- memory that the reader can map

// The source's own mapping is closed to everybody: only who has mapped the file can read it.
TEST(SameHostTransportTest, SharedMemoryOfTheSourceIsReadThroughAMapping) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kArenaAlignment));
  std::memset(data, 'a', kArenaAlignment);
  TestShard received({.tensor_bytes = {kArenaAlignment}});
  const auto layout = received.store()->shared_layout();
  const auto store = std::make_shared<SegmentStore>(layout, std::vector<void*>{data});
  const auto source = NewTransport(), reader = NewTransport();
  TestHolder holder(store);
  source->AddHolder(kHolderWorker, &holder);
  store->Publish(BufferGeneration(1));
  store->ChecksumsOf({SegmentIndex(0), SegmentIndex(layout->segment_count())},
                     layout->segment_count(),
                     /*compute=*/true);
  ASSERT_EQ(mprotect(data, kArenaAlignment, PROT_NONE), 0);
  TestSink sink(&received);
  auto pull = reader->Open(holder.Target(source->endpoints()[0], layout), &sink);
  pull->Ask(received.all());
  sink.AwaitSegments(layout->segment_count());
  EXPECT_EQ(received.BytesOf(SegmentIndex(0)), std::string(65'536, 'a'));
  EXPECT_THAT(sink.segments(), Each(Pair(::testing::_, true)));
  pull->Close();
  sink.AwaitClosed();
  source->RemoveHolder(kHolderWorker);
  EXPECT_TRUE(UnmapSharedMemory(data));
}

// ---- hostile sources

// A source that does what `serve` says once the reader has greeted it.
class HostileSourceTest : public ::testing::Test {
 protected:
  ~HostileSourceTest() override { reader_.reset(); }

  void ServeWith(std::function<void(RawConnection&)> serve, TestSink* sink = nullptr) {
    const HostAddress address = *HostAddress::OfThisProcess();
    source_ = std::make_unique<RawSource>(*SocketAddress::OfUnixName(address.socket),
                                          [this, serve = std::move(serve)](RawConnection& reader) {
                                            reader.ReceiveA<Hello>();
                                            reader.Send(Encode(Hello{stream::OwnHello()}));
                                            serve(reader);
                                            source_->StayQuiet();
                                          });
    const Endpoint endpoint{
        .address = address.ToString(), .transport = kSameHostTransport, .site = ""};
    pull_ = reader_->Open(holder_.Target(endpoint, received_.store()->shared_layout()),
                          sink != nullptr ? sink : &sink_);
    pull_->Ask({SegmentIndex(0), SegmentIndex(1)});
  }
  // Admits, and answers the first request with `located`.
  void LocateWith(const ControlPlace& control, Located located, TestSink* sink = nullptr) {
    ServeWith(
        [control, located = std::move(located)](RawConnection& reader) {
          reader.Send(Encode(Memory{WordsOf(OwnProbe())}));
          reader.ReceiveA<stream::Open>();
          reader.Send(Encode(Admitted{BufferGeneration(1), control}));
          reader.ReceiveA<Ask>();
          reader.Send(Encode(located));
        },
        sink);
  }
  ControlPlace TrueControl() const {
    const ControlBlock& control = shard_.store()->control();
    return {.address = reinterpret_cast<uintptr_t>(&control), .life = control.life.load()};
  }
  Located FirstSegment() const {
    std::vector<iovec> pieces;
    shard_.store()->AppendPieces(SegmentIndex(0), &pieces);
    Located located{.segment = SegmentIndex(0),
                    .checksum = shard_.ChecksumOf(SegmentIndex(0)),
                    .generation = BufferGeneration(1),
                    .pieces = {}};
    for (const iovec& piece : pieces) {
      located.pieces.push_back({.address = reinterpret_cast<uintptr_t>(piece.iov_base),
                                .bytes = static_cast<uint32_t>(piece.iov_len)});
    }
    return located;
  }

  TestShard shard_ = [] {
    TestShard shard{TestShard::Spec{}};
    shard.FillWith(1);
    shard.store()->Publish(BufferGeneration(1));
    return shard;
  }();
  TestShard received_{TestShard::Spec{}};
  TestHolder holder_{shard_.store()};
  TestSink sink_{&received_};
  std::unique_ptr<Transport> reader_ = NewTransport();
  std::unique_ptr<Pull> pull_;
  std::unique_ptr<RawSource> source_;
};

TEST_F(HostileSourceTest, AnHonestOneIsRead) {
  LocateWith(TrueControl(), FirstSegment());
  sink_.AwaitSegments(1);
  EXPECT_THAT(sink_.segments(), Contains(Pair(SegmentIndex(0), true)));
}

TEST_F(HostileSourceTest, WhoShowsAnotherProcesssMemoryIsNotEvenAsked) {
  ServeWith([](RawConnection& reader) {
    MemoryProbe probe = OwnProbe();
    ++probe.value;
    reader.Send(Encode(Memory{WordsOf(probe)}));
  });
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kConnect, HasSubstr("not the source")));
}

TEST_F(HostileSourceTest, MemoryThatHasBecomeAnotherBuffersIsRefused) {
  ControlPlace control = TrueControl();
  ++control.life;
  LocateWith(control, FirstSegment());
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kGenerationChanged);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

// Takes the bytes of a segment where the source's control block is: the copy overwrites it.
class OverwritingSink : public TestSink {
 public:
  using TestSink::TestSink;
  void SetDestination(iovec destination) { destination_ = destination; }
  bool OnSegmentBegins(SegmentIndex segment, std::vector<iovec>* iov) override {
    iov->push_back(destination_);
    return true;
  }

 private:
  iovec destination_{};
};

// A write of the holder's while the bytes are being read shows only to a look after them.
TEST_F(HostileSourceTest, TheControlBlockIsLookedAtAfterTheBytes) {
  std::vector<uint64_t> words(65'536 / sizeof(uint64_t));
  words[0] = 1;  // the generation
  words[1] = 7;  // the life
  OverwritingSink sink(&received_);
  sink.SetDestination({words.data(), 65'536});
  const Located located = FirstSegment();
  const ControlPlace control{.address = reinterpret_cast<uintptr_t>(words.data()), .life = 7};
  LocateWith(control, located, &sink);
  EXPECT_EQ(sink.AwaitClosed().first, SourceFailure::kGenerationChanged);
  EXPECT_THAT(sink.segments(), IsEmpty());
  reader_.reset();  // before the sink
}

TEST_F(HostileSourceTest, AControlBlockThatIsNowhereIsRefused) {
  LocateWith({.address = 16, .life = 1}, FirstSegment());
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kClosed, HasSubstr("cannot be read")));
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HostileSourceTest, APlaceThatIsNowhereIsRefused) {
  Located located = FirstSegment();
  for (Located::Piece& piece : located.pieces) piece.address = 16;
  LocateWith(TrueControl(), located);
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kClosed, HasSubstr("cannot be read")));
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

// A key of no range, and a place outside of its range: read out of the process as if without one.
TEST_F(HostileSourceTest, AKeyThatMakesNoSenseLeadsNowhere) {
  Located located = FirstSegment();
  for (Located::Piece& piece : located.pieces) piece.key = 4'000'000'000;
  LocateWith(TrueControl(), located);
  sink_.AwaitSegments(1);
  EXPECT_THAT(sink_.segments(), Contains(Pair(SegmentIndex(0), true)));
}

TEST_F(HostileSourceTest, APlaceBesideItsRangeIsNotReadThroughTheMapping) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, MapSharedMemory(kArenaAlignment));
  const SharedMemoryRange range = *FindSharedMemory(data, 1);
  const OfferedRange words{.address = reinterpret_cast<uintptr_t>(data),
                           .bytes = range.bytes,
                           .id = range.id,
                           .inode = range.inode,
                           .file_descriptor = static_cast<uint64_t>(range.file_descriptor)};
  const std::string offer =
      WordsOf(OwnProbe()) + std::string(reinterpret_cast<const char*>(&words), sizeof(words));
  Located located = FirstSegment();
  for (Located::Piece& piece : located.pieces) piece.key = 1;
  ServeWith([offer, located, control = TrueControl()](RawConnection& reader) {
    reader.Send(Encode(Memory{offer}));
    reader.ReceiveA<stream::Open>();
    reader.Send(Encode(Admitted{BufferGeneration(1), control}));
    reader.ReceiveA<Ask>();
    reader.Send(Encode(located));
  });
  sink_.AwaitSegments(1);
  EXPECT_THAT(sink_.segments(), Contains(Pair(SegmentIndex(0), true)));
  EXPECT_TRUE(UnmapSharedMemory(data));
}

TEST_F(HostileSourceTest, PlacesOfAnotherLengthThanTheSegmentsAreRefused) {
  Located located = FirstSegment();
  ++located.pieces.back().bytes;
  LocateWith(TrueControl(), located);
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kCorrupt);
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HostileSourceTest, AnAdmissionWithoutAControlBlockIsRefused) {
  ServeWith([](RawConnection& reader) {
    reader.Send(Encode(Memory{WordsOf(OwnProbe())}));
    reader.ReceiveA<stream::Open>();
    reader.Send(Encode(Admitted{BufferGeneration(1), std::nullopt}));
  });
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kCorrupt, HasSubstr("control block")));
}

TEST_F(HostileSourceTest, AnAdmissionBeforeTheMemoryIsShownIsRefused) {
  ServeWith([located = FirstSegment(), control = TrueControl()](RawConnection& reader) {
    reader.Send(Encode(Admitted{BufferGeneration(1), control}) +
                Encode(Memory{WordsOf(OwnProbe())}) + Encode(located));
  });
  EXPECT_THAT(sink_.AwaitClosed(),
              Pair(SourceFailure::kCorrupt, HasSubstr("Admitted before Memory")));
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HostileSourceTest, APlaceBeforeTheAdmissionIsRefused) {
  ServeWith([located = FirstSegment()](RawConnection& reader) {
    reader.Send(Encode(Memory{WordsOf(OwnProbe())}) + Encode(located));
  });
  EXPECT_THAT(sink_.AwaitClosed(), Pair(SourceFailure::kCorrupt, HasSubstr("before it was")));
  EXPECT_THAT(sink_.segments(), IsEmpty());
}

TEST_F(HostileSourceTest, MemoryThatIsShownTwiceIsRefused) {
  ServeWith([](RawConnection& reader) {
    reader.Send(Encode(Memory{WordsOf(OwnProbe())}) + Encode(Memory{WordsOf(OwnProbe())}));
  });
  EXPECT_EQ(sink_.AwaitClosed().first, SourceFailure::kCorrupt);
}

// ---- hostile readers

class HostileReaderTest : public ::testing::Test {
 protected:
  HostileReaderTest() {
    shard_.FillWith(1);
    shard_.store()->Publish(BufferGeneration(1));
    source_->AddHolder(kHolderWorker, &holder_);
    reader_.SayHelloAndOpen(
        holder_.Target(source_->endpoints()[0], shard_.store()->shared_layout()));
    EXPECT_TRUE(reader_.ReceiveA<Admitted>().has_value());
  }
  ~HostileReaderTest() override { source_.reset(); }

  TestShard shard_{TestShard::Spec{}};
  TestHolder holder_{shard_.store()};
  std::unique_ptr<Transport> source_ = NewTransport();
  RawConnection reader_ = RawConnection::To(AddressOf(source_->endpoints()[0]));
};

TEST_F(HostileReaderTest, WhatLandsWithoutHavingBeenLocatedEndsTheTransfer) {
  reader_.Send(Encode(Landed{SegmentIndex(0), 65'536}));
  const auto close = reader_.ReceiveA<Close>();
  ASSERT_TRUE(close.has_value());
  EXPECT_THAT(close->why, HasSubstr("not the next one"));
  holder_.AwaitReleased(1);
  EXPECT_EQ(source_->counters().bytes_sent, 0);
}

// A reader that never says what has landed is owed no more than the limit, and holds up nobody.
TEST_F(HostileReaderTest, AReaderThatNeverLandsAnythingIsCutAtOnce) {
  reader_.Send(Encode(Ask{shard_.all()}));
  source_->CutTransfer(holder_.admitted()[0]);
  holder_.AwaitReleased(1);
  EXPECT_TRUE(reader_.AwaitEnd());
  EXPECT_EQ(source_->counters().bytes_sent, 0);
}

TEST_F(HostileReaderTest, MoreBytesThanTheSegmentHasAreNotCounted) {
  reader_.Send(Encode(Ask{{SegmentIndex(0), SegmentIndex(1)}}));
  EXPECT_EQ(TypeOfNextSegment(reader_, 0), "Located");
  reader_.Send(Encode(Landed{SegmentIndex(0), uint64_t{1} << 60}));
  reader_.Send(Encode(stream::Finish{}));
  holder_.AwaitReleased(1);
  EXPECT_EQ(source_->counters().bytes_sent, 65'536);
}

}  // namespace
}  // namespace th::same_host
