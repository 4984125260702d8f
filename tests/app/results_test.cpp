// What is said of a model's predictions and of runs, without a model.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "app/config/load.h"
#include "app/results/chart.h"
#include "app/results/page.h"
#include "app/results/prediction_writer.h"
#include "app/results/text.h"
#include "app/run/run_error.h"
#include "app/train/best.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

using testing::put;
using testing::Scratch;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Prediction prediction(std::int64_t label, std::int64_t predicted, double confidence, std::int64_t rank) {
  return {label, predicted, rank, confidence, 0};
}

// a: 2 of 3 right; b: 1 of 2 right, once taken for c; c: none there; d: never right and never guessed.
const std::vector<Prediction> kSome = {prediction(0, 0, 0.95, 0), prediction(0, 0, 0.85, 0),
                                       prediction(0, 1, 0.65, 1), prediction(1, 1, 0.55, 0),
                                       prediction(1, 2, 0.45, 5), prediction(3, 0, 1.0, 6)};
const std::vector<std::string> kNames = {"a", "b", "c", "d", "e", "f", "g"};

TEST(Scores, AreTheTextbooks) {
  const Scores s = score(kSome, kNames);
  EXPECT_EQ(s.samples, 6);
  EXPECT_DOUBLE_EQ(s.top1, 3.0 / 6);
  EXPECT_DOUBLE_EQ(s.top5, 4.0 / 6);
  EXPECT_DOUBLE_EQ(s.classes[0].precision, 2.0 / 3);
  EXPECT_DOUBLE_EQ(s.classes[0].recall, 2.0 / 3);
  EXPECT_DOUBLE_EQ(s.classes[1].precision, 1.0 / 2);
  EXPECT_DOUBLE_EQ(s.classes[1].f1, 2.0 / 4);
  EXPECT_EQ(s.classes[2].precision, 0);
  EXPECT_TRUE(std::isnan(s.classes[2].recall)) << "no sample of it";
  EXPECT_TRUE(std::isnan(s.classes[3].precision)) << "never guessed";
  EXPECT_EQ(s.classes[3].f1, 0);
  EXPECT_TRUE(std::isnan(s.classes[6].f1));
  EXPECT_EQ(s.confusion[1][2], 1);
  EXPECT_EQ(s.confusion[3][0], 1);
  // Over a, b and d, which have samples.
  EXPECT_DOUBLE_EQ(s.macro_recall, (2.0 / 3 + 1.0 / 2 + 0) / 3);
  EXPECT_DOUBLE_EQ(s.macro_precision, (2.0 / 3 + 1.0 / 2 + 0) / 3);
  EXPECT_TRUE(std::isnan(score(kSome, {"a", "b", "c", "d"}).top5)) << "four classes have no five best";
}

TEST(Scores, CalibrationErrorIsTheMeanGapOfItsBins) {
  // Five bins hold samples; 1.0 and 0.95 share the last, (14/15, 1]: one right of two at 0.975.
  const double gap = std::abs(1 - 0.975 * 2) + std::abs(1 - 0.85) + 0.65 + std::abs(1 - 0.55) + 0.45;
  const Scores s = score(kSome, kNames);
  EXPECT_NEAR(s.ece, gap / 6, 1e-12);
  ASSERT_EQ(s.bins.size(), 15u);
  EXPECT_EQ(s.bins[14].count, 2);
  EXPECT_DOUBLE_EQ(s.bins[14].accuracy, 0.5);
  // The bound belongs to the lower bin, and confidence 0 to the first.
  EXPECT_EQ(score({prediction(0, 0, 3.0 / 15, 0)}, kNames).bins[2].count, 1);
  EXPECT_EQ(score({prediction(0, 0, 0, 0)}, kNames).bins[0].count, 1);
  EXPECT_NEAR(score({prediction(0, 0, 1, 0), prediction(1, 1, 1, 0)}, kNames).ece, 0, 1e-15);
}

TEST(Scores, GoIntoJsonWithNullForWhatIsNotDefined) {
  const Json j = scores_json(score(kSome, kNames));
  EXPECT_EQ(j.at("classes")[0].at("precision"), 0.666667);
  EXPECT_TRUE(j.at("classes")[2].at("recall").is_null());
  EXPECT_EQ(j.at("confusion")[3][0], 1);
  EXPECT_EQ(j.at("calibration").size(), 15u);
  EXPECT_TRUE(j.at("calibration")[0].at("accuracy").is_null());
}

TEST(Scores, TableHasAClassALineAndTheWorstOfMany) {
  const std::vector<std::string> table = scores_table(score(kSome, kNames));
  ASSERT_EQ(table.size(), 1 + 7 + 3u);
  EXPECT_TRUE(has(table[1], "a")) << table[1];
  EXPECT_TRUE(has(table[1], "66.67")) << table[1];
  EXPECT_TRUE(has(table[9], "top1 50.00 %, top5 66.67 %")) << table[9];
  EXPECT_TRUE(has(table[10], "most often mistaken: a for b (1)")) << table[10];
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back("class " + std::to_string(i));
  const std::vector<std::string> worst = scores_table(score(kSome, many));
  ASSERT_EQ(worst.size(), 1 + 40 + 4u);
  EXPECT_TRUE(has(worst[41], "the worst 40 of 100")) << worst[41];
}

TEST(Text, IsQuotedForWhereItGoes) {
  EXPECT_EQ(csv_field("a b"), "a b");
  EXPECT_EQ(csv_field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
  EXPECT_EQ(html("<b & \"c\">\xc3\xa9\xff"), "&lt;b &amp; &quot;c&quot;&gt;\xc3\xa9\xef\xbf\xbd");
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("M"), "TQ==");
  EXPECT_EQ(base64("Ma"), "TWE=");
  EXPECT_EQ(base64("Man\xff\xfe\xfd"), "TWFu//79");
  EXPECT_EQ(padded("h\xc3\xa9", 4), "h\xc3\xa9  ");
  EXPECT_EQ(padded("h\xc3\xa9llo", 3), "h\xc3\xa9~");
}

TEST(Text, ObeysNoControlCharacters) {
  EXPECT_EQ(plain_text("a\x1b[2J\n\tb\x7f\xc3\xa9"), "a?[2J??b?\xc3\xa9");
  EXPECT_EQ(plain_text("a\x1b\nb", /*keep_lines=*/true), "a?\nb");
}

TEST(PredictionWriter, WritesTheThreeForms) {
  const std::vector<RankedClass> classes = {{"T-shirt, top", 0.75}, {"shoe", 0.125}};
  const auto written = [&](const std::string& format) {
    std::ostringstream out;
    PredictionWriter writer(out, format);
    writer.write("a\t\"b\".png", classes);
    writer.flush();
    return out.str();
  };
  EXPECT_EQ(written("text"), "a?\"b\".png\tT-shirt, top\t0.7500\na?\"b\".png\tshoe\t0.1250\n");
  EXPECT_EQ(written("csv"),
            "input,rank,class,probability\n\"a\t\"\"b\"\".png\",1,\"T-shirt, top\",0.750000\n"
            "\"a\t\"\"b\"\".png\",2,shoe,0.125000\n");
  const Json line = Json::parse(written("jsonl"));
  EXPECT_EQ(line.at("input"), "a\t\"b\".png");
  EXPECT_EQ(line.at("classes")[0].at("class"), "T-shirt, top");
  EXPECT_EQ(line.at("classes")[1].at("probability"), 0.125);
}

TEST(Chart, TicksAreRoundAndCoverTheValues) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const std::vector<double> ticks = nice_ticks(0.13, 0.47, 5);
  EXPECT_LE(ticks.front(), 0.13);
  EXPECT_GE(ticks.back(), 0.47);
  EXPECT_GE(nice_ticks(3, 3, 5).size(), 2u);
  const std::vector<double> nearly_one = nice_ticks(0.3, 0.30000000000000004, 5);  // 3 * 0.1 in a sweep
  EXPECT_TRUE(nearly_one.size() >= 2 && nearly_one.size() < 20) << nearly_one.size();
  EXPECT_GE(nice_ticks(0, 0, 5).size(), 2u);
}

TEST(Chart, BreaksWhereAValueIsMissing) {
  Chart chart;
  chart.title = "Loss <1>";
  chart.x_name = "epoch";
  Series series;
  series.name = "run & co";
  series.colour = "#000000";
  series.x = {1, 2, 3, 4};
  series.y = {1, NAN, 3, 4};
  chart.series = {series};
  const std::string svg = chart_svg(chart);
  const std::size_t d = svg.find(" d=\"");
  ASSERT_NE(d, std::string::npos);
  const std::string path = svg.substr(d + 4, svg.find('"', d + 4) - d - 4);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2) << path;
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 1) << path;
  EXPECT_TRUE(has(svg, "Loss &lt;1&gt;"));
  EXPECT_TRUE(has(svg, "run &amp; co"));
  EXPECT_FALSE(has(svg, "nan"));
  chart.series[0].y = {NAN, NAN, NAN, NAN};
  EXPECT_EQ(chart_svg(chart), "");
}

// A run's folder as train leaves it.
void write_run(const std::filesystem::path& folder, const std::string& last_line, int epochs) {
  std::filesystem::create_directories(folder / "checkpoints");
  put(folder / "config.yaml", "train:\n  epochs: 3\n");
  std::string rows = "epoch,step,lr,train_loss,train_top1,val_loss,val_top1,best_top1,images_per_second,seconds\n";
  for (int i = 1; i <= epochs; ++i) {
    rows +=
        std::to_string(i) + ",10,0.001,2.5,0.25," + (i == 2 ? "," : "1.5,0." + std::to_string(i)) + ",0.1,100,5\n";
  }
  put(folder / "metrics.csv", rows + "4,cut in mid");
  put(folder / "train.log", "2026-11-29 23:25:34.354 info: run x\n2026-11-29 23:25:38.586 " + last_line + "\n");
}

TEST(Runs, StatesFollowFromTheFilesOfARun) {
  const Scratch scratch;
  write_run(scratch / "done", "info: best: epoch 3, top1 30.00 % in ...", 3);
  write_run(scratch / "stopped", "info: stopped after epoch 1/3; continue with: ...", 1);
  write_run(scratch / "failed", "error: after epoch 1/3: the training loss is nan", 1);
  write_run(scratch / "killed", "info: epoch 2/3  batch 7/16", 1);
  write_run(scratch / "busy", "info: epoch 2/3  batch 7/16", 1);
  write_run(scratch / "full", "error: checkpoints/best.safetensors: cannot be written: No space left on device", 3);
  std::filesystem::create_directories(scratch / "no run");
  put(scratch / "config.yaml.txt", "");
  put(scratch / "busy/.lock", "1\n");
  const int lock = ::open((scratch / "busy/.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  const std::vector<RunSummary> runs = list_runs(scratch.path());
  ASSERT_EQ(runs.size(), 6u);
  std::map<std::string, std::string> states;
  for (const RunSummary& run : runs) states[run.path.filename()] = name_of(run.state);
  EXPECT_EQ(states, (std::map<std::string, std::string>{{"done", "finished"},
                                                        {"stopped", "stopped"},
                                                        {"failed", "failed"},
                                                        {"killed", "failed"},
                                                        {"full", "failed"},
                                                        {"busy", "running"}}));
  ::close(lock);
  EXPECT_EQ(name_of(read_run(scratch / "busy").state), "failed");

  const RunSummary done = read_run(scratch / "done");
  EXPECT_EQ(done.epochs_done(), 3) << "half a row is none";
  EXPECT_DOUBLE_EQ(done.best_top1, 0.3);
  EXPECT_EQ(done.best_epoch, 3);
  EXPECT_TRUE(std::isnan(done.epochs[1].val_top1));
  EXPECT_EQ(done.last_line.rfind("info: best: ", 0), 0u) << done.last_line;
  EXPECT_EQ(list_runs(scratch / "done").size(), 1u);
  EXPECT_THROW(read_run(scratch / "no run"), RunError);
  EXPECT_THROW(list_runs(scratch / "nowhere"), RunError);
  put(scratch / "done/config.yaml", "train:\n  epochz: 3\n");
  EXPECT_TRUE(has(read_run(scratch / "done").problem, "epochz"));

  // A pipe that nobody writes is not waited for.
  for (const char* name : {"metrics.csv", "train.log", ".lock"}) {
    std::filesystem::remove(scratch / "done" / name);
    ASSERT_EQ(::mkfifo((scratch / "done" / name).c_str(), 0600), 0);
  }
  EXPECT_EQ(read_run(scratch / "done").epochs_done(), 0);
  EXPECT_FALSE(read_run(scratch / "done").metrics_readable);
}

TEST(Runs, EpochsThatAreNoneAreLeftOutAndSaid) {
  const Scratch scratch;
  write_run(scratch / "run", "info: epoch 2/3  batch 7/16", 0);
  const auto read = [&](const std::string& rows) {
    put(scratch / "run/metrics.csv", "epoch,val_loss,val_top1\n" + rows);
    return read_run(scratch / "run");
  };
  EXPECT_EQ(read("1,1,0.5\n3,1,0.5\n").metrics_problem, "") << "train.eval_every is not 1";
  for (const auto& [bad, row] : std::vector<std::pair<std::string, std::string>>{
           {"-1", "2"}, {"0", "2"}, {"1e30", "2"}, {"1.5", "2"}, {"", "2"}, {"x", "2"}}) {
    const RunSummary run = read(bad + ",1,0.9\n1,1,0.5\n");
    EXPECT_EQ(run.metrics_problem, (scratch / "run/metrics.csv").string() + ": row " + row +
                                       ": expected an epoch above 0, found '" + bad + "'; such rows are left out");
    EXPECT_EQ(run.epochs_done(), 1);
    EXPECT_EQ(run.best_epoch, 1);
    EXPECT_TRUE(run.metrics_readable);
  }
  const RunSummary back = read("1,1,0.5\n2,1,0.6\n1,1,0.9\n3,1,0.1\n");
  EXPECT_TRUE(has(back.metrics_problem, "row 4: expected an epoch above 2, found '1'"));
  EXPECT_EQ(back.epochs_done(), 3);
  EXPECT_EQ(back.best_epoch, 2);
}

// What axial runs and report call the best epoch is what training keeps as best.safetensors.
TEST(Runs, WhoseAccuracyChoosesTheBestEpochIsSaid) {
  EXPECT_EQ(chosen_by(load_config({}, {})), "test set");
  EXPECT_EQ(chosen_by(load_config({}, {"data.validation_fraction=0.1"})), "held-out images");
}

TEST(Runs, TheBestEpochIsTheOneThatTrainingKeeps) {
  const Scratch scratch;
  write_run(scratch / "run", "info: best: ...", 0);
  const auto best = [&](const std::string& config, const std::vector<const char*>& loss_and_top1) {
    std::string rows = "epoch,val_loss,val_top1\n";
    for (std::size_t i = 0; i < loss_and_top1.size(); ++i)
      rows += std::to_string(i + 1) + "," + loss_and_top1[i] + "\n";
    put(scratch / "run/config.yaml", "train: {epochs: 4, " + config + "}\n");
    put(scratch / "run/metrics.csv", rows);
    const RunSummary run = read_run(scratch / "run");
    return std::pair(run.best_epoch, run.best_top1);
  };
  using Best = std::pair<std::int64_t, double>;
  EXPECT_EQ(best("eval_metric: top1", {"1.5,0.5", "1.2,0.75", "1.1,0.75", "1.3,0.75"}), Best(3, 0.75))
      << "of equals the lower loss";
  EXPECT_EQ(best("eval_metric: top1", {"1.5,0.5", "1.2,0.75", "1.2,0.75", "nan,0.9"}), Best(2, 0.75))
      << "and then the first";
  EXPECT_EQ(best("eval_metric: loss", {"1.5,0.5", "1.2,0.75", "1.4,0.9", ",", "1.1,0.25"}), Best(5, 0.25));
  EXPECT_TRUE(std::isnan(best("seed: 1", {",", "nan,0.5"}).second));
}

ReportedRun reported(const Scratch& scratch, const std::string& name) {
  write_run(scratch / name, "info: best: epoch 3", 3);
  ReportedRun run{name, read_run(scratch / name), {}};
  run.results.checkpoint = "best.safetensors";
  run.results.weights = "weights";
  run.results.scores = score(kSome, {"a<i>", "b", "c", "d", "e", "f", "g"});
  run.results.mistakes_in_all = 3;
  run.results.mistakes = {{"png", true, 7, "a<i>", "b", 0.65}};
  run.results.attended = {{7, true, "a<i>", "b", 0.65, "p", "q", "r", "s", 1.5, 1.25, 2}};
  return run;
}

TEST(ReportPage, HoldsEverythingItselfAndQuotesWhatItShows) {
  const Scratch scratch;
  std::vector<ReportedRun> runs = {reported(scratch, "one"), reported(scratch, "two & three")};
  runs[1].summary.config.optim.lr = 0.5;
  const std::string page = report_page(runs, "today");
  for (const char* part :
       {"<!DOCTYPE html>", "two &amp; three", "a&lt;i&gt;", "Loss", "Accuracy", "Learning rate", "optim.lr", "0.5",
        "Confusion matrix", "Worst mistakes", "Where it looks", "data:image/png;base64,cG5n", "</html>"}) {
    EXPECT_TRUE(has(page, part)) << part;
  }
  for (const char* part : {"http:", "https:", "<script", "a<i>", "url(", "@import", "<link"}) {
    EXPECT_FALSE(has(page, part)) << part;
  }
  EXPECT_FALSE(has(page, "optim.momentum")) << "keys in which the runs agree";
  runs[0].results.problem = "no <data> here";
  EXPECT_TRUE(has(report_page(runs, "today"), "Not evaluated: no &lt;data&gt; here"));
  runs[0].summary.epochs.clear();
  runs.pop_back();
  EXPECT_TRUE(has(report_page(runs, "today"), "No epoch is complete yet"));
}

TEST(ReportPage, ManyClassesAreListedAsPairs) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("class " + std::to_string(i));
  const std::string text = confusion_html(score(kSome, names));
  EXPECT_FALSE(has(text, "<svg"));
  EXPECT_TRUE(has(text, "<td>class 1</td><td>class 2</td><td class=\"n\">1</td>")) << text;
}

}  // namespace
}  // namespace axial::app
