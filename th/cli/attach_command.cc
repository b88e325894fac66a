// th attach: whether, and how fast, a version can be used where a holder on this host has it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "th/cli/commands.h"
#include "th/cli/pulling.h"
#include "th/command_line/quantity.h"
#include "th/command_line/reporter.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/worker/version_shards.h"

namespace th {
namespace {

struct AttachFlags {
  PullFlags pull{.command = "attach"};
  std::string shard;
  bool verify = false;
  bool hold = false;
  Reporter reporter;
};

constexpr char kSameHost[] = "same_host";

// "trainer/0", or empty for the only shard that there is.
absl::StatusOr<AttachOptions> ToAttachOptions(const AttachFlags& flags) {
  AttachOptions options{.form = flags.pull.form, .timeout = flags.pull.timeout};
  if (flags.shard.empty()) return options;
  const std::vector<std::string> parts = absl::StrSplit(flags.shard, '/');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &options.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shard ", flags.shard, ": expected GROUP/RANK, like trainer/0"));
  }
  options.group = parts[0];
  TH_RETURN_IF_ERROR(ValidateName("group", options.group));
  return options;
}

// Attaching maps memory of this host, which one transport can.
absl::Status CheckTransports(const std::vector<std::string>& transports) {
  if (transports.empty() || absl::c_linear_search(transports, kSameHost)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--transports ", absl::StrJoin(transports, ","),
                   " leaves out same_host, over which alone memory can be used in place: name it "
                   "too, or leave --transports out; th pull reads over the others"));
}

// Why nothing was attached although the call went well: the version is unknown, withdrawn or gone.
absl::Status WhyNothing(const PullFlags& flags, const VersionSelector& selector) {
  TH_ASSIGN_OR_RETURN(const auto controller, flags.connection.Connect());
  const absl::StatusOr<VersionInfo> version = controller->Resolve(selector);
  if (version.ok()) {
    return WhyNotRead(*controller, flags, *version,
                      absl::NotFoundError("it was held by nobody a moment ago"));
  }
  if (!absl::IsNotFound(version.status())) return version.status();
  TH_ASSIGN_OR_RETURN(const Catalog catalog, controller->List());
  return absl::NotFoundError(
      absl::StrCat(version.status().message(), "; ",
                   NameHeldVersions(catalog, flags.connection.key(), flags.form)));
}

// Explains an attach that failed: the server may know that the holder has gone.
absl::Status Explain(const AttachFlags& flags, const VersionSelector& selector,
                     const absl::Status& failed) {
  if (absl::IsInvalidArgument(failed)) {  // the flags were good
    return absl::FailedPreconditionError(absl::StrCat(
        failed.message(), flags.shard.empty()
                              ? "; name the shard with --shard GROUP/RANK, like --shard trainer/0"
                              : ""));
  }
  if (!absl::IsUnavailable(failed) && !absl::IsFailedPrecondition(failed)) return failed;
  TH_ASSIGN_OR_RETURN(const auto controller, flags.pull.connection.Connect());
  const absl::StatusOr<VersionInfo> version = controller->Resolve(selector);
  if (!version.ok()) return absl::IsNotFound(version.status()) ? version.status() : failed;
  const absl::Status why = WhyNotRead(*controller, flags.pull, *version, failed);
  // The holder has said why not.
  return absl::IsFailedPrecondition(failed) && !absl::IsNotFound(why) ? failed : why;
}

struct Attached {
  AttachedVersion version;
  absl::Duration attach;
  absl::Duration verify;  // where it was asked for
};

absl::StatusOr<Attached> Attach(const AttachFlags& flags, const VersionSelector& selector,
                                const AttachOptions& options) {
  TH_ASSIGN_OR_RETURN(ClientOptions client, ReaderOptions(flags.pull));
  const auto hub = Client::Join(std::move(client));
  if (!hub.ok()) return ExplainJoin(hub.status());
  const absl::Time begin = MonotonicNow();
  absl::StatusOr<AttachResult> result = (*hub)->Attach(selector, options);
  const absl::Time attached = MonotonicNow();
  if (!result.ok()) return Explain(flags, selector, result.status());
  if (!result->attached()) return WhyNothing(flags.pull, selector);
  if (flags.verify) TH_RETURN_IF_ERROR(result->version->Verify());
  return Attached{.version = *std::move(result->version),
                  .attach = attached - begin,
                  .verify = MonotonicNow() - attached};
}

// Keeps the version attached until a signal, whatever its holder does meanwhile.
ExitStatus Hold(const AttachFlags& flags, const AttachedVersion& version, StopSignals& stop) {
  stop.HoldOff();
  stop.Wait();
  if (!flags.verify) return ExitStatus::kOk;
  if (absl::Status same = version.Verify(); !same.ok()) return flags.reporter.Fail(same);
  flags.reporter.Report({{"verified_at_end", true}},
                        "at the end too all bytes are those that were published");
  return ExitStatus::kOk;
}

ExitStatus RunAttach(const AttachFlags& flags) {
  StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> selector = ParseVersionSelector(flags.pull.version);
  if (!selector.ok()) return flags.reporter.Fail(selector.status(), ExitStatus::kUsage);
  const absl::StatusOr<AttachOptions> options = ToAttachOptions(flags);
  if (!options.ok()) return flags.reporter.Fail(options.status(), ExitStatus::kUsage);
  absl::Status usable = CheckTransports(flags.pull.member.transports);
  usable.Update(ReaderOptions(flags.pull).status());
  if (!usable.ok()) return flags.reporter.Fail(usable, ExitStatus::kUsage);
  const absl::StatusOr<Attached> attached = Attach(flags, *selector, *options);
  if (!attached.ok()) {
    return flags.reporter.Fail(attached.status(), ExitStatusOfJoin(attached.status()));
  }
  const AttachedVersion& version = attached->version;
  const double milliseconds = absl::ToDoubleMilliseconds(attached->attach);
  nlohmann::json report = {{"version", version.version().label.text()},
                           {"sequence", version.version().sequence.ToString()},
                           {"source", version.source()},
                           {"tensors", version.size()},
                           {"bytes", version.layout().bytes()},
                           {"attach_ms", milliseconds}};
  std::string text =
      absl::StrFormat("version %s: %d tensors, %s in the memory of %s, attached in %.2f ms",
                      version.version().ToString(), version.size(),
                      FormatBytes(version.layout().bytes()), version.source(), milliseconds);
  if (flags.verify) {
    report["verify_seconds"] = absl::ToDoubleSeconds(attached->verify);
    absl::StrAppendFormat(&text, "; all bytes are those that were published (%.2f s)",
                          absl::ToDoubleSeconds(attached->verify));
  }
  flags.reporter.Report(report, text);
  return flags.hold ? Hold(flags, version, stop) : ExitStatus::kOk;
}

}  // namespace

void AddAttachCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<AttachFlags>();
  CLI::App* attach = app->add_subcommand(
      "attach", "try to use a version where a holder on this host has it, without a copy");
  AddPullFlags(attach, &flags->pull);
  attach->add_option("--shard", flags->shard,
                     "whose shard, like trainer/0; by default the only one that there is");
  attach->add_flag("--verify", flags->verify,
                   "read all bytes and compare them with the publisher's sums");
  attach->add_flag("--hold", flags->hold,
                   "keep it attached until a signal (SIGINT, SIGTERM); with --verify its bytes are "
                   "compared again then");
  flags->reporter.AddFlag(attach);
  attach->callback([flags, exit] { *exit = RunAttach(*flags); });
}

}  // namespace th
