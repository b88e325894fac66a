#include "th/wire/controller_request.h"

#include <utility>

#include "th/wire/field_reader.h"
#include "th/wire/limits.h"

namespace th {

pb::ListRequest ToProto(const ListQuery& query) {
  pb::ListRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  out.set_run(query.run);
  out.set_model(query.model);
  out.set_omit_attributes(query.omit_attributes);
  return out;
}

pb::ResolveRequest ToProto(const ResolveQuery& query) {
  pb::ResolveRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  *out.mutable_key() = ToProto(query.key);
  *out.mutable_selector() = ToProto(query.selector);
  return out;
}

pb::WaitVersionRequest ToProto(const WaitQuery& query) {
  pb::WaitVersionRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  *out.mutable_key() = ToProto(query.key);
  *out.mutable_selector() = ToProto(query.selector);
  out.set_after(query.after.value);
  *out.mutable_timeout() = ToProto(query.timeout);
  return out;
}

pb::CommandRequest ToProto(const ControllerCommand& command) {
  pb::CommandRequest out;
  *out.mutable_hello() = ToProto(command.hello);
  *out.mutable_key() = ToProto(command.key);
  *out.mutable_command() = ToProto(command.command);
  out.set_credentials(command.credentials);
  return out;
}

pb::GetLayoutRequest ToProto(const LayoutQuery& query) {
  pb::GetLayoutRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  out.set_digest(DigestToProto(query.digest));
  return out;
}

pb::FindShardRequest ToProto(const FindShardQuery& query) {
  pb::FindShardRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  *out.mutable_key() = ToProto(query.shard.key);
  *out.mutable_selector() = ToProto(query.shard.selector);
  out.set_form(query.shard.form);
  out.set_group(query.shard.group);
  out.set_rank(query.shard.rank.value);
  return out;
}

pb::FindShardResponse ToProto(const FoundShard& found) {
  pb::FindShardResponse out;
  out.set_not_available(static_cast<pb::NotAvailableReason>(found.not_available));
  if (!found.layout.empty()) out.set_layout(DigestToProto(found.layout));
  return out;
}

pb::ClaimFormRequest ToProto(const ClaimFormQuery& query) {
  pb::ClaimFormRequest out;
  *out.mutable_hello() = ToProto(query.hello);
  *out.mutable_key() = ToProto(query.form.key);
  *out.mutable_selector() = ToProto(query.form.selector);
  out.set_form(query.form.form);
  out.set_group(query.form.group);
  *out.mutable_claim() = ToProto(query.form.claim);
  return out;
}

pb::ClaimFormResponse ToProto(const FormChoice& choice) {
  pb::ClaimFormResponse out;
  *out.mutable_version() = ToProto(choice.version);
  out.set_maker(static_cast<pb::FormMaker>(choice.maker));
  out.set_group(choice.group);
  return out;
}

absl::StatusOr<ListQuery> FromProto(const pb::ListRequest& in) {
  FieldReader reader;
  ListQuery out{.omit_attributes = in.omit_attributes()};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.OptionalName("run", in.run(), out.run);
  reader.OptionalName("model", in.model(), out.model);
  return reader.Finish(std::move(out));
}

absl::StatusOr<ResolveQuery> FromProto(const pb::ResolveRequest& in) {
  FieldReader reader;
  ResolveQuery out;
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.key);
  reader.Message("selector", in.has_selector(), FromProto(in.selector()), out.selector);
  return reader.Finish(std::move(out));
}

absl::StatusOr<WaitQuery> FromProto(const pb::WaitVersionRequest& in) {
  FieldReader reader;
  WaitQuery out{.after = VersionSequence(in.after())};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.key);
  reader.Message("selector", in.has_selector(), FromProto(in.selector()), out.selector);
  reader.Duration("timeout", in.has_timeout(), in.timeout(), out.timeout);
  return reader.Finish(std::move(out));
}

absl::StatusOr<ControllerCommand> FromProto(const pb::CommandRequest& in) {
  FieldReader reader;
  ControllerCommand out;
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.key);
  reader.Message("command", in.has_command(), FromProto(in.command()), out.command);
  reader.Text("credentials", in.credentials(), kMaxCredentialsBytes, out.credentials);
  return reader.Finish(std::move(out));
}

absl::StatusOr<LayoutQuery> FromProto(const pb::GetLayoutRequest& in) {
  FieldReader reader;
  LayoutQuery out;
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Digest("digest", in.digest(), out.digest);
  return reader.Finish(std::move(out));
}

absl::StatusOr<FindShardQuery> FromProto(const pb::FindShardRequest& in) {
  FieldReader reader;
  FindShardQuery out{.shard = {.rank = Rank(in.rank())}};
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.shard.key);
  reader.Message("selector", in.has_selector(), FromProto(in.selector()), out.shard.selector);
  reader.Name("form", in.form(), out.shard.form);
  reader.OptionalName("group", in.group(), out.shard.group);
  return reader.Finish(std::move(out));
}

absl::StatusOr<FoundShard> FromProto(const pb::FindShardResponse& in) {
  FieldReader reader;
  FoundShard out;
  reader.Enum("not_available", in.not_available(), NotAvailableReason::kBehindFloor, false,
              out.not_available);
  if (out.not_available == NotAvailableReason::kNone) {
    reader.Digest("layout", in.layout(), out.layout);
  }
  return reader.Finish(std::move(out));
}

absl::StatusOr<ClaimFormQuery> FromProto(const pb::ClaimFormRequest& in) {
  FieldReader reader;
  ClaimFormQuery out;
  reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
  reader.Message("key", in.has_key(), FromProto(in.key()), out.form.key);
  reader.Message("selector", in.has_selector(), FromProto(in.selector()), out.form.selector);
  reader.Name("form", in.form(), out.form.form);
  reader.Name("group", in.group(), out.form.group);
  reader.Duration("claim", in.has_claim(), in.claim(), out.form.claim);
  return reader.Finish(std::move(out));
}

absl::StatusOr<FormChoice> FromProto(const pb::ClaimFormResponse& in) {
  FieldReader reader;
  FormChoice out;
  reader.Message("version", in.has_version(), FromProto(in.version()), out.version);
  reader.Enum("maker", in.maker(), FormMaker::kAnother, true, out.maker);
  reader.OptionalName("group", in.group(), out.group);
  return reader.Finish(std::move(out));
}

}  // namespace th
