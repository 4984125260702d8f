// Kills a small training again and again, does what else happens to long runs (stopped, signalled, a full disk, a
// file-size limit, lost permissions, files cut and exchanged, a second process), resumes after each, and compares
// what comes out with the run that nothing happened to: weights, averages, optimiser and metrics to the bit.
//
//   build/axial_stress --kills 500        prints a table; exit code 1 at the first thing that is wrong

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>

#include <CLI/CLI.hpp>

#include "tests/app/pictures.h"
#include "tests/stress/child.h"
#include "tests/stress/compare.h"

namespace axial::stress {
namespace {

namespace fs = std::filesystem;

constexpr int kEpochs = 60;
constexpr double kPatience = 120;  // seconds for anything that should end by itself

// One training, and what each resume may change without changing a bit.
struct Setup {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::vector<std::string>> on_resume;
};

std::vector<Setup> setups(const fs::path& pictures, const fs::path& cache) {
  const std::string configs = std::string(AXIAL_SOURCE_DIR) + "/configs/";
  const std::vector<std::string> synthetic = {"-c",
                                              configs + "smoke.yaml",
                                              "data.synthetic_train=16",
                                              "data.synthetic_test=8",
                                              "data.synthetic_height=8",
                                              "data.synthetic_width=8",
                                              "data.batch_size=4",
                                              "model.dim=[8,8]",
                                              "model.heads=[2,2]",
                                              "model.stem_channels=[8]",
                                              "model.head_dropout=0.1",
                                              "augment.flip=true",
                                              "augment.erase=0.5"};
  const auto with = [](std::vector<std::string> base, const std::vector<std::string>& more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  return {
      {"adamw, accumulation", with(synthetic, {"optim.name=adamw", "train.accumulate=3"}), {{}}},
      {"muon, float16 with loss scale",
       with(synthetic, {"optim.name=muon", "train.precision=float16", "train.loss_scale=16777216"}),
       {{}}},
      {"pictures, workers, averages, random parts",
       {"-c", configs + "image_folder.yaml", "data.dir=" + pictures.string(), "data.cache_dir=" + cache.string(),
        "data.folder_height=8", "data.folder_width=12", "data.batch_size=4", "data.workers=1", "model.dim=8",
        "model.heads=2", "model.depth=1", "model.stem_channels=[8]", "model.attention_dropout=0.1",
        "model.drop_path=0.1", "augment.scale=[0.3,1]", "train.ema_decay=0.9", "data.cache_memory=0"},
       {{"data.workers=1", "data.cache=none"},
        {"data.workers=3", "data.prefetch=4", "data.cache=disk"},
        {"data.workers=2", "data.prefetch=1", "data.cache=memory"}}},
  };
}

enum class Kind {
  kStart,
  kLater,
  kWriting,
  kPaused,
  kTerminated,
  kFileSize,
  kFull,
  kDenied,
  kCut,
  kExchanged,
  kSecond
};
constexpr const char* kNames[] = {"killed while it starts",
                                  "killed after some epochs",
                                  "killed while it writes a checkpoint",
                                  "stopped, continued, killed",
                                  "SIGTERM",
                                  "file-size limit",
                                  "full disk",
                                  "folder without permission",
                                  "last.safetensors cut",
                                  "last.safetensors exchanged for an older one",
                                  "a second process"};
constexpr int kKinds = static_cast<int>(std::size(kNames));

class Stress {
 public:
  Stress(fs::path folder, std::string program, unsigned seed)
      : folder_(std::move(folder)), program_(std::move(program)), random_(seed) {
    test::write_picture_set(folder_ / "pictures", {"a", "b", "c"}, 8);
    make("disk");
    make("cache");
    // A small file system of its own, which can be filled. Without the right to mount one that kind is left out.
    fs::create_directory(folder_ / "small");
    mounted_ = ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount("tmpfs", (folder_ / "small").c_str(), "tmpfs", 0, "size=8m,mode=777") == 0;
    usual_.unprivileged = program_.empty();  // another program's libraries may be closed to nobody
    denied_ = usual_.unprivileged || ::geteuid() != 0;
    if (!mounted_) std::printf("left out: full disk (no file system can be mounted)\n");
    if (!denied_) std::printf("left out: folder without permission (root may write anywhere)\n");
  }
  ~Stress() {
    if (mounted_) ::umount2((folder_ / "small").c_str(), MNT_DETACH);
  }

  void run(int kills) {
    const std::vector<Setup> all = setups(folder_ / "pictures", folder_ / "cache");
    for (int round = 0; kills_ < kills; ++round) {
      setup_ = &all[static_cast<std::size_t>(round) % all.size()];
      const fs::path whole =
          folder_ / (mounted_ ? "small" : "disk") / ("whole-" + std::to_string(setup_ - all.data()));
      if (!fs::exists(whole)) undisturbed(whole);
      small_ = mounted_ && round % 4 != 3;  // the flushes of a real disk take most of the time there
      run_ = folder_ / (small_ ? "small" : "disk") / "run";
      fs::remove_all(run_);
      next_ = start();
      while (kills_ < kills && !done()) disturb();
      while (!done()) attempt([](Child&) {}, usual_);
      const std::string what = difference(whole, run_);
      if (!what.empty()) wrong("the run is not the one that nothing happened to: " + what);
      for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
        if (entry.path().extension() != ".safetensors") wrong("left behind: " + entry.path().string());
      }
      ++rounds_;
      std::printf("%4d kills, %d runs bit-equal to undisturbed ones (%s, %s)\n", kills_, rounds_, setup_->name,
                  small_ ? "tmpfs" : "disk");
      std::fflush(stdout);
    }
    for (int k = 0; k < kKinds; ++k) std::printf("%6d  %s\n", times_[k], kNames[k]);
    std::printf("%d kills survived, %d disturbances in all, %d starts, %d of %d runs bit-equal\n", kills_, total_,
                starts_, rounds_, rounds_);
  }

 private:
  using Arguments = std::vector<std::string>;

  void make(const char* name) {
    fs::create_directory(folder_ / name);
    fs::permissions(folder_ / name, fs::perms::all);
  }

  [[noreturn]] void wrong(const std::string& what) const {
    throw std::runtime_error(std::string(setup_->name) + ", after " + std::to_string(kills_) + " kills (" +
                             last_kind_ + "): " + what);
  }
  double uniform(double most) { return std::uniform_real_distribution<double>(0, most)(random_); }
  fs::path last() const { return run_ / "checkpoints" / "last.safetensors"; }
  bool done() const { return epochs_done(last()) >= kEpochs; }

  Arguments start() const {
    Arguments a = {"train", "-o", run_.string(), "--overwrite"};
    a.insert(a.end(), setup_->arguments.begin(), setup_->arguments.end());
    a.insert(a.end(), {"train.device=cpu", "train.threads=1", "train.keep_last=2", "train.keep_best=1",
                       "train.epochs=" + std::to_string(kEpochs), "train.log_every=1000"});
    return a;
  }

  void undisturbed(const fs::path& whole) {
    run_ = whole;
    const double begin = now();
    Child child(start(), folder_, program_, usual_);
    while (child.running() && !fs::exists(last())) sleep_for(0.001);
    startup_ = now() - begin;
    if (!child.wait_for(kPatience) || child.wait() != 0) wrong("the undisturbed run failed: " + child.err());
    epoch_ = (now() - begin - startup_) / kEpochs;
    std::printf("%s: first checkpoint after %.0f ms, then %.1f ms an epoch\n", setup_->name, 1e3 * startup_,
                1e3 * epoch_);
  }

  // One start of the run from where it stands, and what is done to it. Follows the program's own advice where the
  // last checkpoint is missing or damaged.
  int attempt(const std::function<void(Child&)>& act, const Limits& limits) {
    ++starts_;
    const bool resumes = fs::exists(last());
    Arguments a = resumes ? Arguments{"train", "--resume=" + run_.string()} : next_;
    if (resumes || a[1].rfind("--resume", 0) == 0) {
      const auto& more = setup_->on_resume[random_() % setup_->on_resume.size()];
      if (!advice_.empty()) a[1] = "--resume=" + advice_;
      a.insert(a.end(), more.begin(), more.end());
    }
    Child child(a, folder_, program_, limits);
    act(child);
    if (!child.wait_for(kPatience)) wrong("hangs: " + child.err());
    const int code = child.wait();
    err_ = child.err();
    const bool ours = code == 0 || code == 1 || code == 128 + SIGKILL || code == 128 + SIGTERM;
    if (!ours) wrong("exit code " + std::to_string(code) + ": " + err_);
    advice_.clear();
    const std::string hint = "there is --resume=";
    if (const std::size_t at = err_.rfind(hint); code == 1 && at != std::string::npos) {
      advice_ = err_.substr(at + hint.size(), err_.find_first_of(";\n", at) - at - hint.size());
    } else if (code == 1 && limits.file_size == 0 && !expected_) {
      wrong("a failure that nothing explains: " + err_);
    }
    if (!fs::exists(last()) && !advice_.empty()) next_ = {"train", "--resume=" + advice_};
    if (!fs::exists(last()) && advice_.empty()) next_ = start();
    return code;
  }

  void kill(Child& child) {
    if (!child.running()) return;
    child.signal(SIGKILL);
    ++kills_;
  }

  // Until it has written a checkpoint of its own, or has ended.
  void wait_for_progress(Child& child) {
    const auto inode = [&] {
      struct stat status {};
      return ::stat(last().c_str(), &status) == 0 ? status.st_ino : 0;
    };
    const auto before = inode();
    for (const double end = now() + kPatience; child.running() && inode() == before && now() < end;)
      sleep_for(0.0005);
  }

  void expect_error(int code, const std::string& reason) {
    if (code != 1 || err_.find(reason) == std::string::npos) {
      wrong("expected exit code 1 and '" + reason + "', found " + std::to_string(code) + ": " + err_);
    }
    // One line, after which there is at most a warning that the log lacks it.
    std::size_t at = err_.rfind("axial: error: ");
    if (at == std::string::npos) wrong("no error was named: " + err_);
    while ((at = err_.find('\n', at)) != std::string::npos && ++at < err_.size()) {
      if (err_.compare(at, 15, "axial: warning:") != 0) wrong("not one line at the end: " + err_);
    }
  }

  Kind choose() {
    // Each kind once in its turn, then at random, half of them plain kills.
    int kind = total_ < kKinds ? total_ : static_cast<int>(random_() % (2 * kKinds));
    return static_cast<Kind>(kind >= kKinds ? kind % 3 : kind);
  }

  void disturb() {
    Kind kind = choose();
    if ((kind == Kind::kFull && !small_) || (kind == Kind::kDenied && !denied_)) kind = Kind::kLater;
    last_kind_ = kNames[static_cast<int>(kind)];
    ++times_[static_cast<int>(kind)];
    ++total_;
    expected_ = false;
    const auto later = [&](Child& child) {
      wait_for_progress(child);
      sleep_for(uniform(2 * epoch_));
    };
    switch (kind) {
      case Kind::kStart:
        attempt([&](Child& c) { sleep_for(uniform(startup_)), kill(c); }, usual_);
        break;
      case Kind::kLater:
        attempt([&](Child& c) { later(c), kill(c); }, usual_);
        break;
      case Kind::kWriting:
        attempt([&](Child& c) { later(c), wait_for_temporary(c), kill(c); }, usual_);
        break;
      case Kind::kPaused:
        attempt(
            [&](Child& c) {
              later(c), c.signal(SIGSTOP), sleep_for(0.03), c.signal(SIGCONT), sleep_for(uniform(2 * epoch_)),
                  kill(c);
            },
            usual_);
        break;
      case Kind::kTerminated: {
        const int code = attempt([&](Child& c) { later(c), c.signal(SIGTERM); }, usual_);
        if (code != 0 && code != 143) wrong("SIGTERM: exit code " + std::to_string(code) + ": " + err_);
        break;
      }
      case Kind::kFileSize: {
        Limits limits = usual_;
        const std::uint64_t size = fs::exists(last()) ? fs::file_size(last()) : 8192;
        limits.file_size = 1024 + random_() % (size / 2);
        expected_ = true;
        expect_error(attempt([](Child&) {}, limits), "File too large");
        break;
      }
      case Kind::kFull:
        expected_ = true;
        full();
        break;
      case Kind::kDenied:
        denied();
        break;
      case Kind::kCut:
        attempt([&](Child& c) { later(c), kill(c); }, usual_);
        cut();
        break;
      case Kind::kExchanged:
        attempt([&](Child& c) { later(c), kill(c); }, usual_);
        exchange();
        break;
      case Kind::kSecond:
        attempt([&](Child& c) { later(c), second(c), kill(c); }, usual_);
        break;
    }
  }

  void wait_for_temporary(Child& child) {
    for (const double end = now() + 20 * epoch_; child.running() && now() < end;) {
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(run_ / "checkpoints", ignored)) {
        if (entry.path().string().find(".tmp-") != std::string::npos) return;
      }
    }
  }

  void denied() {
    expected_ = true;
    const int code = attempt(
        [&](Child& c) {
          wait_for_progress(c);
          sleep_for(uniform(2 * epoch_));
          fs::permissions(run_ / "checkpoints", fs::perms(0555));
        },
        usual_);
    fs::permissions(run_ / "checkpoints", fs::perms(0755));
    if (code != 0 || !done()) expect_error(code, "Permission denied");  // it may have written its last in between
  }

  void full() {
    const fs::path filler = folder_ / "small" / "filler";
    const int code = attempt(
        [&](Child& c) {
          wait_for_progress(c);
          sleep_for(uniform(epoch_));
          std::ofstream file(filler, std::ios::binary);
          const std::string block(4096, 'x');
          while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
          }
        },
        usual_);
    if (code != 0) expect_error(code, "No space left on device");
    fs::remove(filler);
  }

  // A disk that lost the end of the newest checkpoint.
  void cut() {
    if (!fs::exists(last()) || done()) return;
    fs::resize_file(last(), random_() % fs::file_size(last()));
    expected_ = true;
    const int code = attempt([](Child&) {}, usual_);
    expect_error(code, last().string() + ": ");
    if (advice_.empty()) wrong("no other checkpoint is named: " + err_);
  }

  // A checkpoint restored from an older copy.
  void exchange() {
    std::vector<fs::path> epochs;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints", ignored)) {
      if (entry.path().filename().string().rfind("epoch-", 0) == 0 && epochs_done(entry.path()) > 0) {
        epochs.push_back(entry.path());
      }
    }
    if (epochs.empty()) return;
    fs::rename(*std::min_element(epochs.begin(), epochs.end()), last());
  }

  void second(Child& first) {
    first.signal(SIGSTOP);
    if (first.running() && fs::exists(last())) {
      Child other({"train", "--resume=" + run_.string()}, folder_, program_, usual_);
      if (!other.wait_for(kPatience)) wrong("a second process hangs");
      const int code = other.wait();
      const bool refused = code == 1 && other.err().find("is writing this run") != std::string::npos;
      const bool nothing_to_do = code == 0 && done();
      if (!refused && !nothing_to_do) {
        wrong("a second process on the same run: exit code " + std::to_string(code) + ": " + other.err());
      }
    }
    first.signal(SIGCONT);
  }

  fs::path folder_, run_;
  std::string program_, err_, advice_, last_kind_;
  std::mt19937 random_;
  Limits usual_;
  const Setup* setup_ = nullptr;
  Arguments next_;
  bool mounted_ = false, denied_ = false, small_ = false, expected_ = false;
  double startup_ = 0, epoch_ = 0;
  int kills_ = 0, total_ = 0, starts_ = 0, rounds_ = 0, times_[kKinds] = {};
};

}  // namespace
}  // namespace axial::stress

int main(int argc, char** argv) try {
  int kills = 500;
  unsigned seed = 1;
  std::string program;
  CLI::App options{"Kills a small training at random moments, resumes it, and compares the result to the bit."};
  options.add_option("--kills", kills, "SIGKILLs to survive (default 500)")->check(CLI::PositiveNumber);
  options.add_option("--seed", seed, "of kinds and moments (default 1)");
  options.add_option("--exec", program, "the program to execute, instead of the code that is linked in");
  CLI11_PARSE(options, argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "axial-stress-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  try {
    axial::stress::Stress(folder, program, seed).run(kills);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "axial_stress: seed %u: %s\n(what is left is in %s)\n", seed, error.what(), folder.c_str());
    return 1;
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return 0;
} catch (const std::exception& error) {  // no temporary folder, say
  std::fprintf(stderr, "axial_stress: %s\n", error.what());
  return 1;
}
