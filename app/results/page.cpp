#include "app/results/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <set>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/value.h"
#include "app/results/chart.h"
#include "app/results/page_style.h"
#include "app/results/text.h"
#include "app/train/best.h"

namespace axial::app {
namespace {

// Told apart by people with any colour vision (Okabe and Ito); yellow is left out on white.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"};

constexpr const char* kPixels = " class=\"pixels\"";

constexpr const char* kAboutCurves =
    R"(<p class="soft">Solid: validation (held-out images, or the test set where none are
held out), in evaluation mode. Dashed: training, the mean
over the epoch with its augmentation, dropout and label smoothing, which is why it may look worse. The learning rate is
that at the end of an epoch.</p>
)";

constexpr const char* kAboutAttention =
    R"(<p class="soft">Attention rollout: how much of each place arrives in the pooled
output, followed back through the row and column passes (half of a place's share stays where it is, half is spread along
the line by the attention probabilities, averaged over heads). Violet is the least of a picture, yellow the most; the
number is the greatest value as a multiple of the mean. <b>rows</b> leaves the column passes out, <b>columns</b> the row
passes. The map shows what is mixed in, not which class it speaks for.</p>
)";

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string colour_of(std::size_t run) { return kColours[run % std::size(kColours)]; }

std::string chip(std::size_t run) {
  return "<span class=\"chip\" style=\"background:" + colour_of(run) + "\"></span>";
}

std::string data_uri(const std::string& png) { return "data:image/png;base64," + base64(png); }

std::string number_or_dash(const char* pattern, double value) {
  return std::isfinite(value) ? format(pattern, value) : std::string("-");
}

std::string overview(const std::vector<ReportedRun>& runs) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>run</th><th>state</th><th class=\"n\">epochs</th><th class=\"n\">best top1"
      "</th><th>of</th><th class=\"n\">at epoch</th><th class=\"n\">test top1</th><th class=\"n\">test loss</th><th "
      "class=\"n\">"
      "calibration error</th><th class=\"n\">training</th><th class=\"n\">images/s, last epoch</th></tr>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunSummary& run = runs[i].summary;
    const RunResults& r = runs[i].results;
    const bool evaluated = r.problem.empty();
    const double none = std::numeric_limits<double>::quiet_NaN();
    const EpochMetrics* last = run.epochs.empty() ? nullptr : &run.epochs.back();
    const auto cell = [](const std::string& value) { return "<td class=\"n\">" + value + "</td>"; };
    text +=
        "<tr><td>" + chip(i) + html(runs[i].name) + "</td><td>" + name_of(run.state) + "</td>" +
        cell(run.metrics_readable ? std::to_string(run.epochs_done()) + "/" + std::to_string(run.config.train.epochs)
                                  : "unreadable") +
        cell(percent_text(run.best_top1)) +
        (run.problem.empty() ? "<td>" + chosen_by(run.config) + "</td>" : "<td>-</td>") +
        cell(run.best_epoch > 0 ? std::to_string(run.best_epoch) : "-") +
        cell(percent_text(evaluated ? r.scores.top1 : none)) +
        cell(number_or_dash("%.4f", evaluated ? r.loss : none)) +
        cell(percent_text(evaluated ? r.scores.ece : none)) +
        cell(last == nullptr ? "-" : number_or_dash("%.0f s", last->seconds)) +
        cell(last == nullptr ? "-" : number_or_dash("%.0f", last->images_per_second)) + "</tr>\n";
  }
  return text + "</table></div>\n";
}

std::string curves(const std::vector<ReportedRun>& runs) {
  const auto chart = [&](const std::string& title, bool percent, double EpochMetrics::*train,
                         double EpochMetrics::*test) {
    Chart c;
    c.title = title;
    c.x_name = "epoch";
    c.percent = percent;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto add = [&](const std::string& what, double EpochMetrics::*field, bool dashed) {
        Series s;
        s.name = runs[i].name + what;
        s.colour = colour_of(i);
        s.dashed = dashed;
        for (const EpochMetrics& row : runs[i].summary.epochs) {
          s.x.push_back(row.epoch);
          s.y.push_back(row.*field);
        }
        c.series.push_back(s);
      };
      if (train != nullptr) add(test == nullptr ? "" : ", training", train, test != nullptr);
      if (test != nullptr) add(", validation", test, false);
    }
    return chart_svg(c);
  };
  const std::string drawn = chart("Loss", false, &EpochMetrics::train_loss, &EpochMetrics::val_loss) +
                            chart("Accuracy (top1)", true, &EpochMetrics::train_top1, &EpochMetrics::val_top1) +
                            chart("Learning rate", false, &EpochMetrics::lr, nullptr);
  if (drawn.empty()) return "<p class=\"note\">No epoch is complete yet.</p>\n";
  return std::string(kAboutCurves) + "<div class=\"charts\">\n" + drawn + "</div>\n";
}

std::string differences(const std::vector<ReportedRun>& runs) {
  const bool alone = runs.size() == 1;
  const Config defaults = load_config({}, {});
  std::set<std::string> differing;
  for (const ReportedRun& run : runs) {
    const Config& other = alone ? defaults : runs.front().summary.config;
    for (const std::string& key : differing_keys(other, run.summary.config)) differing.insert(key);
  }
  if (differing.empty()) {
    return alone ? "<p>Every key has its default.</p>\n" : "<p>The configurations are the same.</p>\n";
  }
  std::string text =
      std::string("<p class=\"soft\">") +
      (alone ? "Keys that differ from their defaults." : "Keys in which the runs differ; all others agree.") +
      "</p>\n<div class=\"wide\"><table><tr><th>key</th>";
  if (alone) text += "<th>default</th>";
  for (std::size_t i = 0; i < runs.size(); ++i) text += "<th>" + chip(i) + html(runs[i].name) + "</th>";
  text += "<th>meaning</th></tr>\n";
  for (const Key& key : schema()) {
    if (differing.count(key.path) == 0) continue;
    text += "<tr><td class=\"key\"><code>" + key.path + "</code></td>";
    if (alone) text += "<td><code>" + html(key.preset) + "</code></td>";
    for (const ReportedRun& run : runs)
      text += "<td><code>" + html(print_value(key, run.summary.config)) + "</code></td>";
    text += "<td class=\"soft\">" + html(key.help) + "</td></tr>\n";
  }
  return text + "</table></div>\n";
}

std::string mistakes_html(const RunResults& r) {
  if (r.mistakes.empty()) return "<p>There is none: every test image was recognised.</p>\n";
  std::string text = "<p class=\"soft\">" + std::to_string(r.mistakes.size()) + " of " +
                     std::to_string(r.mistakes_in_all) +
                     " mistakes: those of which the model was surest. The number is that of the test image "
                     "(<code>axial predict RUN NUMBER</code>).</p>\n<div class=\"tiles\">\n";
  for (const Mistake& m : r.mistakes) {
    const std::string what = "test image " + std::to_string(m.index) + ": " + m.label + ", taken for " + m.predicted;
    text += "<div class=\"tile\"><img" + std::string(m.small ? kPixels : "") + " alt=\"" + html(what) + "\" src=\"" +
            data_uri(m.png) + "\">is <b>" + html(m.label) + "</b><br>taken for <b>" + html(m.predicted) + "</b><br>" +
            percent_text(m.confidence, 1) + " <span class=\"soft\">#" + std::to_string(m.index) + "</span></div>\n";
  }
  return text + "</div>\n";
}

std::string attention_html(const RunResults& r) {
  std::string text = std::string(kAboutAttention) + "<div class=\"looks\">\n";
  for (const Attended& a : r.attended) {
    const bool right = a.label == a.predicted;
    const auto part = [](const std::string& png, const std::string& name, double peak, const char* style) {
      return "<div><img" + std::string(style) + " alt=\"" + name + "\" src=\"" + data_uri(png) + "\">" + name +
             (peak > 0 ? format(", up to %.2g", peak) : "") + "</div>";
    };
    text += "<div class=\"look\"><p>#" + std::to_string(a.index) + ": <b>" + html(a.label) + "</b>" +
            (right ? ", recognised" : ", taken for <b>" + html(a.predicted) + "</b>") + " (" +
            percent_text(a.confidence, 1) + ")</p><div class=\"four\">" +
            part(a.picture, "picture", 0, a.small ? kPixels : "") + part(a.both, "both", a.both_peak, "") +
            part(a.rows, "rows", a.rows_peak, "") + part(a.columns, "columns", a.columns_peak, "") + "</div></div>\n";
  }
  return text + "</div>\n";
}

std::string results_html(const ReportedRun& run, std::size_t number) {
  std::string text = "<h2>" + chip(number) + html(run.name) + " on the test set</h2>\n";
  const RunResults& r = run.results;
  if (!r.problem.empty()) return text + "<p class=\"note\">Not evaluated: " + html(r.problem) + "</p>\n";
  const Scores& s = r.scores;
  const auto share = [](double fraction) { return "<span class=\"whole\">" + percent_text(fraction) + "</span>"; };
  text += "<p><code>" + html(r.checkpoint) + "</code> (" + r.weights + "), " + std::to_string(s.samples) +
          " images: top1 <b>" + share(s.top1) + "</b>" + (std::isnan(s.top5) ? "" : ", top5 " + share(s.top5)) +
          format(", loss %.4f, calibration error ", r.loss) + share(s.ece) + ", mean F1 " + share(s.macro_f1) +
          ".</p>\n<h3>Classes</h3>\n" + classes_html(s) + "<h3>Confusion matrix</h3>\n" + confusion_html(s) +
          "<h3>Worst mistakes</h3>\n" + mistakes_html(r);
  if (!r.attended.empty()) text += "<h3>Where it looks</h3>\n" + attention_html(r);
  return text;
}

}  // namespace

std::string report_page(const std::vector<ReportedRun>& runs, const std::string& date) {
  std::string names;
  for (const ReportedRun& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  std::string text =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>axial: " + html(names) +
      "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>" + kPageStyle +
      "</style></head><body>\n<h1>" + html(names) + "</h1>\n<p class=\"soft\">Written by axial " + "report, " +
      html(date) + ".</p>\n" + overview(runs);
  for (const ReportedRun& run : runs) {
    if (!run.summary.problem.empty()) text += "<p class=\"note\">" + html(run.summary.problem) + "</p>\n";
    if (run.summary.state == RunState::kFailed && !run.summary.last_line.empty()) {
      text += "<p class=\"note\">" + html(run.name) + " failed; its log ends with: <code>" +
              html(run.summary.last_line) + "</code></p>\n";
    }
  }
  text += "<h2>Curves</h2>\n" + curves(runs) + "<h2>Configuration</h2>\n" + differences(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) text += results_html(runs[i], i);
  return text + "</body></html>\n";
}

}  // namespace axial::app
