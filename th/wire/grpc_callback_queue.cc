#include "th/wire/grpc_callback_queue.h"

#include <memory>
#include <new>

#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"

namespace th {
namespace {

// A callback call on a channel without credentials: it fails at once and reaches no network, but
// the channel has become a user of the queue.
struct LastingUser {
  LastingUser() {
    stub.UnaryCall(&context, "/none", grpc::StubOptions(), &request, &response,
                   [](const grpc::Status&) {});
  }

  grpc::GenericStub stub{grpc::CreateChannel("", std::shared_ptr<grpc::ChannelCredentials>())};
  grpc::ClientContext context;
  const grpc::Slice empty;
  const grpc::ByteBuffer request{&empty, 1};
  grpc::ByteBuffer response;
};

}  // namespace

void KeepGrpcCallbackQueue() {
  alignas(LastingUser) static char storage[sizeof(LastingUser)];
  static const LastingUser* const user = new (storage) LastingUser;  // never destroyed
  (void)user;
}

}  // namespace th
