#include "th/simulator/scenarios/timeline_picture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace th {
namespace {

// In pixels.
constexpr double kLabelWidth = 150;
constexpr double kTimeWidth = 1000;
constexpr double kMargin = 16;
constexpr double kHeaderHeight = 64;
constexpr double kLegendLine = 16;
constexpr double kLegendColumn = 190;
constexpr int kLegendColumns = 6;
constexpr double kRowHeight = 12;
constexpr double kBarHeight = 9;
constexpr double kTicksWanted = 10;
// Far from each other on the circle of hues: the golden angle.
constexpr double kHueStep = 137.508;

// "rollout-1" of "rollout-1/0".
std::string GroupOf(const std::string& rank) { return rank.substr(0, rank.rfind('/')); }

class Picture {
 public:
  explicit Picture(const ScenarioResult& result);
  std::string Draw();

 private:
  double XOf(absl::Duration time) const {
    return kMargin + kLabelWidth + kTimeWidth * absl::FDivDuration(time - from_, to_ - from_);
  }
  double YOf(size_t row) const { return rows_top_ + kRowHeight * static_cast<double>(row); }
  const std::string& ColourOf(const std::string& group);
  void Text(double x, double y, absl::string_view text, absl::string_view attributes = "");
  void Header();
  void Legend();
  void Axis();
  void Publications();
  void Rows();
  void Row(const RankResult& rank, double y);
  void Bar(const RankResult& rank, const FillSpan& span, double y, double height);

  const ScenarioResult& result_;
  std::vector<const RankResult*> readers_;
  size_t left_out_ = 0;
  absl::Duration from_ = absl::InfiniteDuration(), to_;
  std::map<std::string, std::string> colours_;  // by the group of a source
  std::vector<std::string> legend_;             // groups in the order of their first bar
  double rows_top_ = 0, bottom_ = 0;
  size_t bars_ = 0;
  std::string body_;
};

Picture::Picture(const ScenarioResult& result) : result_(result) {
  for (const RankResult& rank : result.ranks) {
    if (rank.spans.empty()) continue;
    if (readers_.size() == kMaxTimelineRows) {
      ++left_out_;
      continue;
    }
    readers_.push_back(&rank);
    for (const FillSpan& span : rank.spans) {
      from_ = std::min(from_, span.began);
      to_ = std::max(to_, span.ended);
      ColourOf(GroupOf(span.source));
    }
  }
  for (const VersionResult& version : result.versions) from_ = std::min(from_, version.published);
  if (from_ >= to_) {  // nothing was received
    from_ = absl::ZeroDuration();
    to_ = std::max(result.ended, absl::Seconds(1));
  }
  const size_t shown = std::min(legend_.size(), kMaxTimelineLegend + 1);
  const double legend_lines = std::ceil(static_cast<double>(shown) / kLegendColumns);
  rows_top_ = kHeaderHeight + kLegendLine * (legend_lines + 1);
  bottom_ = YOf(readers_.size());
}

const std::string& Picture::ColourOf(const std::string& group) {
  const auto found = colours_.find(group);
  if (found != colours_.end()) return found->second;
  const double hue = std::fmod(210 + kHueStep * static_cast<double>(legend_.size()), 360);
  legend_.push_back(group);
  return colours_.emplace(group, absl::StrFormat("hsl(%.0f,62%%,52%%)", hue)).first->second;
}

void Picture::Text(double x, double y, absl::string_view text, absl::string_view attributes) {
  absl::StrAppendFormat(&body_, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, attributes,
                        EscapeXml(text));
}

void Picture::Header() {
  Text(kMargin, 22,
       absl::StrCat(result_.scenario, ", policy ", ScenarioPolicyName(result_.policy), ", seed ",
                    result_.seed),
       " font-size=\"15\"");
  Text(kMargin, 42,
       absl::StrFormat("who received from whom; stall: trainer %.3f GPU s, rollouts %.3f GPU s",
                       absl::ToDoubleSeconds(result_.TrainerStall().total()),
                       absl::ToDoubleSeconds(result_.RolloutStall().total())));
  if (left_out_ > 0) {
    Text(kMargin + kLabelWidth + kTimeWidth, 42,
         absl::StrCat("the first ", kMaxTimelineRows, " ranks; ", left_out_, " more"),
         " text-anchor=\"end\"");
  }
}

void Picture::Legend() {
  const size_t shown = std::min(legend_.size(), kMaxTimelineLegend);
  for (size_t i = 0; i < shown; ++i) {
    const double x = kMargin + kLegendColumn * static_cast<double>(i % kLegendColumns);
    const size_t line = i / kLegendColumns;
    const double y = kHeaderHeight + kLegendLine * static_cast<double>(line);
    absl::StrAppendFormat(&body_,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n",
                          x, y - 9, colours_.at(legend_[i]));
    Text(x + 14, y, absl::StrCat("from ", legend_[i]));
  }
  if (legend_.size() == shown) return;
  const size_t line = shown / kLegendColumns;
  const double y = kHeaderHeight + kLegendLine * static_cast<double>(line);
  Text(kMargin, y, absl::StrCat("and ", legend_.size() - shown, " more sources"));
}

// Ticks at 1, 2 or 5 times a power of ten seconds.
void Picture::Axis() {
  const double seconds = absl::ToDoubleSeconds(to_ - from_);
  const double power = std::pow(10, std::floor(std::log10(seconds / kTicksWanted)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (seconds / step > kTicksWanted) step = factor * power;
  }
  const double first = std::ceil(absl::ToDoubleSeconds(from_) / step);
  for (double tick = first; tick * step <= absl::ToDoubleSeconds(to_); tick += 1) {
    const double x = XOf(absl::Seconds(tick * step));
    absl::StrAppendFormat(&body_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"#ddd\"/>\n",
                          x, rows_top_ - 4, x, bottom_);
    Text(x, bottom_ + 14, absl::StrFormat("%g s", tick * step), " text-anchor=\"middle\"");
  }
}

void Picture::Publications() {
  for (const VersionResult& version : result_.versions) {
    const double x = XOf(version.published);
    absl::StrAppendFormat(&body_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"#c00\" stroke-dasharray=\"3,2\"><title>%s</title></line>\n",
                          x, rows_top_ - 4, x, bottom_,
                          EscapeXml(absl::StrCat(version.label, " published")));
  }
}

// Sources at the same time share the row's height.
void Picture::Row(const RankResult& rank, double y) {
  const auto together = [](const FillSpan& a, const FillSpan& b) {
    return a.began < b.ended && b.began < a.ended;
  };
  const FillSpan* before = nullptr;
  bool low = false;
  for (size_t i = 0; i < rank.spans.size(); ++i) {
    const FillSpan& span = rank.spans[i];
    const FillSpan* after = i + 1 < rank.spans.size() ? &rank.spans[i + 1] : nullptr;
    const bool with_before = before != nullptr && together(*before, span);
    const bool shares = with_before || (after != nullptr && together(span, *after));
    low = with_before && !low;
    Bar(rank, span, low ? y + kBarHeight / 2 : y, shares ? kBarHeight / 2 : kBarHeight);
    before = &span;
  }
}

void Picture::Bar(const RankResult& rank, const FillSpan& span, double y, double height) {
  if (++bars_ > kMaxTimelineBars) return;
  const double x = XOf(span.began);
  const double width = std::max(1.0, XOf(span.ended) - x);
  const std::string title =
      absl::StrFormat("%s from %s: %.6f s to %.6f s", rank.name, span.source,
                      absl::ToDoubleSeconds(span.began), absl::ToDoubleSeconds(span.ended));
  absl::StrAppendFormat(&body_,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" "
                        "fill-opacity=\"0.85\"><title>%s</title></rect>\n",
                        x, y, width, height, ColourOf(GroupOf(span.source)), EscapeXml(title));
}

void Picture::Rows() {
  for (size_t row = 0; row < readers_.size(); ++row) {
    const RankResult& rank = *readers_[row];
    Text(kMargin + kLabelWidth - 6, YOf(row) + 9, rank.name, " text-anchor=\"end\"");
    Row(rank, YOf(row));
  }
  if (bars_ > kMaxTimelineBars) {
    Text(kMargin, bottom_ + 30, absl::StrCat(bars_ - kMaxTimelineBars, " bars are left out"));
  }
}

std::string Picture::Draw() {
  Header();
  Legend();
  Axis();
  Rows();
  Publications();
  const double width = 2 * kMargin + kLabelWidth + kTimeWidth;
  const double height = bottom_ + 40;
  return absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"10\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n",
      width, height, width, height, body_);
}

}  // namespace

std::string EscapeXml(absl::string_view text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        // XML has no other controls, not even as references; other bytes of UTF-8 stay.
        if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\t') {
          escaped += "\xef\xbf\xbd";
        } else {
          escaped += c;
        }
    }
  }
  return escaped;
}

std::string TimelinePicture(const ScenarioResult& result) { return Picture(result).Draw(); }

}  // namespace th
