#include "th/reference_registry/commands.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "th/reference_registry/models.h"
#include "th/reference_registry/roll_back.h"
#include "th/status/status_macros.h"

namespace th::registry {
namespace {

// A command and who gave it; the references outlive it.
struct Request {
  const ModelKey& key;
  const std::string& idempotency_key;
  const Group* caller;  // null: a controller
  const std::string& asked_by;
};

// The owner's pin on that form of the version, of which there is one at most; end() when there is
// none.
template <typename Pins, typename PinCommand>
auto FindPin(Pins& pins, VersionSequence version, const PinCommand& command) {
  return std::find_if(pins.begin(), pins.end(), [&](const DurablePin& pin) {
    return pin.version == version && pin.owner == command.owner && pin.form == command.form;
  });
}

template <typename PinCommand>
bool HasPin(const Model& model, VersionSequence version, const PinCommand& command) {
  const std::vector<DurablePin>& pins = model.durable.pins;
  return FindPin(pins, version, command) != pins.end();
}

absl::Status CheckForm(const std::string& form) {
  return form.empty() ? absl::OkStatus() : ValidateName("form", form);
}

absl::Status CanRun(const RegistryState& state, const Request& request, const PinVersion& command) {
  TH_RETURN_IF_ERROR(ValidateName("owner", command.owner));
  TH_RETURN_IF_ERROR(CheckForm(command.form));
  if (command.expires_after <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pin of ", command.owner, " that expires after ",
                     absl::FormatDuration(command.expires_after), " would hold nothing"));
  }
  TH_ASSIGN_OR_RETURN(const Version* version, FindPublished(state, request.key, command.version));
  const Model& model = *version->model;
  if (HasPin(model, version->info.sequence, command) ||
      model.durable.pins.size() < state.limits.max_pins_per_model) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(request.key.ToString(), " has ", model.durable.pins.size(),
                   " pins, and max_pins_per_model is ", state.limits.max_pins_per_model));
}

// A pin outlives its version: one that nobody announced after a restart is released by its number.
bool IsPinnedByNumber(const RegistryState& state, const ModelKey& key, const ReleasePin& command) {
  const Model* model = FindModel(state, key);
  const auto* sequence = std::get_if<VersionSequence>(&command.version);
  return model != nullptr && sequence != nullptr && HasPin(*model, *sequence, command);
}

// "pinned by eval, by ops form=fused".
std::string PinsOn(const Model& model, VersionSequence version) {
  std::vector<std::string> owners;
  for (const DurablePin& pin : model.durable.pins) {
    if (pin.version == version)
      owners.push_back(absl::StrCat("by ", pin.owner, FormSuffix(pin.form)));
  }
  return owners.empty() ? "nobody has one" : absl::StrCat("pinned ", absl::StrJoin(owners, ", "));
}

absl::Status CanRun(const RegistryState& state, const Request& request, const ReleasePin& command) {
  if (IsPinnedByNumber(state, request.key, command)) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(const Version* version, FindPublished(state, request.key, command.version));
  const Model& model = *version->model;
  if (HasPin(model, version->info.sequence, command)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      command.owner, " has no pin on ", version->info.ToString(), FormSuffix(command.form), " of ",
      request.key.ToString(), "; ", PinsOn(model, version->info.sequence)));
}

absl::Status CanRun(const RegistryState& state, const Request& request,
                    const SetRetention& command) {
  const ModelKey& key = request.key;
  TH_RETURN_IF_ERROR(ValidateName("run", key.run));
  TH_RETURN_IF_ERROR(ValidateName("model", key.model));
  TH_RETURN_IF_ERROR(CheckForm(command.form));
  const Model* model = FindModel(state, key);
  if (model == nullptr) return HasRoomForModel(state, key);
  const auto& forms = model->durable.keep_latest_of_form;
  if (command.form.empty() || forms.contains(command.form) || forms.size() < kMaxFormsRetained) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(key.ToString(), " has retention policies for ",
                                                   forms.size(), " forms, the most there may be"));
}

absl::Status CanRun(const RegistryState& state, const Request& request, const RollBack& command) {
  return RollBackModel{request.key, command, request.caller, request.asked_by}.CanApply(state);
}

absl::Status CanRun(const RegistryState& state, const Request& request, const Forget&) {
  return CanForget(state, request.key);
}

std::string TextOf(const Model& model, VersionSequence sequence) {
  const Version* version = FindVersion(model, sequence);
  return (version == nullptr ? VersionInfo{.sequence = sequence} : version->info).ToString();
}

std::string PinText(const std::string& version, const DurablePin& pin) {
  return absl::StrCat(version, FormSuffix(pin.form), " for ", pin.owner);
}

void NoteBy(Turn& turn, const Request& request, EventKind kind, std::string text) {
  Note(turn, request.key, {kind, EventId(), request.asked_by}, std::move(text));
}

CommandFinished Run(Turn& turn, const Request& request, const PinVersion& command) {
  const VersionInfo info = (*FindPublished(turn.state, request.key, command.version))->info;
  Model& model = *FindModel(turn.state, request.key);
  auto pin = FindPin(model.durable.pins, info.sequence, command);
  if (pin == model.durable.pins.end()) {
    pin = model.durable.pins.insert(
        pin, {.version = info.sequence, .owner = command.owner, .form = command.form});
    NoteBy(turn, request, EventKind::kPinned, PinText(info.ToString(), *pin));
  }
  pin->expires_at = turn.now + command.expires_after;
  ExpectExpiry(turn.state, model);
  Persist(turn, model);
  return {.version = info};
}

CommandFinished Run(Turn& turn, const Request& request, const ReleasePin& command) {
  VersionInfo info;
  if (const auto version = FindPublished(turn.state, request.key, command.version); version.ok()) {
    info = (*version)->info;
  } else {
    info.sequence = std::get<VersionSequence>(command.version);
  }
  Model& model = *FindModel(turn.state, request.key);
  const auto pin = FindPin(model.durable.pins, info.sequence, command);
  NoteBy(turn, request, EventKind::kPinReleased, PinText(info.ToString(), *pin));
  model.durable.pins.erase(pin);
  ExpectExpiry(turn.state, model);
  Persist(turn, model);
  return {.version = info};
}

std::string RetentionText(const SetRetention& command) {
  if (command.keep_latest > 0) {
    return absl::StrCat("the latest ", command.keep_latest, " are kept", FormSuffix(command.form));
  }
  return command.form.empty() ? "no version is kept by policy"
                              : absl::StrCat("the policy of form=", command.form, " is removed");
}

CommandFinished Run(Turn& turn, const Request& request, const SetRetention& command) {
  Model& model = TakeModel(turn, request.key);
  NoteBy(turn, request, EventKind::kRetentionSet, RetentionText(command));
  if (command.form.empty()) {
    model.durable.keep_latest = command.keep_latest;
  } else if (command.keep_latest == 0) {
    model.durable.keep_latest_of_form.erase(command.form);
  } else {
    model.durable.keep_latest_of_form[command.form] = command.keep_latest;
  }
  Persist(turn, model);
  return {};
}

CommandFinished Run(Turn& turn, const Request& request, const RollBack& command) {
  const VersionInfo to =
      RollBackModel{request.key, command, request.caller, request.asked_by}.Apply(turn);
  Model& model = *FindModel(turn.state, request.key);
  std::vector<DurableRollBackResult>& kept = model.durable.roll_back_results;
  kept.push_back({request.idempotency_key, to.sequence, to.label.text(), model.durable.lineage});
  if (kept.size() > kMaxRollBackResultsKept) kept.erase(kept.begin());
  Persist(turn, model);
  return {.version = to};
}

CommandFinished Run(Turn& turn, const Request& request, const Forget&) {
  ForgetOnCommand(turn, request.key, request.asked_by);
  return {};
}

// The result of a roll-back that ran under this key in an earlier epoch; null when none did.
const DurableRollBackResult* FindRollBackResult(const Model& model,
                                                const std::string& idempotency_key) {
  for (const DurableRollBackResult& result : model.durable.roll_back_results) {
    if (result.idempotency_key == idempotency_key) return &result;
  }
  return nullptr;
}

CommandFinished RestoreResult(const Model& model, const DurableRollBackResult& result) {
  CommandFinished finished{.idempotency_key = result.idempotency_key, .lineage = result.lineage};
  const Version* version = FindVersion(model, result.to);
  if (version != nullptr && version->announced) {
    finished.version = version->info;
    return finished;
  }
  finished.version.sequence = result.to;
  if (auto label = VersionLabel::Parse(result.label); label.ok()) finished.version.label = *label;
  return finished;
}

// As it was answered; without attributes where the version is not known any more.
CommandFinished RestoreResult(const Model& model, CommandFinished kept) {
  const Version* version = FindVersion(model, kept.version.sequence);
  if (version != nullptr) kept.version.attributes = version->info.attributes;
  return kept;
}

void Remember(Turn& turn, const ModelKey& key, const CommandFinished& finished) {
  Model* model = FindModel(turn.state, key);
  if (model == nullptr) return;
  CommandFinished& kept = model->commands[finished.idempotency_key];
  kept = finished;
  kept.version.attributes.clear();
  model->command_order.push_back(finished.idempotency_key);
  while (model->command_order.size() > turn.state.limits.max_commands_remembered) {
    model->commands.erase(model->command_order.front());
    model->command_order.pop_front();
  }
}

bool WorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

absl::Status CheckIdempotencyKey(const RunCommand& message) {
  const size_t bytes = message.idempotency_key.size();
  if (bytes > 0 && bytes <= kMaxIdempotencyKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an idempotency key has 1 to ", kMaxIdempotencyKeyBytes, " bytes, this one has ", bytes));
}

}  // namespace

CommandFinished RunOnce(Turn& turn, const ModelKey& key, const RunCommand& message,
                        const Group* caller, const std::string& asked_by) {
  const Model* model = FindModel(turn.state, key);
  if (model != nullptr) {
    auto done = model->commands.find(message.idempotency_key);
    if (done != model->commands.end()) return RestoreResult(*model, done->second);
    const DurableRollBackResult* earlier = FindRollBackResult(*model, message.idempotency_key);
    if (earlier != nullptr) return RestoreResult(*model, *earlier);
  }
  const Request request{key, message.idempotency_key, caller, asked_by};
  absl::Status status = CheckIdempotencyKey(message);
  CommandFinished finished;
  std::visit(
      [&](const auto& command) {
        if (status.ok()) status = CanRun(turn.state, request, command);
        if (status.ok()) finished = Run(turn, request, command);
      },
      message.command);
  finished.idempotency_key = message.idempotency_key;
  finished.status = status;
  if (Model* after = FindModel(turn.state, key)) {
    finished.lineage = after->durable.lineage;
    if (status.ok()) NoteUse(turn.state, *after, turn.now);
  }
  if (!WorthAnotherTry(status) && CheckIdempotencyKey(message).ok()) Remember(turn, key, finished);
  return finished;
}

void ExpirePins(Turn& turn) {
  auto& expiries = turn.state.pin_expiries;
  while (!expiries.empty() && expiries.begin()->first <= turn.now) {
    Model& model = *FindModel(turn.state, expiries.begin()->second);
    std::erase_if(model.durable.pins, [&](const DurablePin& pin) {
      if (pin.expires_at > turn.now) return false;
      Note(turn, model.key, {EventKind::kPinReleased},
           absl::StrCat(PinText(TextOf(model, pin.version), pin), ": its time has passed"));
      return true;
    });
    ExpectExpiry(turn.state, model);
    NoteUse(turn.state, model, turn.now);
    Persist(turn, model);
  }
}

}  // namespace th::registry
